"""From centers to labels of all rows: one pass, further rounds if they find better clusters, a bound on cluster sizes.

Centers come in; a model, labels and exact sums go out. The first centers are found elsewhere.
"""
