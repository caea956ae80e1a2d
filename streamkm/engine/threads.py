"""Threads of this process as an executor."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from streamkm.engine.base import Carried, Executor, Joining, Outputs, Runs
from streamkm.engine.reduction import fold_run

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STATES_AHEAD = 1  # runs that are started beyond those that threads are at: each leaves a state, which may be large


class LocalThreads(Executor):
    """Threads of this process; kernels and BLAS calls release the interpreter lock.

    A plain pool costs some 12 microseconds a call, Dask's threaded scheduler some 70 (2,000 empty calls, two threads).
    The latter also builds the whole graph first, and cannot wait until earlier results are taken.
    """

    joins_here = True

    def __init__(self, pool: ThreadPoolExecutor, n_workers: int):
        self._pool = pool
        self.n_workers = n_workers

    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> Future[Any]:
        return _start(self._pool, function, *args)

    def share(self, value: Any) -> Any:
        return value

    def hold(
        self,
        stage: str,
        function: Callable[..., tuple[Any, Any]],
        items: Iterable[Any],
        *shared: Any,
        joining: Joining[Any] | None = None,
        once: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """See `Executor.hold`; infos are here already."""
        return self.map(stage, function, items, *shared)

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

        helpers = [_start(self._pool, work) for _ in range(min(self.n_workers, len(items)) - 1)]
        work()
        for helper in helpers:
            if not helper.cancel():  # it did begin
                helper.result()
        return results

    def _carried(
        self,
        stage: str,
        step: Callable[..., Any],
        joining: Joining[Any],
        runs: Runs,
        wanted: Outputs,
        *shared: Any,
    ) -> Iterator[Carried]:
        started = self._ordered(
            runs.items, lambda run: self._submit(stage, fold_run, run, step, *shared), n_ahead=STATES_AHEAD
        )
        for state, outputs in started:
            yield Carried(((0, state),), 1, () if wanted == "dropped" else outputs)

    def _joiner(self, stage: str, joining: Joining[Any], shared: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
        return joining.pairwise(*shared)


def _start(pool: ThreadPoolExecutor, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
    """Have a pool call a function; once the main thread has ended, pools take nothing, and this thread calls it."""
    try:
        return pool.submit(function, *args, **kwargs)
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):
            raise
    _say_once()
    future: Future[Result] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - as the pool would
        future.set_exception(error)
    return future


@cache
def _say_once() -> None:
    logger.warning("the main thread has ended, and pools of threads with it: one thread does the rest")
