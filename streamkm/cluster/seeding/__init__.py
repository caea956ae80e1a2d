"""Initial centers: the rows on which they are searched, and the methods that choose them.

Rows in memory or on disk and their sample come in. Nothing here reads a source.
"""
