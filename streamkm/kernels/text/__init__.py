"""Bytes of text to numbers: svmlight rows, decimals, records of CSV. Pointers into buffers in, arrays out."""
