"""A fit as a list of stages (sketch pass, search for centers, assign pass), for k-means, kernel k-means and streams."""
