"""Loops over rows and centers: the nearest center, exactly or among those that bounds leave, and scores."""
