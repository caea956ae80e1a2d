"""Fits of kernel k-means: width of the kernel, landmarks, maps to features."""
