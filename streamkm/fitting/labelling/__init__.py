"""From centers to labels of all rows: one pass, further rounds where they find better clusters, clusters below a size.

Centers come in, a model and what labelling all rows told go out; how the first centers are found is not known here.
"""
