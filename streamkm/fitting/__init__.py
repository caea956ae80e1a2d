"""A fit as a list of stages (sketch pass, search for centers, assign pass), for k-means, kernel k-means and streams.

Settings and a plan come in, a model and labels go out. Nothing here knows scikit-learn or the command line.
"""
