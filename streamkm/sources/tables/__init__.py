"""Tables of numbers, read by pyarrow: CSV, Parquet, Arrow files, streams of record batches.

What a column becomes is said once, in `columns`; the other modules find rows and read them. Nothing here knows of
documents, which the same files may hold.
"""
