"""The contract of every reader, as pytest classes to inherit."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.chunks import Chunk
from streamkm.sources.row_source import Rows, RowSource
from tests.tables import row

TARGETS = ("part of a row", 1_000, 1 << 40)
"""Bytes: less than a row, a few storage chunks, everything."""
MOST_READ_AGAIN = 60
"""Chunks of one size that are compared with what a stream gave."""


@dataclass(frozen=True)
class Opened:
    """A source and the dense matrix that it must give."""

    source: RowSource
    X: NDArray[Any]
    _streamed: dict[int, list[Rows]] = field(default_factory=dict, repr=False)

    def target_bytes(self, target: int | str) -> int:
        """One of `TARGETS`, as bytes: part of a row is about a quarter of it, as far as sizes are known."""
        return target if isinstance(target, int) else max(1, (self.source.n_bytes or 0) // (4 * len(self.X)))

    def streamed(self, target_bytes: int = 300) -> list[Rows]:
        """What the source streams, read once for all checks: never write to it."""
        if target_bytes not in self._streamed:
            self._streamed[target_bytes] = list(self.source.stream(target_bytes))
        return self._streamed[target_bytes]


def assemble(pieces: Iterable[Rows], n_features: int) -> NDArray[Any]:
    """Stack rows as one dense matrix; narrower pieces are filled up with zeros."""
    pieces = list(pieces)
    assert all(len(rows.row_ids) == rows.X.shape[0] for rows in pieces)
    whole = np.zeros(
        (sum(rows.X.shape[0] for rows in pieces), n_features), np.result_type(*(r.X.dtype for r in pieces))
    )
    start = 0
    for rows in pieces:
        n_rows, width = rows.X.shape
        assert width <= n_features
        whole[start : start + n_rows, :width] = rows.X if isinstance(rows.X, np.ndarray) else rows.X.toarray()
        start += n_rows
    return whole


def assert_same_rows(got: Rows, wanted: Rows) -> None:
    """Check that two readings of a chunk are equal, structure and places included."""
    np.testing.assert_array_equal(got.row_ids, wanted.row_ids)
    assert got.X.shape == wanted.X.shape
    if isinstance(wanted.X, np.ndarray):
        np.testing.assert_array_equal(got.X, wanted.X)
        return
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(got.X, name), getattr(wanted.X, name))


def chunked(opened: Opened) -> RowSource:
    """The source, of which chunks can be read in any order."""
    assert not opened.source.access.streams
    return opened.source


class RowSourceContract:
    """For every source, also one that can be read in order only."""

    @pytest.fixture
    def opened(self) -> Opened:
        """Give the source under test; subclasses override this."""
        raise NotImplementedError

    def test_contract(self, opened: Opened, subtests: pytest.Subtests) -> None:
        """Make every check of this class and those that it is derived from, of one source."""
        names = [name for kind in reversed(type(self).__mro__) for name in vars(kind) if name.startswith("check_")]
        for name in dict.fromkeys(names):
            with subtests.test(check=name):
                getattr(self, name)(opened)

    def check_stream_gives_all_rows_in_order(self, opened: Opened) -> None:
        assert opened.source.access.replayable, "a source that can be read only once has the contract OnePassContract"
        for target in TARGETS:
            with row(target=target):
                streamed = opened.streamed(opened.target_bytes(target))
                np.testing.assert_array_equal(assemble(streamed, opened.X.shape[1]), opened.X)

    def check_says_how_it_can_be_read(self, opened: Opened) -> None:
        source = opened.source
        assert source.access.streams == (not list(source.chunks(1 << 20)))
        sizes, cut = [chunk.n_bytes for chunk in source.chunks(300)], source.chunks(300)
        assert (len(cut), cut.largest_bytes) == (len(sizes), max(sizes, default=0))
        assert abs(cut.total_bytes - sum(sizes)) <= len(sizes)  # each rounded
        if source.access.streams:
            assert len(source.chunks(300)) == 0
            with pytest.raises(TypeError, match="streams rows"):
                source.read(Chunk(0, 0, 0, 1, 1))
        if source.origin.prepared_by is None:
            assert source.original is source
            assert source.original_bytes(1000) == 1000

    def check_attributes_are_true(self, opened: Opened) -> None:
        source = opened.source
        assert source.n_rows in (None, len(opened.X))
        assert source.n_features in (None, opened.X.shape[1])
        assert source.n_bytes is None or source.n_bytes > 0
        assert isinstance(source.name, str)
        assert source.name
        assert isinstance(source.dtype, np.dtype)
        assert source.dtype.isnative
        for rows in opened.streamed():
            assert rows.X.dtype == source.dtype
            assert isinstance(rows.X, sp.csr_array) == source.is_sparse
            assert isinstance(rows.X, np.ndarray) != source.is_sparse
            assert source.n_features in (None, rows.X.shape[1])
            if isinstance(rows.X, np.ndarray):
                assert rows.X.flags.c_contiguous
            else:
                assert rows.X.has_canonical_format

    def check_places_are_distinct_and_describable(self, opened: Opened) -> None:
        places = np.concatenate([rows.row_ids for rows in opened.streamed()])
        assert places.dtype == np.int64
        assert places.min() >= 0
        assert len(np.unique(places)) == len(opened.X)
        assert opened.source.describe(int(places[-1]))

    def check_details_are_short_texts(self, opened: Opened) -> None:
        details = opened.source.details()
        assert details["format"]
        for label, text in details.items():
            assert isinstance(label, str)
            assert 0 < len(label) <= 20
            assert isinstance(text, str)
            assert 0 < len(text) <= 120
            assert text.isprintable()

    def check_a_remote_view_is_small_and_describes_places_alike(self, opened: Opened) -> None:
        source = opened.source
        standing = pickle.loads(pickle.dumps(source.remote_view()))
        if source.access.in_process:
            assert len(pickle.dumps(source.remote_view())) < 5_000
            with pytest.raises(TypeError, match="are in another process"):
                next(iter(standing.stream(300)))
        for name in ("name", "n_rows", "n_features", "dtype", "is_sparse", "n_bytes", "estimated_rows"):
            assert getattr(standing, name) == getattr(source, name)
        for rows in opened.streamed():
            for place in (*rows.row_ids[:1], *rows.row_ids[-1:]):
                assert standing.describe(int(place)) == source.describe(int(place))

    def check_a_source_that_can_be_replayed_is_the_same_again(self, opened: Opened) -> None:
        first, second = opened.streamed(), list(opened.source.stream(300))
        assert len(first) == len(second)
        for got, wanted in zip(second, first, strict=True):
            assert_same_rows(got, wanted)


class OnePassContract(RowSourceContract):
    """For sources that can be read only once: each check has one of its own."""

    @pytest.mark.parametrize(
        "check",
        ["attributes_are_true", "places_are_distinct_and_describable", "details_are_short_texts",
         "a_remote_view_is_small_and_describes_places_alike", "says_how_it_can_be_read"],
    )  # fmt: skip
    def test_contract(self, opened: Opened, check: str) -> None:  # type: ignore[override]
        getattr(self, f"check_{check}")(opened)

    @pytest.mark.parametrize("target", TARGETS)
    def test_stream_gives_all_rows_in_order(self, opened: Opened, target: int | str) -> None:
        assert not opened.source.access.replayable
        np.testing.assert_array_equal(
            assemble(opened.source.stream(opened.target_bytes(target)), opened.X.shape[1]), opened.X
        )

    def test_it_is_not_read_again(self, opened: Opened) -> None:
        list(opened.source.stream(300))
        with pytest.raises(InvalidInputError, match="only once"):
            next(iter(opened.source.stream(300)))


class SourceContract(RowSourceContract):
    """For sources whose chunks can be read in any order."""

    def check_chunks_are_in_order_and_disjoint(self, opened: Opened) -> None:
        source = chunked(opened)
        for target in TARGETS:
            with row(target=target):
                chunks = list(source.chunks(opened.target_bytes(target)))
                assert chunks == list(source.chunks(opened.target_bytes(target)))
                assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
                assert all(chunk.start < chunk.stop for chunk in chunks)
                assert all(chunk.n_bytes >= 0 for chunk in chunks)
                for before, after in pairwise(chunks):
                    assert (before.part, before.stop) <= (after.part, after.start) or before.part < after.part

    def check_places_do_not_depend_on_the_chunks(self, opened: Opened) -> None:
        wanted = np.concatenate([rows.row_ids for rows in opened.streamed(1 << 40)])
        for target in (*TARGETS, 300):
            with row(target=target):
                streamed = opened.streamed(opened.target_bytes(target))
                np.testing.assert_array_equal(np.concatenate([rows.row_ids for rows in streamed]), wanted)

    def check_stream_is_the_chunks_in_order(self, opened: Opened) -> None:
        source = chunked(opened)
        for target in (*TARGETS, 300):
            with row(target=target):
                streamed = opened.streamed(opened.target_bytes(target))
                chunks = source.chunks(opened.target_bytes(target))
                assert len(streamed) == len(chunks)
                for i in range(0, len(chunks), -(-len(chunks) // MOST_READ_AGAIN)):
                    assert_same_rows(streamed[i], source.read(chunks[i]))

    def check_any_order_gives_the_same(self, opened: Opened) -> None:
        source, wanted = chunked(opened), opened.streamed()
        chunks = source.chunks(300)
        for i in np.random.default_rng(0).permutation(len(chunks)):  # again by threads, below
            assert_same_rows(source.read(chunks[i]), wanted[i])

    def check_threads_give_the_same(self, opened: Opened) -> None:
        source = chunked(opened)
        wanted = opened.streamed()
        copy = pickle.loads(pickle.dumps(source))
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(copy.read, list(source.chunks(300)) * 2))
        for got, rows in zip(read, wanted * 2, strict=True):
            assert_same_rows(got, rows)

    def check_a_pickled_copy_gives_the_same(self, opened: Opened) -> None:
        source = chunked(opened)
        chunks = source.chunks(300)
        copy = pickle.loads(pickle.dumps(source))
        for rows, chunk in zip(opened.streamed(), chunks, strict=True):
            assert_same_rows(copy.read(chunk), rows)
        assert list(copy.chunks(300)) == list(chunks)
        assert (copy.name, copy.n_rows, copy.n_features) == (source.name, source.n_rows, source.n_features)
