"""Tables of numbers, read by pyarrow: CSV, Parquet, Arrow files, streams of record batches; not their documents.

`columns` decides what a column becomes; the other modules find and read rows.
"""
