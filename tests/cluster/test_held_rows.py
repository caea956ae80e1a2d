"""Held blocks as passes get them: loaded from wherever they lie, with their places and labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from streamkm.cluster.held_rows import HeldBlock, HeldRows
from streamkm.cluster.rows import NO_WEIGHTS, Block, row_d2norms
from streamkm.cluster.spill import Spill, SpilledBlock
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.engine.passes import Map, outputs

SIZES = (3, 1, 4)


@dataclass(frozen=True, slots=True)
class Seen(Map[HeldBlock]):
    """Each block as it came."""

    def output(self, rows: HeldBlock) -> HeldBlock:
        return rows


@pytest.fixture
def blocks():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(n_rows, 2)).astype(np.float32) for n_rows in SIZES]
    return [Block(X, row_d2norms(X), NO_WEIGHTS) for X in parts]


def seen(rows, n_threads=2):
    with open_executor(n_threads) as executor:
        return list(outputs(Seen(), rows, executor, Stage("look")))


def test_blocks_come_in_order_from_memory_and_from_disk(blocks):
    spill = Spill(blocks[0].X.nbytes + blocks[0].d2norms.nbytes)
    try:
        handles = [spill.keep(block) for block in blocks]
        assert [isinstance(handle, SpilledBlock) for handle in handles] == [False, True, True]
        found = seen(HeldRows(handles))
    finally:
        spill.close()
    assert [(each.place, each.labels) for each in found] == [(0, None)] * len(SIZES)
    for each, block in zip(found, blocks, strict=True):
        np.testing.assert_array_equal(each.block.X, block.X)
        np.testing.assert_array_equal(each.block.d2norms, block.d2norms)


def test_places_and_labels_come_with_their_blocks(blocks):
    places, labels = [0, 100, 200], [np.arange(n_rows) for n_rows in SIZES]
    found = seen(HeldRows(blocks, places, labels))
    assert [each.place for each in found] == places
    assert [each.block.n_rows for each in found] == list(SIZES)
    for each, given in zip(found, labels, strict=True):
        assert each.labels is given  # batches write likely labels


def test_labels_are_looked_up_when_their_block_is_next(blocks):
    labels = [None] * len(SIZES)
    with open_executor(1) as executor:
        items = HeldRows(blocks, [0, 1, 2], labels).items(executor)
        assert next(items)[2] is None
        labels[1] = np.zeros(1, np.int32)
        assert next(items)[2] is labels[1]


@pytest.mark.parametrize(("places", "labels"), [([0, 1], None), ([0, 1, 2], [None])])
def test_each_block_has_a_place_and_labels(blocks, places, labels):
    with pytest.raises(ValueError, match="argument"):
        seen(HeldRows(blocks, places, labels))
