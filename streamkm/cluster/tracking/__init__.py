"""Clusters followed over time: their identities, statistics of their rows, and events.

Arrays in, arrays out; never sees a source or a file.
"""
