"""Runs of items, and the tree that joins their states: both depend on the number of items alone.

A run is the work of one call. Runs are about equal, and their number is a multiple of 24 (of 8 for large states), so
that 2, 3, 4, 6 or 8 workers finish together. Knows nothing of executors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

RUNS = 24  # runs of a list, or a multiple of them: enough for 24 workers
FEW_RUNS = 8  # the same for states larger than the items, which cost more to make and join than the work
RUN_LENGTH = 16  # items a run has at most
ARITY = 8  # states joined at once
UNITS = 4  # subtrees of a shard, at least; shards are cut between subtrees


def count_runs(n_items: int, n_runs: int) -> int:
    """The number of runs: a multiple of `n_runs` with runs up to `RUN_LENGTH`, or one for each item of a short list."""
    return min(n_items, n_runs * -(-n_items // (n_runs * RUN_LENGTH)))


def run_length(n_items: int, n_runs: int) -> int:
    """The most items of a run, which is constant for long lists."""
    return max(1, min(RUN_LENGTH, -(-n_items // n_runs)))


def count_levels(n_runs: int) -> int:
    """Levels of the tree that joins the states of `n_runs` runs; if joined one by one, each level holds one state."""
    levels = 1
    while n_runs >= ARITY:
        n_runs, levels = n_runs // ARITY, levels + 1
    return levels


def run_lengths(n_items: int, n_runs: int) -> list[int]:
    """The number of items of each run; they differ by one at most."""
    count = count_runs(n_items, n_runs)
    return [(i + 1) * n_items // count - i * n_items // count for i in range(count)]


def runs_of(items: Iterable[Any], lengths: Sequence[int]) -> Iterator[list[Any]]:
    """Cut items into lists of these lengths; items that are left over come one by one."""
    iterator = iter(items)
    for length in itertools.chain(lengths, itertools.repeat(1)):
        run = list(itertools.islice(iterator, length))
        if not run:
            return
        yield run


def fold_run(run: list[Any], step: Callable[..., tuple[Any, Any]], *shared: Any) -> tuple[Any, list[Any]]:
    """Carry a state over a run; return it and the outputs."""
    state, outputs = None, []
    for item in run:
        state, output = step(state, item, *shared)
        outputs.append(output)
    return state, outputs


def shard_stop(first: int, n_runs: int, n_shards: int) -> int:
    """One past the last run of the shard that begins at run `first`, if all runs are cut into `n_shards`.

    Shards are cut between subtrees of the tree that joins states, so that few states leave a shard.
    """
    unit = 1
    while UNITS * ARITY * unit * n_shards <= n_runs:
        unit *= ARITY
    n_units = -(-n_runs // unit)
    index = first // unit * n_shards // n_units
    while index < n_shards and unit * (index * n_units // n_shards) <= first:
        index += 1
    return n_runs if index == n_shards else unit * (index * n_units // n_shards)


def subtree_levels(first: int, last: int) -> list[int]:
    """Levels of the fewest subtrees, in order, that join the states of runs `first` to `last` - 1."""
    levels = []
    while first < last:
        level = 0
        while first % ARITY ** (level + 1) == 0 and first + ARITY ** (level + 1) <= last:
            level += 1
        levels.append(level)
        first += ARITY**level
    return levels


def fold_shard(
    runs: Sequence[list[Any]],
    first: int,
    step: Callable[..., tuple[Any, Any]],
    join: Callable[[list[Any]], Any],
    *shared: Any,
) -> tuple[list[Any], list[Any]]:
    """Fold consecutive runs from run `first` on; return the states of `subtree_levels`, and all outputs."""
    outputs: list[Any] = []
    left = iter(runs)

    def subtree(level: int) -> Any:
        if level == 0:
            state, made = fold_run(next(left), step, *shared)
            outputs.extend(made)
            return state
        state = subtree(level - 1)
        for _ in range(ARITY - 1):
            state = join([state, subtree(level - 1)])
        return state

    return [subtree(level) for level in subtree_levels(first, first + len(runs))], outputs


def joiner(join: Callable[..., Any], shared: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
    """The function that joins a list of states from the left, and may change the first."""
    return lambda states: reduce(lambda first, second: join(first, second, *shared), states)


@dataclass(frozen=True, slots=True)
class Shard:
    """Consecutive runs of items: the number of the first, and the items of each."""

    first: int
    runs: list[list[Any]]

    @property
    def items(self) -> list[Any]:
        """The items of all runs."""
        return [item for run in self.runs for item in run]


def shards_of(
    runs: Iterable[list[Any]], first: int, stop: Callable[[int], float], place: Callable[[list[Any]], Any]
) -> Iterator[Shard]:
    """Cut runs, from number `first` on, into shards: neighbours with the same `place`, up to `stop(first)`.

    A run without a place is a shard of its own.
    """
    shard: list[list[Any]] = []
    last: Any = None
    for run in runs:
        here = place(run)
        if shard and here is not last:
            yield Shard(first, shard)
            first, shard = first + len(shard), []
        shard.append(run)
        last = here
        if here is None or first + len(shard) >= stop(first):
            yield Shard(first, shard)
            first, shard = first + len(shard), []
    if shard:
        yield Shard(first, shard)


class JoinTree:
    """Joins states as they come, eight neighbours at a time, in a shape that depends on their number alone.

    `eager` joins two neighbours as soon as there are two: the same sums in the same order, while others still work.
    """

    def __init__(self, join: Callable[[list[Any]], Any], *, eager: bool):
        self._join = join
        self._eager = eager
        self._levels: list[list[Any]] = []
        self._counts: list[int] = []

    def add(self, state: Any, level: int = 0) -> None:
        """Take the next state, of a run or of a subtree of this level; no state of a lower level may wait."""
        while level >= len(self._levels):
            self._levels.append([])
            self._counts.append(0)
        waiting = self._levels[level]
        waiting.append(state)
        self._counts[level] += 1
        if self._eager and len(waiting) > 1:
            waiting[:] = [self._join(waiting)]
        if self._counts[level] == ARITY:
            self._levels[level], self._counts[level] = [], 0
            self.add(waiting[0] if len(waiting) == 1 else self._join(waiting), level + 1)

    def levels(self, fetch: Callable[[Any], Any]) -> tuple[tuple[int, tuple[Any, ...]], ...]:
        """Levels of the tree, bottom first: the number of states that were joined, and those that wait."""
        pairs = zip(self._counts, self._levels, strict=True)
        return tuple((count, tuple(map(fetch, waiting))) for count, waiting in pairs)

    def restore(self, levels: tuple[tuple[int, tuple[Any, ...]], ...]) -> None:
        """Restore the result of `levels`."""
        self._counts = [count for count, _ in levels]
        self._levels = [list(waiting) for _, waiting in levels]

    def total(self) -> Any:
        """Join the states that wait; None if there was no state."""
        carried: list[Any] = []
        for waiting in self._levels:
            states = waiting + carried
            carried = [self._join(states)] if len(states) > 1 else states
        return carried[0] if carried else None
