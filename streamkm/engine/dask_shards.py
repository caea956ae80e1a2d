"""Cuts what a pass works on into shards: consecutive runs of items that one call on a cluster goes through.

A pass then takes a few calls a thread, however many chunks there are. Each call reads its chunks itself, or works on
blocks that one earlier call has left on its worker. Knows nothing of Dask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from streamkm.engine.dask_handles import Held

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

    Parameters
    ----------
    runs : iterable of list
        Items of each run, from run `first` on.
    stop : callable
        Where a shard ends at the latest, by its first run.
    may_read : bool
        Whether items are chunks that workers read. Else runs are put together if their blocks lie in one future; any
        other run is a shard.
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
