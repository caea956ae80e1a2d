"""Shared by all layers: exceptions, atomic files, matrix types, memory limits, progress.

Nothing here knows clusters, sketches or sources.
"""
