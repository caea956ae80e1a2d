"""One fit as an order of stages: plan, sketch pass, search for centers, assign pass; of kernel k-means, of streams.

Settings and a plan come in, a model and labels go out; nothing here knows scikit-learn or the command line.
"""
