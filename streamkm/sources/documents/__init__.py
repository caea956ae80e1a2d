"""Documents in text files, CSV, JSON lines and Parquet, hashed to rows; what a word counts is `streamkm.text`'s."""
