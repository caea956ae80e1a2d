"""Readers of documents in text files, CSV, JSON lines and Parquet, which `streamkm.text` hashes to rows."""
