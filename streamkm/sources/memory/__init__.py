"""Rows in the memory of this process: arrays, memory maps, frames, iterables.

Nothing here opens a file.
"""
