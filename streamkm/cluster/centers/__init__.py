"""Centers laid out for products, indexes that find the nearest of many, and lists of neighbours.

Centers come in; rows that are asked about too. Never looks for centers.
"""
