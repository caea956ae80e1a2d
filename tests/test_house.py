"""The size of the package: no count is above its budget, and the budget only falls."""

from __future__ import annotations

from tests.house import code_lines, count_house, over_budget, read_budget


def test_no_count_is_above_its_budget():
    found = over_budget(count_house(), read_budget())
    assert not found, "; ".join(found)


def test_code_lines_are_those_that_do_something():
    text = '''"""A docstring."""

import os
from sys import (
    argv,
)

# a comment
SIZE = 3  # counts
"""What SIZE is."""


def double(x):
    """Two lines
    of a docstring."""
    return (
        2 * x
    )
'''
    assert code_lines(text) == 5
