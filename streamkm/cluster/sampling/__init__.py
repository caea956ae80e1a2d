"""Samples of rows that arrive one after the other: uniform, or weighted by their share of the objective (coresets).

Rows and their numbers come in; weights keep sums unbiased. Nothing here clusters a sample.
"""
