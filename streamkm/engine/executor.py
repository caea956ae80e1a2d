"""The interface of executors, and threads as one: work over items in order, with states joined in a fixed tree.

The tree depends on the number of items alone, so sums are bit-identical for any executor, number of workers and order
of completion. States are joined by functions ``join(first, second, *shared)``, which may change the first. Knows
nothing of sketches, clusters or files.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from streamkm.engine.reduction import FEW_RUNS, RUNS, JoinTree, fold_run, joiner, run_lengths, runs_of
from streamkm.sources.row_source import RowSource

State = TypeVar("State")
Large = Literal["state", "items"] | None  # the large part of a fold's memory
Outputs = Literal["dropped", "returned", "held"]  # of a fold: dropped, returned, or held with handles returned


STATES_AHEAD = 1  # runs that are started beyond those that threads are at: each leaves a state, which may be large


@dataclass(frozen=True, slots=True)
class Folded(Generic[State]):
    """Progress of a fold."""

    n_items: int  # done: whole runs
    # of the tree that joins states, bottom first: how many states were joined, and those that wait to be joined
    levels: tuple[tuple[int, tuple[State, ...]], ...]


@dataclass(frozen=True, slots=True)
class Listener(Generic[State]):
    """Callbacks of a fold, and the progress from which it continues."""

    on_output: Callable[[Any], None] | None = None  # takes the outputs, in order
    held: bool = False  # whether it takes handles; the outputs stay on their workers
    begun: Folded[State] | None = None  # progress of an earlier run, whose items are left out
    # called after each run with a function that returns the progress, and whether it was the last run
    on_run: Callable[[Callable[[], Folded[State]], bool], None] | None = None


class Executor(ABC):
    """Runs functions over items."""

    n_workers: int  # functions that run at the same time
    joins_here: ClassVar[bool]  # whether the caller's thread joins states; else a call does

    @abstractmethod
    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> Any:
        """Start one call, which has the methods `result` and `cancel` of a future."""

    def items(self, source: RowSource, target_bytes: int) -> Iterator[tuple[Any, int | None]]:
        """Items of a source for calls that read, each with its number of rows if that is known without reading.

        Executors make the items because they differ in what travels with a chunk: nothing, its rows, or the graph that
        makes them. `passes.reader` alone reads items.
        """
        if source.access.streams:
            for rows in source.stream(target_bytes):
                yield rows, len(rows.row_ids)
        else:
            for chunk in source.chunks(target_bytes):
                yield chunk, None if source.n_rows is None else chunk.stop - chunk.start

    def for_calls(self, source: RowSource) -> RowSource:
        """The source as calls get it: a `RemoteView` if its rows come as items."""
        return source

    def share(self, value: Any) -> Any:
        """Send a value that many calls need to their machines; returns the argument to pass to the calls."""
        return value

    def everywhere(self, stage: str, function: Callable[[Any], object], item: Any) -> None:
        """Call ``function(item)`` once in each process that works now; wait for all."""
        function(item)

    def hold(
        self,
        stage: str,
        function: Callable[..., tuple[Any, Any]],
        items: Iterable[Any],
        *shared: Any,
        join: Callable[..., Any] | None = None,
        once: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """Call ``function(item, *shared) -> (kept, info)``; yield ``(handle of kept, info)`` in order.

        A handle may be an item of later calls, which get the kept value. `join` joins infos of consecutive items on the
        workers of a cluster: a joined info comes with the last of its items, and None with the others. A cluster joins
        the infos of each call, or all of them if `once`.
        """
        return self.map(stage, function, items, *shared)

    def _joiner(self, stage: str, join: Callable[..., Any], shared: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
        """The function that joins a few states, in order, in the memory of the first."""
        return joiner(join, shared)

    def map(
        self, stage: str, function: Callable[..., Any], items: Iterable[Any], *shared: Any, large: bool = False
    ) -> Iterator[Any]:
        """Yield ``function(item, *shared)`` in order; few results wait if they are as `large` as the items."""
        return self._ordered(items, lambda item: self._submit(stage, function, item, *shared))

    def each(self, stage: str, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """Return ``function(item, *shared)`` for every item, in order, once all are done; for short calls."""
        return list(self.map(stage, function, items, *shared))

    def fold(
        self,
        stage: str,
        step: Callable[..., tuple[State, Any]],
        join: Callable[..., State],
        items: Iterable[Any],
        n_items: int,
        *shared: Any,
        large: Large = None,
        listener: Listener[State] | None = None,
    ) -> State:
        """Carry a state over all `n_items` >= 1 items: ``state, output = step(state or None, item, *shared)``.

        Each call carries a state over a run of consecutive items; the states of eight runs at a time are joined, in
        order. `large`: "state" makes runs longer, for states that take more memory than an item. "items" makes each
        item a run, if a run of streamed rows would fill memory, or if chunks are read fastest one after the other.
        """
        listener = listener or Listener()
        tree = JoinTree(self._joiner(stage, join, shared), eager=self.joins_here)
        n_runs = {"items": n_items, "state": FEW_RUNS, None: RUNS}[large]
        n_done, first, lengths = 0, 0, run_lengths(n_items, n_runs)
        if listener.begun is not None:
            n_done = listener.begun.n_items
            tree.restore(listener.begun.levels)
            first = list(itertools.accumulate(lengths, initial=0)).index(n_done)
        runs = runs_of(itertools.islice(items, n_done, None), lengths[first:])

        def folded() -> Folded[State]:
            return Folded(n_done, tree.levels(self._fetch))

        wanted: Outputs = "dropped" if listener.on_output is None else "held" if listener.held else "returned"
        left = iter(lengths[first:])
        for states, count, outputs in self._carried(stage, step, join, runs, first, len(lengths), wanted, *shared):
            for level, state in states:
                tree.add(state, level)
            n_done += sum(itertools.islice(left, count))
            for output in outputs:
                if listener.on_output is not None:
                    listener.on_output(output)
            if listener.on_run is not None:
                listener.on_run(folded, n_done == n_items)
        return self._fetch(tree.total())

    def _carried(
        self,
        stage: str,
        step: Callable[..., Any],
        join: Callable[..., Any],
        runs: Iterable[list[Any]],
        first: int,
        total: int,
        wanted: Outputs,
        *shared: Any,
    ) -> Iterator[tuple[Iterable[tuple[int, Any]], int, Iterable[Any]]]:
        """Carry a state over each run, from number `first` of `total` on.

        Yields in order, for one or several runs: pairs of the level of a subtree and its state or handle, the number of
        runs, and outputs as `wanted`.
        """
        started = self._ordered(
            runs, lambda run: self._submit(stage, fold_run, run, step, *shared), n_ahead=STATES_AHEAD
        )
        for state, outputs in started:
            yield ((0, state),), 1, () if wanted == "dropped" else outputs

    def values(self, handles: Iterable[Any]) -> Iterator[Any]:
        """Yield the values of handles, in order; all values that one call has left come to this process at once."""
        yield from handles

    def _fetch(self, handle: Any) -> Any:
        return handle

    def _n_workers_now(self) -> int:
        """Number of workers that calls in flight should keep busy; it may change during a pass."""
        return self.n_workers

    def _ordered(
        self, items: Iterable[Any], start: Callable[[Any], Any], n_busy: int = 1, n_ahead: int | None = None
    ) -> Iterator[Any]:
        """Keep the workers' calls, at least `n_busy`, and a few or `n_ahead` more in flight; wait for them in order."""
        ahead: deque[Any] = deque()
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


class LocalThreads(Executor):
    """Threads of this process; kernels and BLAS calls release the interpreter lock.

    A plain pool costs 12 microseconds a call, Dask's threaded scheduler 70, and the latter cannot wait until results
    are taken.
    """

    joins_here = True

    def __init__(self, pool: ThreadPoolExecutor, n_workers: int):
        self._pool = pool
        self.n_workers = n_workers

    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return self._pool.submit(function, *args)

    def each(self, stage: str, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """See `Executor.each`; the caller's thread works too, and starts before the others have woken up."""
        results: list[Any] = [None] * len(items)
        numbers = iter(range(len(items)))  # each thread takes the next one

        def work() -> None:
            for number in numbers:
                try:
                    results[number] = function(items[number], *shared)
                except BaseException:
                    deque(numbers, maxlen=0)  # drain the iterator so that the other threads stop
                    raise

        helpers = [self._pool.submit(work) for _ in range(min(self.n_workers, len(items)) - 1)]
        work()
        for helper in helpers:
            if not helper.cancel():  # it did begin
                helper.result()
        return results
