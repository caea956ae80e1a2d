"""Rows in the memory of this process: arrays, memory maps, frames, iterables, labelled arrays.

Nothing here opens a file.
"""
