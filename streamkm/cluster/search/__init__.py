"""Better local optima by moving centers: split and merge, among all or near centers, and one more cluster at a time.

Rows in this process and their partition come in. Nothing here reads a source.
"""
