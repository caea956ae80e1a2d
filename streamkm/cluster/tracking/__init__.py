"""Clusters that are followed over time: who they are, what is known of their rows, and what became of them.

Arrays in, arrays out; never sees a source or a file.
"""
