"""Kernel k-means: the kernel's width, landmarks, maps to features, fits; the papers' own methods are in `papers`."""
