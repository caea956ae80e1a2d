"""Chunks as runs of equal ones: what a tuple of all of them would be, in few bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkm.sources import open_source
from streamkm.sources.chunks import Chunk, ChunkRuns

CUTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 3), st.integers(0, 2)), max_size=30)
MOST_BYTES = 1_000  # of the runs of a source with equal chunks


def naive(cuts):
    return tuple(Chunk(index, *cut) for index, cut in enumerate(cuts))


@settings(deadline=None, max_examples=200)
@given(CUTS)
def test_runs_are_the_chunks_that_they_were_made_of(drawn):
    cuts, at = [], 0
    for part, gap, length, n_bytes in drawn:
        at += gap
        cuts.append((part, at, at + length, n_bytes))
        at += length
    runs, wanted = ChunkRuns.of(cuts), naive(cuts)
    assert tuple(runs) == wanted
    assert len(runs) == len(wanted)
    assert [runs[index] for index in range(-len(wanted), len(wanted))] == [*wanted, *wanted]
    assert runs.total_bytes == sum(chunk.n_bytes for chunk in wanted)
    assert runs.largest_bytes == max((chunk.n_bytes for chunk in wanted), default=0)
    with pytest.raises(IndexError):
        runs[len(wanted)]


def test_joined_and_resized_chunks():
    first, second = ChunkRuns.even(7, 3, 2), ChunkRuns.of([(0, 5, 9, 1)])
    joined = naive([(0, 0, 3, 6), (0, 3, 6, 6), (0, 6, 7, 2), (1, 5, 9, 1)])
    assert tuple(ChunkRuns.joined([first, second])) == joined
    assert len(ChunkRuns.joined([])) == 0
    assert tuple(first.resized(lambda n_bytes: n_bytes * 1.5)) == naive([(0, 0, 3, 9), (0, 3, 6, 9), (0, 6, 7, 3)])


def test_chunks_of_equal_length_take_no_memory_each(tmp_path):
    np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.uint8, (1_000_000, 4)).flush()
    chunks = open_source(tmp_path / "rows.npy").chunks(4)
    assert len(chunks) == 1_000_000
    assert chunks[999_999] == Chunk(999_999, 0, 999_999, 1_000_000, 4)
    assert chunks._runs.nbytes + chunks._ends.nbytes < MOST_BYTES
