"""What every layer needs and no layer owns: exceptions, files that are whole or not there, memory limits, progress.

NumPy, SciPy and the standard library come in here, and rich in `progress`; nothing of streamkm does, and nothing that
knows what a cluster, a sketch or a source is belongs here.
"""
