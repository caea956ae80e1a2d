"""Shards of a Dask cluster, and whose turn it is: chunks that one task reads, and workers that take theirs by turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streamkm.engine.dask_handles import Held

SHARE = 24  # a stretch reads so many times what it shares with the next
LARGE_BYTES = 64 << 20  # of the chunks of a stretch whose results are as large as they are


@dataclass(frozen=True, slots=True)
class Reading:
    """Chunks that workers read."""

    n_chunks: int
    largest_chunk: int  # decoded bytes of the largest
    shared_bytes: int  # of the source
    # whether workers read them by the source alone; else each comes with a graph of Dask tasks, or its results
    by_source: bool = True
    is_placed: bool = True  # whether this process chooses the workers, as nothing that the chunks need lies on any
    n_rows: int = 0  # of all chunks, about; 0 if that is not known

    def stretch(self, n_calls: int, n_workers: int, *, large: bool = False) -> int:
        """Consecutive calls that one worker gets.

        `n_calls`: that read the chunks, about equally many each. `n_workers`: processes. `large`: whether results are
        as large as chunks: stretches are shorter then, where storage chunks are large. Returns int: 1 if chunks share
        no storage; else from the shortest that reads little twice to twice that length.
        """
        fewest = -(-SHARE * self.shared_bytes // max(1, self.largest_chunk))
        if large:
            fewest = min(fewest, LARGE_BYTES // max(1, self.largest_chunk))
        least = -(-fewest * n_calls // self.n_chunks)
        if least <= 1 or n_workers < 2:
            return 1
        share = -(-n_calls // n_workers)
        return -(-share // max(1, share // least))  # each worker gets equal stretches


class Turns:
    """Assigns each stretch of calls to the worker with the fewest items per thread.

    `stretch`: consecutive calls.
    """

    def __init__(self, stretch: int = 1) -> None:
        self.stretch = stretch
        self._given: Counter[str] = Counter()
        self._place = ""
        self._left = 0

    def place(self, n_threads: Mapping[str, int], n_items: int) -> str:
        """Worker for the next call, among those that are there now.

        `n_threads`: of each worker; at least one. `n_items`: of the call.
        """
        if not self._left or self._place not in n_threads:
            self._place = min(n_threads, key=lambda worker: self._given[worker] / n_threads[worker])
            self._left = self.stretch
        self._left -= 1
        self._given[self._place] += n_items
        return self._place


SHARDS = 12  # of a pass at least: a cluster may have few threads when a pass begins, and more soon after
SHARDS_A_THREAD = 3  # fewer let threads wait for the last one; each takes two or three calls of some 2 ms

SHARD_RUNS = 1024  # at most: the client makes an object for each chunk of a shard that it starts
SHARD_ROWS = 1 << 24  # about as many rows at most: labels wait on their worker until the shard is done, here 64 MiB


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive runs of items: the number of the first, and the items of each."""

    first: int
    runs: list[list[Any]]

    @property
    def items(self) -> list[Any]:
        """The items of all runs."""
        return [item for run in self.runs for item in run]


def count_shards(n_threads: int, n_rows: int = 0, n_runs: int = 0) -> int:
    """Shards into which all runs of a pass over so many rows are cut, if there are enough."""
    return max(SHARDS, SHARDS_A_THREAD * n_threads, -(-n_rows // SHARD_ROWS), -(-n_runs // SHARD_RUNS))


def shards_of(
    runs: Iterable[list[Any]], first: int, stop: Callable[[int], float], *, may_read: bool
) -> Iterator[Shard]:
    """Cut runs into shards, one at a time, as they come.

    `runs`: items of each run, from run `first` on. `stop`: where a shard ends at the latest, by its first run.
    `may_read`: whether items are chunks that workers read. Else runs are put together if their blocks lie in one
    future; any other run is a shard.
    """
    shard: list[list[Any]] = []
    place: Any = None
    for run in runs:
        here = runs if may_read else future_of(run)
        if shard and here is not place:
            yield Shard(first, shard)
            first, shard = first + len(shard), []
        shard.append(run)
        place = here
        if here is None or first + len(shard) >= stop(first):
            yield Shard(first, shard)
            first, shard = first + len(shard), []
    if shard:
        yield Shard(first, shard)


def future_of(run: list[Any]) -> Any:
    """The future in whose result all held blocks of a run lie; None if there is no such future."""
    held = held_blocks(run)
    return held[0].future if len({id(item.future) for item in held}) == 1 else None


def held_blocks(run: list[Any]) -> list[Held]:
    """The held blocks of a run; empty if its items are something else."""
    held = [item for item in map(_block, run) if isinstance(item, Held)]
    return held if len(held) == len(run) else []


def _block(item: Any) -> Any:
    """An item without what is beside its block."""
    return item[0] if isinstance(item, list) and item else item
