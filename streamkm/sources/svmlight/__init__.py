"""The reader of svmlight text, plain and compressed: it finds lines, parses them, and reports errors by line and byte.

Compiled parsers are in `kernels.text`.
"""
