"""Generators of large data and measurements of speed and quality."""
