"""From centers to labels of all rows: one pass, and further rounds if they find better clusters.

Centers come in; a model, labels and exact sums go out. The first centers are found elsewhere.
"""
