"""One fit as an order of stages: plan, sketch pass, search for centers, assign pass; `kernel` for kernel k-means.

Settings and a plan come in, a model and labels go out; nothing here knows scikit-learn or the command line.
"""
