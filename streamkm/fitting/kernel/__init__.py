"""Kernel k-means: the kernel's width, landmarks, maps to features, fits; and exact versions for few rows."""
