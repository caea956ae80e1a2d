"""Sums whose last bits count are the same on every version of Python, and however parts were joined before."""

from __future__ import annotations

import numpy as np

from streamkm.cluster.rows import Totals, absorb_totals
from streamkm.core.matrix import added_in_order

PARTS = (1e16, 1.0, 1.0)  # from Python 3.12 on, `sum` gives 1e16 + 2


def test_numbers_are_added_one_after_the_other():
    assert added_in_order(PARTS) == 1e16
    assert added_in_order([]) == 0.0


def test_totals_are_added_one_after_the_other_too():
    first, second, third = (Totals(np.full((2, 3), d2), np.full(2, d2), d2) for d2 in PARTS)
    joined = absorb_totals(absorb_totals(first, second), third)
    assert joined.d2 == joined.sums[0, 0] == joined.counts[0] == 1e16
