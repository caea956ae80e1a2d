"""Rows before they are clustered: sums over features, scaling, logarithms, common totals and lengths."""
