"""Loops that choose rows as centers: draws by weight, trials of k-means++, halves of clusters."""
