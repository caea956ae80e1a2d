"""The nearest centers of rows: packed layouts for products, indexes for many centers, and lists of neighbours.

Centers and rows come in. Nothing here moves a center.
"""
