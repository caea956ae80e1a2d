"""Rows that stand for all rows: drawn evenly, or by what they weigh in the objective (coresets), as they come by.

Rows come in with their numbers; what is kept has weights that keep sums unbiased.
"""
