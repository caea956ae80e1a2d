"""The size of the package: no count is above its budget, and the budget only falls."""

from __future__ import annotations

from tests.house import code_lines, count_house, lowered, over_budget, read_budget


def test_no_count_is_above_its_budget():
    found = over_budget(count_house(), read_budget())
    assert not found, "; ".join(found)


def test_a_count_above_its_budget_is_told_in_one_sentence():
    counts = {"code lines": {"all": 1_200, "cli": 90}, "modules": {"all": 2, "new": 1}, "rare": {"tuple parameters": 3}}
    budget = {"code lines": {"all": 1_100, "cli": 100}, "modules": {"all": 2}, "rare": {"tuple parameters": 2}}
    assert over_budget(counts, budget) == [
        "all: 1,200 code lines, 100 above the budget of 1,100",
        "new: 1 modules, 1 above the budget of 0",
        "tuple parameters: 3, 1 above the budget of 2",
    ]


def test_the_budget_takes_lower_counts_and_no_higher_ones():
    counts = {"code lines": {"all": 5, "cli": 9, "new": 3}, "modules": {"all": 1}}
    budget = {"code lines": {"all": 7, "cli": 8, "gone": 2}, "modules": {"all": 1}}
    assert lowered(counts, budget) == {"code lines": {"all": 5, "cli": 8}, "modules": {"all": 1}}


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
