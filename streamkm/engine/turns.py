"""Assigns calls to workers: in turns, and neighbouring calls together where their chunks share storage.

If chunks do not end where storage chunks end, two neighbours need the same storage chunk. One process reads it once for
both; two processes read it twice. Calls therefore go to workers in stretches of consecutive ones. Long stretches keep
the bytes that are read twice at some 4 %; short ones let workers finish together, and few results wait for those of the
stretch before. Pure arithmetic; knows nothing of Dask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

SHARE = 24  # a stretch reads so many times what it shares with the next
LARGE_BYTES = 64 << 20  # of the chunks of a stretch whose results are as large as they are


@dataclass(frozen=True, slots=True)
class Reading:
    """Chunks that workers read.

    Attributes
    ----------
    n_chunks : int
    largest_chunk : int
        Decoded bytes of the largest.
    shared_bytes : int
        Of the source.
    by_source : bool
        Whether workers read them by the source alone; else each comes with a graph of Dask tasks, or its results.
    n_rows : int
        Of all chunks, about; 0 if that is not known.
    """

    n_chunks: int
    largest_chunk: int
    shared_bytes: int
    by_source: bool = True
    n_rows: int = 0

    def stretch(self, n_calls: int, n_workers: int, *, large: bool = False) -> int:
        """Consecutive calls that one worker gets.

        Parameters
        ----------
        n_calls : int
            That read the chunks, about equally many each.
        n_workers : int
            Processes.
        large : bool
            Whether results are as large as chunks: stretches are shorter then, where storage chunks are large.

        Returns
        -------
        int
            1 if chunks share no storage. Else the length with which workers finish together, from the shortest that
            reads little twice to twice that length.
        """
        fewest = -(-SHARE * self.shared_bytes // max(1, self.largest_chunk))
        if large:
            fewest = min(fewest, LARGE_BYTES // max(1, self.largest_chunk))
        least = -(-fewest * n_calls // self.n_chunks)
        if least <= 1 or n_workers < 2:
            return 1
        most = max(1, -(-n_calls // n_workers))  # each worker has one
        return min(
            range(min(least, most), min(2 * least, most) + 1), key=lambda length: _last(n_calls, n_workers, length)
        )


def _last(n_calls: int, n_workers: int, length: int) -> int:
    """The most calls that one worker gets, with stretches of this length."""
    stretches, rest = divmod(n_calls, length)
    rounds, started = divmod(stretches, n_workers)
    return rounds * length + (length if started else rest)


class Turns:
    """Assigns each stretch of calls to the worker with the fewest items per thread.

    Parameters
    ----------
    stretch : int
        Consecutive calls.
    """

    def __init__(self, stretch: int = 1) -> None:
        self.stretch = stretch
        self._given: Counter[str] = Counter()
        self._place = ""
        self._left = 0

    def place(self, n_threads: Mapping[str, int], n_items: int) -> str:
        """Worker for the next call, among those that are there now.

        Parameters
        ----------
        n_threads : mapping of str to int
            Of each worker; at least one.
        n_items : int
            Of the call.
        """
        if not self._left or self._place not in n_threads:
            self._place = min(n_threads, key=lambda worker: self._given[worker] / n_threads[worker])
            self._left = self.stretch
        self._left -= 1
        self._given[self._place] += n_items
        return self._place
