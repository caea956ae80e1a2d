"""Selection of the number of clusters: `sweep` scores many numbers."""
