"""Readers of documents in text files, CSV, JSON lines and Parquet; their words are hashed to rows.

Hashing and weights are in `streamkm.text`.
"""
