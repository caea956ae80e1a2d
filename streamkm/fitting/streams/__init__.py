"""Endless streams: rows go into a coreset as they come, clusters are those of the coreset when they are asked for."""
