"""Endless streams: arriving rows go into a coreset, which is clustered when centers are asked for."""
