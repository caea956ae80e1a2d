"""What an executor is: work over items in order, with sums carried along a fixed tree.

`map` gives results back in order; `hold` leaves the large part of each result where it was made; `fold` carries sums
along runs of items. Runs and the tree that joins them depend on the number of items alone, so sums are bit-identical
whatever the executor, the number of workers and the order of completion. Few results are in flight at a time.
Knows nothing of sketches, clusters or files.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from streamkm.engine.reduction import FEW_RUNS, RUNS, JoinTree, run_lengths, runs_of
from streamkm.sources.base import RowSource

State = TypeVar("State")
Large = Literal["state", "items"] | None  # what takes the memory of a fold
Outputs = Literal["dropped", "returned", "held"]  # of a fold: dropped, returned, or held with handles returned


@dataclass(frozen=True, slots=True)
class Folded(Generic[State]):
    """Progress of a fold."""

    n_items: int  # done: whole runs
    # of the tree that joins states, bottom first: how many states were joined, and those that wait to be joined
    levels: tuple[tuple[int, tuple[State, ...]], ...]


@dataclass(frozen=True, slots=True)
class Listener(Generic[State]):
    """Callbacks of a fold, and the progress from which it continues."""

    on_output: Callable[[Any], None] | None = None  # gets the outputs, in order
    begun: Folded[State] | None = None  # progress of an earlier run, whose items are left out
    # called after each run with a function that returns the progress, and whether it was the last run
    on_run: Callable[[Callable[[], Folded[State]], bool], None] | None = None
    held: bool = False  # whether `on_output` gets handles of the outputs, which stay where they were made


@dataclass(frozen=True, slots=True)
class Joining(Generic[State]):
    """Functions that join states."""

    # takes a sequence of states and the shared values; changes no state. It must add from the left: joining (a, b, c)
    # is joining (a, b) and then c
    combine: Callable[..., State]
    absorb: Callable[..., State] | None = None  # joins two states in the memory of the first; takes the shared values

    def pairwise(self, *shared: Any) -> Callable[[list[Any]], State]:
        """The function that joins a list of states, of which it may change the first, one by one."""
        if self.absorb is None:
            return lambda states: self.combine(states, *shared)
        absorb = self.absorb
        return partial(reduce, lambda first, second: absorb(first, second, *shared))


@dataclass(frozen=True, slots=True)
class Runs:
    """Consecutive runs of a fold."""

    items: Iterable[list[Any]]  # of each run
    first: int  # number of the first run, counted from the first item of all
    total: int | None  # how many runs all items make; None if that is not known


@dataclass(frozen=True, slots=True)
class Carried:
    """The result of a call of a fold for its runs."""

    states: Sequence[tuple[int, Any]]  # level of each subtree of the tree that joins states, and its state or handle
    n_runs: int
    outputs: Sequence[Any]  # of all items, or their handles; empty if they were dropped


class Waiting(Protocol):
    """A call that was started."""

    def result(self) -> Any:
        """Wait for the result, and return it."""

    def cancel(self) -> Any:
        """Cancel the call."""


class Executor(ABC):
    """Runs functions over items."""

    n_workers: int  # functions that run at the same time
    joins_here: ClassVar[bool]  # whether the caller's thread joins states; else a call does

    @abstractmethod
    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> Waiting:
        """Start one call."""

    def items(self, source: RowSource, target_bytes: int) -> Iterator[tuple[Any, int | None]]:
        """Items of a source for calls that read, each with its number of rows where that is known without reading.

        Items are chunks, or rows where the source only streams. Executors make the items because they differ in what
        travels with a chunk: nothing, its rows, or the graph that makes them. `passes.reader` alone reads them.
        """
        if source.streams:
            for rows in source.stream(target_bytes):
                yield rows, len(rows.places)
        else:
            for chunk in source.chunks(target_bytes):
                yield chunk, None if source.n_rows is None else chunk.stop - chunk.start

    def handles(self) -> MutableSequence[Any]:
        """An empty sequence for handles, in order; of what a cluster holds, it takes no memory a handle."""
        return []

    def for_calls(self, source: RowSource) -> RowSource:
        """The source as calls get it: a `RemoteView` where its rows come as items."""
        return source

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Send a value that many calls need to where they run; returns the argument to pass to them."""

    def everywhere(self, stage: str, function: Callable[[Any], object], item: Any) -> None:
        """Call ``function(item)`` once in each process that works now; wait for all."""
        function(item)

    @abstractmethod
    def hold(
        self,
        stage: str,
        function: Callable[..., tuple[Any, Any]],
        items: Iterable[Any],
        *shared: Any,
        joining: Joining[Any] | None = None,
        once: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """Call ``function(item, *shared) -> (kept, info)``; yield ``(handle of kept, info)`` in order.

        A handle may be an item of later calls; those get what was kept. `joining`: of infos of consecutive items. The
        workers of a cluster join them before they are sent: a joined info comes with the last of its items, and None
        with the others. `once`: whether a cluster joins all infos into one; else it joins those of each call.
        """

    @abstractmethod
    def _joiner(self, stage: str, joining: Joining[Any], shared: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
        """The function that joins a few states, in order, into one."""

    def map(
        self, stage: str, function: Callable[..., Any], items: Iterable[Any], *shared: Any, large: bool = False
    ) -> Iterator[Any]:
        """Yield ``function(item, *shared)`` in the order of the items.

        `large`: whether results are as large as what is read for them, so that few may wait.
        """
        return self._ordered(items, lambda item: self._submit(stage, function, item, *shared))

    def each(self, stage: str, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """Return ``function(item, *shared)`` for every item, in order, once all are done; for short calls."""
        return list(self.map(stage, function, items, *shared))

    def fold(
        self,
        stage: str,
        step: Callable[..., tuple[State, Any]],
        joining: Joining[State],
        items: Iterable[Any],
        n_items: int,
        *shared: Any,
        large: Large = None,
        listener: Listener[State] | None = None,
    ) -> State:
        """Carry a state over all items: ``state, output = step(state or None, item, *shared)``.

        Items are cut into runs of consecutive items, each carried by one call; the states of eight runs at a time are
        joined, in order. Outputs go to the listener in order. `n_items`: length of `items`, at least 1. `large`:
        "state": a state takes more memory than an item, so runs are longer. "items": each item is a run. Items are then
        rows of a source that streams, of which a whole run would wait in memory, or chunks that are read fastest one
        after the other.
        """
        listener = listener or Listener()
        tree = JoinTree(self._joiner(stage, joining, shared), eager=self.joins_here)
        n_runs = {"items": n_items, "state": FEW_RUNS, None: RUNS}[large]
        n_done, first, lengths = 0, 0, run_lengths(n_items, n_runs)
        if listener.begun is not None:
            n_done = listener.begun.n_items
            tree.restore(listener.begun.levels)
            first = list(itertools.accumulate(lengths, initial=0)).index(n_done)
        runs = Runs(runs_of(itertools.islice(items, n_done, None), lengths[first:]), first, len(lengths))

        def folded() -> Folded[State]:
            return Folded(n_done, tree.levels(self._fetch))

        wanted: Outputs = "dropped" if listener.on_output is None else "held" if listener.held else "returned"
        left = iter(lengths[first:])
        for carried in self._carried(stage, step, joining, runs, wanted, *shared):
            for level, state in carried.states:
                tree.add(state, level)
            n_done += sum(itertools.islice(left, carried.n_runs))
            for output in carried.outputs:
                if listener.on_output is not None:
                    listener.on_output(output)
            if listener.on_run is not None:
                listener.on_run(folded, n_done == n_items)
        return self._fetch(tree.total())

    @abstractmethod
    def _carried(
        self,
        stage: str,
        step: Callable[..., Any],
        joining: Joining[Any],
        runs: Runs,
        wanted: Outputs,
        *shared: Any,
    ) -> Iterator[Carried]:
        """Carry a state over each run; yield states and outputs in order, those of one or several runs at a time."""

    def values(self, handles: Iterable[Any]) -> Iterator[Any]:
        """Yield what handles stand for, in order; all values that one call has left come to this process at once."""
        yield from handles

    def _fetch(self, handle: Any) -> Any:
        return handle

    def _n_workers_now(self) -> int:
        """Number of workers that calls in flight should keep busy; workers may come and go."""
        return self.n_workers

    def _ordered(
        self, items: Iterable[Any], start: Callable[[Any], Waiting], n_busy: int = 1, n_ahead: int | None = None
    ) -> Iterator[Any]:
        """Start a few more calls than the workers run, at least `n_busy`; wait for them in order.

        `n_ahead`: calls to start ahead; given where each result takes much memory.
        """
        ahead: deque[Waiting] = deque()
        try:
            for item in items:
                ahead.append(start(item))
                busy = max(n_busy, self._n_workers_now())
                if len(ahead) >= busy + (max(2, busy // 2) if n_ahead is None else n_ahead):
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for waiting in ahead:  # a call failed, or the consumer stopped: cancel what was started
                waiting.cancel()
