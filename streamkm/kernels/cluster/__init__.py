"""Loops of k-means: nearest centers, sums of clusters, draws, splits, scores."""
