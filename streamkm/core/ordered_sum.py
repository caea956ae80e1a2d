"""Sums of Python's numbers whose last bits count. Imports functools and operator only."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce


def added_in_order(values: Iterable[float]) -> float:
    """Add numbers up, one after the other; 0.0 of none.

    Python's own `sum` makes up for what rounding loses from 3.12 on: its last bits would depend on the version, and on
    what was added up before.
    """
    return reduce(operator.add, values, 0.0)
