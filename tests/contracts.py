"""What every reader must keep, as classes that the readers' tests inherit.

A subclass says what to open by overriding the fixture `opened`; the tests come with the class.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.sources.base import ChunkedSource, Rows, RowSource
from tests.tables import row

TARGETS = (1, 1_000, 1 << 40)
"""Bytes: less than a row, a few storage chunks, everything."""


@dataclass(frozen=True)
class Opened:
    """A source and the dense matrix that it must give."""

    source: RowSource
    X: NDArray[Any]


def assemble(pieces: Iterable[Rows], n_features: int) -> NDArray[Any]:
    """Stack rows as one dense matrix; narrower pieces are filled up with zeros."""
    dense = []
    for rows in pieces:
        X = rows.X.toarray() if sp.issparse(rows.X) else rows.X
        assert len(rows.places) == len(X)
        dense.append(np.pad(X, ((0, 0), (0, n_features - X.shape[1]))))
    return np.concatenate(dense)


def assert_same_rows(got: Rows, wanted: Rows) -> None:
    """Check that two readings of a chunk are equal, structure and places included."""
    np.testing.assert_array_equal(got.places, wanted.places)
    assert got.X.shape == wanted.X.shape
    if isinstance(wanted.X, np.ndarray):
        np.testing.assert_array_equal(got.X, wanted.X)
        return
    for name in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(got.X, name), getattr(wanted.X, name))


def chunked(opened: Opened) -> ChunkedSource:
    """The source, of which chunks can be read in any order."""
    assert isinstance(opened.source, ChunkedSource)
    return opened.source


class RowSourceContract:
    """For every source, also one that can be read in order only."""

    @pytest.fixture
    def opened(self) -> Opened:
        """Give the source under test; subclasses override this."""
        raise NotImplementedError

    def test_contract(self, opened: Opened) -> None:
        """Make every check of this class and those that it is derived from, of one source; all that fail are named."""
        names = [name for kind in reversed(type(self).__mro__) for name in vars(kind) if name.startswith("check_")]
        failed = []
        for name in dict.fromkeys(names):
            try:
                with row(check=name):
                    getattr(self, name)(opened)
            except Exception as error:  # noqa: BLE001 - gathered
                failed.append(error)
        if failed:
            raise ExceptionGroup(f"{opened.source.name} does not keep the contract of sources", failed)

    def check_stream_gives_all_rows_in_order(self, opened: Opened) -> None:
        assert opened.source.replayable, "a source that can be read once only has the contract OnePassContract"
        for target_bytes in TARGETS:
            with row(target_bytes=target_bytes):
                np.testing.assert_array_equal(assemble(opened.source.stream(target_bytes), opened.X.shape[1]), opened.X)

    def check_attributes_are_true(self, opened: Opened) -> None:
        source = opened.source
        assert source.n_rows in (None, len(opened.X))
        assert source.n_features in (None, opened.X.shape[1])
        assert source.n_bytes is None or source.n_bytes > 0
        assert isinstance(source.name, str)
        assert source.name
        assert isinstance(source.dtype, np.dtype)
        assert source.dtype.isnative
        for rows in source.stream(300):
            assert rows.X.dtype == source.dtype
            assert isinstance(rows.X, sp.csr_array) == source.is_sparse
            assert isinstance(rows.X, np.ndarray) != source.is_sparse
            assert source.n_features in (None, rows.X.shape[1])
            if isinstance(rows.X, np.ndarray):
                assert rows.X.flags.c_contiguous
            else:
                assert rows.X.has_canonical_format

    def check_places_are_distinct_and_describable(self, opened: Opened) -> None:
        places = np.concatenate([rows.places for rows in opened.source.stream(300)])
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

    def check_a_stand_in_is_small_and_describes_places_alike(self, opened: Opened) -> None:
        source = opened.source
        standing = pickle.loads(pickle.dumps(source.stand_in()))
        if source.in_process:
            assert len(pickle.dumps(source.stand_in())) < 5_000
            with pytest.raises(TypeError, match="are in another process"):
                next(iter(standing.stream(300)))
        for name in ("name", "n_rows", "n_features", "dtype", "is_sparse", "n_bytes", "estimated_rows"):
            assert getattr(standing, name) == getattr(source, name)
        for rows in opened.source.stream(300):
            for place in (*rows.places[:1], *rows.places[-1:]):
                assert standing.describe(int(place)) == source.describe(int(place))

    def check_a_source_that_can_be_replayed_is_the_same_again(self, opened: Opened) -> None:
        first, second = (list(opened.source.stream(300)) for _ in range(2))
        assert len(first) == len(second)
        for got, wanted in zip(second, first, strict=True):
            assert_same_rows(got, wanted)


class OnePassContract(RowSourceContract):
    """For sources that can be read once only: each check has one of its own."""

    @pytest.mark.parametrize(
        "check",
        ["attributes_are_true", "places_are_distinct_and_describable", "details_are_short_texts",
         "a_stand_in_is_small_and_describes_places_alike"],
    )  # fmt: skip
    def test_contract(self, opened: Opened, check: str) -> None:
        getattr(self, f"check_{check}")(opened)

    @pytest.mark.parametrize("target_bytes", TARGETS)
    def test_stream_gives_all_rows_in_order(self, opened: Opened, target_bytes: int) -> None:
        assert not opened.source.replayable
        np.testing.assert_array_equal(assemble(opened.source.stream(target_bytes), opened.X.shape[1]), opened.X)

    def test_it_is_not_read_again(self, opened: Opened) -> None:
        list(opened.source.stream(300))
        with pytest.raises(InvalidInputError, match="once only"):
            next(iter(opened.source.stream(300)))


class SourceContract(RowSourceContract):
    """For sources whose chunks can be read in any order."""

    def check_chunks_are_in_order_and_disjoint(self, opened: Opened) -> None:
        source = chunked(opened)
        for target_bytes in TARGETS:
            with row(target_bytes=target_bytes):
                chunks = source.chunks(target_bytes)
                assert chunks == source.chunks(target_bytes)
                assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
                assert all(chunk.start < chunk.stop for chunk in chunks)
                assert all(chunk.n_bytes >= 0 for chunk in chunks)
                for before, after in pairwise(chunks):
                    assert (before.part, before.stop) <= (after.part, after.start) or before.part < after.part

    def check_places_do_not_depend_on_the_chunks(self, opened: Opened) -> None:
        source = chunked(opened)
        wanted = np.concatenate([rows.places for rows in source.stream(1 << 40)])
        for target_bytes in TARGETS:
            with row(target_bytes=target_bytes):
                got = np.concatenate([source.read(chunk).places for chunk in source.chunks(target_bytes)])
                np.testing.assert_array_equal(got, wanted)

    def check_stream_is_the_chunks_in_order(self, opened: Opened) -> None:
        source = chunked(opened)
        streamed = list(source.stream(300))
        chunks = source.chunks(300)
        assert len(streamed) == len(chunks)
        for got, chunk in zip(streamed, chunks, strict=True):
            assert_same_rows(got, source.read(chunk))

    def check_any_order_gives_the_same(self, opened: Opened) -> None:
        source = chunked(opened)
        chunks = source.chunks(300)
        wanted = [source.read(chunk) for chunk in chunks]
        for i in np.random.default_rng(0).permutation(np.repeat(np.arange(len(chunks)), 2)):
            assert_same_rows(source.read(chunks[i]), wanted[i])

    def check_threads_give_the_same(self, opened: Opened) -> None:
        source = chunked(opened)
        wanted = list(source.stream(300))
        copy = pickle.loads(pickle.dumps(source))
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(copy.read, list(source.chunks(300)) * 2))
        for got, rows in zip(read, wanted * 2, strict=True):
            assert_same_rows(got, rows)

    def check_a_pickled_copy_gives_the_same(self, opened: Opened) -> None:
        source = chunked(opened)
        chunks = source.chunks(300)
        wanted = [source.read(chunk) for chunk in chunks]
        copy = pickle.loads(pickle.dumps(source))
        for rows, chunk in zip(wanted, chunks, strict=True):
            assert_same_rows(copy.read(chunk), rows)
        assert copy.chunks(300) == chunks
        assert (copy.name, copy.n_rows, copy.n_features) == (source.name, source.n_rows, source.n_features)
