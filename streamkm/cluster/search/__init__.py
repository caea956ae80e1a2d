"""Better local optima by moving centers: split and merge, also among neighbours, and one cluster more at a time.

Blocks in this process and a partition of them come in.
"""
