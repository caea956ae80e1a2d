"""What only the papers on kernel k-means use: sketches of all kernel columns and of landmarks, and exact versions."""
