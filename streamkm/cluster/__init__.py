"""Clustering of blocks: seeding, Lloyd, local search, and the row sample."""
