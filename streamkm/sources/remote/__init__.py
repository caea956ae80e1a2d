"""Bytes behind addresses: ranges fetched once, objects that must not change meanwhile; fsspec comes in here alone."""
