"""Rows in svmlight text, plain and compressed: where lines are, what they say, and errors with line and byte."""
