"""Passes over all rows: each class gathers one thing while every row is read once (sketch, count words, assign, ...).

`PassContext` holds executor, reader, weights and checkpoint; `engine.passes` runs a pass. Nothing here searches for
centers or knows scikit-learn.
"""
