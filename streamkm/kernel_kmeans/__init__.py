"""Kernel k-means: landmarks, maps to features, fits out of core, and small exact versions to compare with."""
