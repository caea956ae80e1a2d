"""Fits of kernel k-means: width of the kernel, landmarks, maps to features; the papers' own methods are in `papers`.

Nothing here knows scikit-learn or the command line.
"""
