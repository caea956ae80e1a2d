"""Fits of kernel k-means: width of the kernel, landmarks, maps to features.

Nothing here knows scikit-learn or the command line.
"""
