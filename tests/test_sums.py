"""Sums whose last bits count are the same on every version of Python, and however parts were joined before."""

from __future__ import annotations

import numpy as np

from streamkm.cluster.totals import Totals, absorb_totals, join_totals
from streamkm.core.ordered_sum import added_in_order

PARTS = (1e16, 1.0, 1.0)  # from Python 3.12 on, `sum` gives 1e16 + 2


def test_numbers_are_added_one_after_the_other():
    assert added_in_order(PARTS) == 1e16
    assert added_in_order([]) == 0.0


def test_three_totals_joined_at_once_are_those_joined_by_twos():
    def part(d2):
        return Totals(np.full((2, 3), d2), np.full(2, d2), d2)

    at_once = join_totals([part(d2) for d2 in PARTS])
    by_twos = absorb_totals(absorb_totals(part(PARTS[0]), part(PARTS[1])), part(PARTS[2]))
    assert at_once.d2 == by_twos.d2 == 1e16
    np.testing.assert_array_equal(at_once.sums, by_twos.sums)
    np.testing.assert_array_equal(at_once.counts, by_twos.counts)
