"""The reader of Matrix Market files: entries in any order are gathered by rows in a temporary file.

The compiled parser is in `kernels.text`.
"""
