"""Matrix Market files: text whose entries stand in any order, gathered by rows in a temporary file."""
