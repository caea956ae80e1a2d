"""Where work runs: threads of this process, or a Dask cluster. The only module that knows which.

Work is a function over items in order. `map` gives the results back in order; `hold` leaves the large part of each
result where it was made; `fold` carries sums along runs of items. Runs and the tree that joins them depend on the
number of items alone, so sums are bit-identical whatever the executor, the number of workers and the order of
completion. Few results are in flight at a time. May import sources and below; never knows about sketches, clusters or
files.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from threadpoolctl import threadpool_limits

from streamkm.errors import InvalidParameterError
from streamkm.sources.base import ChunkedSource, RowSource

logger = logging.getLogger(__name__)

State = TypeVar("State")

RUNS = 24  # runs that a short list of items is folded in: enough for 24 workers
FEW_RUNS = 8  # the same where a state is larger than the items: making and joining states would cost more than the work
RUN_LENGTH = 16  # items a run of a long list has at most
ARITY = 8  # states joined at once


@dataclass(frozen=True, slots=True)
class Folded(Generic[State]):
    """How far a fold has come.

    Attributes
    ----------
    n_items : int
        Items done: whole runs.
    levels : tuple of (int, tuple of states)
        Of the tree that joins them, bottom first: how many were joined, and what is waiting.
    """

    n_items: int
    levels: tuple[tuple[int, tuple[State, ...]], ...]


@dataclass(frozen=True, slots=True)
class Listener(Generic[State]):
    """Who wants to know how a fold goes, and where it is to go on.

    Attributes
    ----------
    on_output : callable, optional
        Gets the outputs, in order.
    begun : Folded, optional
        What was done before: its items are not called for again.
    on_run : callable, optional
        Called after each run with a function that gives what was done so far.
    """

    on_output: Callable[[Any], None] | None = None
    begun: Folded[State] | None = None
    on_run: Callable[[Callable[[], Folded[State]]], None] | None = None


class _Waiting(Protocol):
    def result(self) -> Any: ...

    def cancel(self) -> Any: ...


class Executor(ABC):
    """Runs functions over items.

    Attributes
    ----------
    n_workers : int
        Functions that run at the same time.
    joins_here : bool
        Whether states are joined by the caller's thread, and not by a call that has its price.
    """

    n_workers: int
    joins_here: ClassVar[bool]

    @abstractmethod
    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> _Waiting:
        """Start one call."""

    def items(self, source: RowSource, target_bytes: int) -> Iterator[tuple[Any, int | None]]:
        """Items of a source for calls that read, each with its number of rows where that is known without reading.

        Chunks to be read anywhere, or rows where the source only streams.
        """
        if isinstance(source, ChunkedSource):
            for chunk in source.chunks(target_bytes):
                yield chunk, None if source.n_rows is None else chunk.stop - chunk.start
        else:
            for rows in source.stream(target_bytes):
                yield rows, len(rows.places)

    def for_calls(self, source: RowSource) -> RowSource:
        """What calls need of a source: the source, or a stand-in where its rows come as items."""
        return source

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Bring a value that many calls need to where they run; pass what this returns as their argument."""

    @abstractmethod
    def hold(
        self, stage: str, function: Callable[..., tuple[Any, Any]], items: Iterable[Any], *shared: Any
    ) -> Iterator[tuple[Any, Any]]:
        """Call ``function(item, *shared) -> (kept, info)``; yield ``(handle of kept, info)`` in order.

        A handle may be an item of later calls; those get what was kept.
        """

    @abstractmethod
    def _join(self, stage: str, combine: Callable[[Sequence[State]], State], states: list[Any]) -> Any:
        """Join a few states, in order, into one."""

    def map(self, stage: str, function: Callable[..., Any], items: Iterable[Any], *shared: Any) -> Iterator[Any]:
        """Yield ``function(item, *shared)`` in the order of the items."""
        return self._ordered(items, lambda item: self._submit(stage, function, item, *shared))

    def fold(
        self,
        stage: str,
        step: Callable[..., tuple[State, Any]],
        combine: Callable[[Sequence[State]], State],
        items: Iterable[Any],
        n_items: int,
        *shared: Any,
        large_state: bool = False,
        listener: Listener[State] | None = None,
    ) -> State:
        """Carry a state over all items: ``state, output = step(state or None, item, *shared)``.

        Items are cut into runs of consecutive items, each carried by one call; `combine` joins the states of eight runs
        at a time, in order. It must add from the left: joining (a, b, c) is joining (a, b) and then c. Outputs go to
        the listener in order.

        Parameters
        ----------
        n_items : int
            Length of `items`, at least 1.
        large_state : bool
            Whether a state takes more memory than an item; runs are longer then.
        listener : Listener, optional
        """
        listener = listener or Listener()
        tree = _Tree(lambda states: self._join(stage, combine, states), eager=self.joins_here)
        n_done = 0
        if listener.begun is not None:
            n_done = listener.begun.n_items
            tree.restore(listener.begun.levels)
        runs = _runs(itertools.islice(items, n_done, None), run_length(n_items, FEW_RUNS if large_state else RUNS))

        def folded() -> Folded[State]:
            return Folded(n_done, tree.levels(self._fetch))

        for handle, outputs in self.hold(stage, _fold_run, runs, step, *shared):
            tree.add(handle)
            n_done += len(outputs)
            for output in outputs:
                if listener.on_output is not None:
                    listener.on_output(output)
            if listener.on_run is not None:
                listener.on_run(folded)
        return self._fetch(tree.total())

    def _fetch(self, handle: Any) -> Any:
        return handle

    def _ordered(self, items: Iterable[Any], start: Callable[[Any], _Waiting]) -> Iterator[Any]:
        """Start calls a little ahead, wait for them in order."""
        ahead: deque[_Waiting] = deque()
        window = self.n_workers + max(2, self.n_workers // 2)
        try:
            for item in items:
                ahead.append(start(item))
                if len(ahead) >= window:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for waiting in ahead:  # somebody failed or stopped asking: do not work on for nobody
                waiting.cancel()


class LocalThreads(Executor):
    """Threads of this process; kernels and BLAS calls release the interpreter lock.

    A plain pool costs some 12 microseconds a call, Dask's threaded scheduler some 70 (2,000 calls that do nothing, two
    threads). That builds the whole graph first, too, and cannot hold back items whose results nobody has taken yet.
    """

    joins_here = True

    def __init__(self, pool: ThreadPoolExecutor, n_workers: int):
        self._pool = pool
        self.n_workers = n_workers

    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return self._pool.submit(function, *args)

    def share(self, value: Any) -> Any:
        return value

    def hold(
        self, stage: str, function: Callable[..., tuple[Any, Any]], items: Iterable[Any], *shared: Any
    ) -> Iterator[tuple[Any, Any]]:
        return self.map(stage, function, items, *shared)

    def _join(self, stage: str, combine: Callable[[Sequence[State]], State], states: list[Any]) -> Any:
        return combine(states)


class DaskCluster(Executor):
    """Workers of a `distributed.Client`; what is held stays on them as futures."""

    joins_here = False

    def __init__(self, client: Any):
        self._client = client
        self.n_workers = max(1, sum(client.nthreads().values()))
        self._ids = itertools.count()
        self._futures: weakref.WeakSet[Any] = weakref.WeakSet()

    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> _Waiting:
        key = f"{stage}-{id(self):x}-{next(self._ids)}"
        waiting: _Waiting = self._kept(self._client.submit(function, *args, key=key, pure=False))
        return waiting

    def _kept(self, future: Any) -> Any:
        self._futures.add(future)
        return future

    def cancel(self) -> None:
        """Give up all that was started or held, also what an error's traceback still refers to."""
        self._client.cancel(list(self._futures), force=True)

    def items(self, source: RowSource, target_bytes: int) -> Iterator[tuple[Any, int | None]]:
        """As of any executor; rows that this process holds are sent, blocks of Dask arrays come as (chunk, future)."""
        if source.in_process:
            for rows in source.stream(target_bytes):
                # sent as data: inside the task graph they would pass the scheduler
                (future,) = self._client.scatter([rows], hash=False)
                yield self._kept(future), len(rows.places)
        elif isinstance(source, ChunkedSource) and hasattr(source, "delayed"):
            for chunk in source.chunks(target_bytes):
                n_rows = None if source.n_rows is None else chunk.stop - chunk.start
                yield (chunk, self._kept(self._client.compute(source.delayed(chunk)))), n_rows
        else:
            yield from super().items(source, target_bytes)

    def for_calls(self, source: RowSource) -> RowSource:
        return source.stand_in() if source.in_process or hasattr(source, "delayed") else source

    def share(self, value: Any) -> Any:
        (future,) = self._client.scatter([value], broadcast=True, hash=False)  # a tuple alone would be taken apart
        return self._kept(future)

    def hold(
        self, stage: str, function: Callable[..., tuple[Any, Any]], items: Iterable[Any], *shared: Any
    ) -> Iterator[tuple[Any, Any]]:
        def start(item: Any) -> _Pair:
            both = self._submit(stage, function, item, *shared)
            return _Pair(self._submit(stage, _part, both, 0), self._submit(stage, _part, both, 1))

        return self._ordered(items, start)

    def _join(self, stage: str, combine: Callable[[Sequence[State]], State], states: list[Any]) -> Any:
        return self._submit(stage, combine, states)

    def _fetch(self, handle: Any) -> Any:
        return handle.result()


class _Pair:
    """A held result: the large part stays a future, the small part is waited for."""

    def __init__(self, kept: _Waiting, info: _Waiting):
        self._kept, self._info = kept, info

    def result(self) -> tuple[_Waiting, Any]:
        return self._kept, self._info.result()

    def cancel(self) -> None:
        self._kept.cancel()
        self._info.cancel()


class _Tree:
    """Joins states as they come, eight neighbours at a time, in a shape that depends on their number alone.

    Parameters
    ----------
    join : callable
        Of a list of states.
    eager : bool
        Whether to join neighbours one by one, as soon as there are two, instead of eight at once: the same sums in the
        same order, while others still work.
    """

    def __init__(self, join: Callable[[list[Any]], Any], *, eager: bool):
        self._join = join
        self._eager = eager
        self._levels: list[list[Any]] = []
        self._counts: list[int] = []

    def add(self, state: Any, level: int = 0) -> None:
        if level == len(self._levels):
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
        """What is in the tree, bottom first: states joined so far, and those that are waiting."""
        pairs = zip(self._counts, self._levels, strict=True)
        return tuple((count, tuple(map(fetch, waiting))) for count, waiting in pairs)

    def restore(self, levels: tuple[tuple[int, tuple[Any, ...]], ...]) -> None:
        """Put back what `levels` gave."""
        self._counts = [count for count, _ in levels]
        self._levels = [list(waiting) for _, waiting in levels]

    def total(self) -> Any:
        carried: list[Any] = []
        for waiting in self._levels:
            states = waiting + carried
            carried = [self._join(states)] if len(states) > 1 else states
        return carried[0]


def run_length(n_items: int, n_runs: int) -> int:
    """How many consecutive items one call of `fold` carries its state over."""
    return max(1, min(RUN_LENGTH, -(-n_items // n_runs)))


@contextmanager
def open_executor(executor: Any = "auto") -> Iterator[Executor]:
    """Give the executor that a parameter names, BLAS held to one thread while blocks run in parallel.

    Parameters
    ----------
    executor : "auto", int, or distributed.Client
        "auto": the active Dask client if there is one, else threads of this process: as many as Dask's setting
        ``num_workers`` says, if there is one, or as this process may use processors. An int: so many threads.

    Raises
    ------
    InvalidParameterError
        For anything else.
    """
    client = _active_client() if executor == "auto" else executor
    with threadpool_limits(1, user_api="blas"):
        if client is not None and hasattr(client, "submit") and hasattr(client, "scatter"):
            cluster = DaskCluster(client)
            try:
                yield cluster
            except BaseException:
                cluster.cancel()
                raise
            return
        n_threads = _thread_count() if executor == "auto" else executor
        if not isinstance(n_threads, int) or isinstance(n_threads, bool) or n_threads < 1:
            raise InvalidParameterError(
                f'executor={executor!r}; needed: "auto", a number of threads from 1, or a dask.distributed Client'
            )
        pool = ThreadPoolExecutor(n_threads, thread_name_prefix="streamkm")
        try:
            yield LocalThreads(pool, n_threads)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def local_executor(executor: Executor) -> Iterator[Executor]:
    """Threads of this process for work on sampled rows, whatever `executor` is; inside `open_executor`."""
    if isinstance(executor, LocalThreads):
        yield executor
        return
    with open_executor(_thread_count()) as here:
        yield here


def local_threads(executor: Any = "auto") -> int:
    """Threads of this process that `open_executor` would start for work on rows; 1 for a Dask cluster."""
    if executor == "auto":
        return 1 if _active_client() is not None else _thread_count()
    return max(1, executor) if isinstance(executor, int) else 1


def _active_client() -> Any:
    """The Dask client of this process, without importing distributed where nobody did."""
    import sys

    if "distributed" not in sys.modules:
        return None
    from distributed import get_client

    try:
        return get_client()
    except ValueError:  # its way to say that there is none
        return None


def _thread_count() -> int:
    """Dask's setting where somebody imported Dask, else the processors that this process may use."""
    import sys

    import joblib

    dask = sys.modules.get("dask")
    setting = None if dask is None else dask.config.get("num_workers", None)
    return int(setting or joblib.cpu_count())


def _runs(items: Iterable[Any], length: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while run := list(itertools.islice(iterator, length)):
        yield run


def _fold_run(run: list[Any], step: Callable[..., tuple[Any, Any]], *shared: Any) -> tuple[Any, list[Any]]:
    state, outputs = None, []
    for item in run:
        state, output = step(state, item, *shared)
        outputs.append(output)
    return state, outputs


def _part(both: tuple[Any, Any], which: int) -> Any:
    return both[which]
