"""How many clusters: `sweep`, which scores many numbers of them."""
