"""Workers of a Dask cluster as an executor, by the public API of `distributed.Client` alone.

Chunks are read and blocks are kept where calls run; a call works on a run of items, so that the blocks of a run lie
together and a step over them moves nothing but sums. All that calls need is a result of other calls, which Dask makes
again where a worker is lost; only rows that this process sends cannot be.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import dask

from streamkm.core.exceptions import ClusterError
from streamkm.engine import dask_tasks as calls
from streamkm.engine.base import Executor, Joining, Outputs, Waiting
from streamkm.engine.dask_handles import Apart, Call, Held, Pair, encode
from streamkm.engine.reduction import RUNS, run_lengths, runs_of
from streamkm.engine.turns import Reading, Turns
from streamkm.sources.base import Chunk, GraphSource, Rows, RowSource

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between looks at which workers there are
GATHER_SECONDS = 15.0  # for a result to come over the network, at first; each further try takes twice as long
SEND_SECONDS = 15.0  # for a worker to take rows, at first; each further try may take twice as long
SEND_TIMES = 5  # tries to send rows, each to another worker, before a fit is given up
NO_WORKERS_SECONDS = 600.0  # without any worker before a fit is given up, unless Dask's setting says otherwise


class DaskCluster(Executor):
    """Workers of a `distributed.Client`; what is held stays on them.

    Parameters
    ----------
    client : distributed.Client

    Notes
    -----
    A pass over n chunks is some n / 16 calls with two more each, which hand out the small part of what a call gives;
    a step over held blocks is n / 16 calls and n / 112 joins. Keys are ``("stage-token", number)``, so the dashboard
    groups them by stage.
    """

    joins_here = False

    def __init__(self, client: Any):
        self._client = client
        self._token = secrets.token_hex(4)
        self._ids = itertools.count()
        self._futures: weakref.WeakSet[Any] = weakref.WeakSet()
        self._sends = False
        self._reading: Reading | None = None  # of the items that workers read next,
        self._placed = True  # where this process says, as nothing that they need lies anywhere
        self._n_threads: dict[str, int] = {}  # of workers, by their addresses
        self._looked = self._last_seen = time.monotonic()
        self.n_workers = 1
        self._look()

    def cancel(self) -> None:
        """Give up all that was started or held, also what an error's traceback still refers to."""
        # not Client.cancel: the scheduler ends the connection where a call is cancelled by itself and by what it needs
        if self._client.status == "running":
            for future in list(self._futures):
                future.release()

    def items(self, source: RowSource, target_bytes: int) -> Iterator[tuple[Any, int | None]]:
        """As of any executor; rows that are read here are sent, chunks of Dask arrays come with their graphs."""
        if source.streams or source.in_process:
            for rows in source.stream(target_bytes):
                yield self._sent(calls.measurable(rows)), len(rows.places)
            return
        chunks = source.chunks(target_bytes)
        largest = max((chunk.n_bytes for chunk in chunks), default=0)
        self._reading, self._placed = Reading(len(chunks), largest, source.shared_bytes), True
        make = self._graph_items(source) if isinstance(source, GraphSource) else lambda chunk: chunk
        for chunk in chunks:
            yield make(chunk), None if source.n_rows is None else chunk.stop - chunk.start

    def _sent(self, rows: Rows) -> Any:
        """Send rows as data, as inside the task graph they would stay on the scheduler; to another worker if one dies.

        Raises
        ------
        ClusterError
            As `_look`; the scheduler answers, but workers do not take the rows.
        """
        key = (f"rows-{self._token}", next(self._ids))  # one for all tries: two that arrive are the same rows
        seconds = SEND_SECONDS
        for _ in range(SEND_TIMES):
            with self._explained():
                try:
                    sending = self._client.scatter({key: rows}, hash=False, asynchronous=True)
                    future = self._client.sync(asyncio.wait_for, sending, seconds)[key]
                except (OSError, KeyError) as error:  # a worker is gone, maybe with rows that it took, or says nothing
                    failed, seconds = error, 2 * seconds
                    self._look()
                    continue
            self._sends = True
            return self._kept(future)
        raise ClusterError(
            f"workers of {self._address()} did not take rows that this process sent to them, {SEND_TIMES} times "
            f"({' '.join(str(failed).split()) or 'no answer'}); see that they run, and fit again"
        ) from failed

    def for_calls(self, source: RowSource) -> RowSource:
        return source.stand_in() if source.in_process or isinstance(source, GraphSource) else source

    def _graph_items(self, source: GraphSource) -> Callable[[Chunk], tuple[Chunk, Any, list[Any]]]:
        """Make chunks items: with their graphs, and futures of what these need beside.

        What several chunks need is computed by calls of its own, when the first chunk needs it, and given up after the
        last one; workers keep it until those chunks are done with it.
        """
        graphs = source.graphs()
        self._placed = not graphs.futures
        left = dict(graphs.n_users)
        started: dict[Any, Any] = {}

        def start(key: Any) -> Any:
            tasks, inputs = graphs.of_several([key], started)
            known = {each: graphs.futures[each] if each in graphs.futures else started[each] for each in inputs}
            with self._explained(), _any_size():
                return self._kept(self._client.get({**tasks, **known}, [key], sync=False)[0])

        def item(chunk: Chunk) -> tuple[Chunk, Any, list[Any]]:
            block, inputs = source.packed(chunk)
            futures = []
            for key in inputs:
                if key in graphs.futures:
                    futures.append(graphs.futures[key])
                    continue
                if key not in started:
                    started[key] = start(key)
                futures.append(started[key])
                left[key] -= 1
                if left[key] == 0:
                    del started[key]
            return chunk, block, futures

        return item

    def share(self, value: Any) -> Any:
        """Bring a value to the workers: once through the scheduler, from worker to worker from there on.

        The value is a task's result, not scattered data: it is made again if the only worker that has it is lost.
        """
        packed = cloudpickle.dumps(value)
        return self._submit("share", calls.unpacked, packed)

    def map(
        self, stage: str, function: Callable[..., Any], items: Iterable[Any], *shared: Any, large: bool = False
    ) -> Iterator[Any]:
        items, reading = self._begun(items)
        turns = self._turns(reading, 0 if reading is None else reading.n_chunks, large=large)

        def start(item: Any) -> Waiting:
            place = self._place(turns, 1) if turns.stretch > 1 else None
            return Call(self, self._submit(stage, calls.work, function, encode(item), *shared, place=place))

        yield from self._ordered(items, start, self._n_busy(turns))

    def hold(
        self, stage: str, function: Callable[..., tuple[Any, Any]], items: Iterable[Any], *shared: Any
    ) -> Iterator[tuple[Any, Any]]:
        """Call a function on items and keep what it gives; see `Executor.hold`.

        Chunks that workers read are called in the runs that `fold` will carry its states over, by the worker that has
        the fewest so far: one that holds more than others would be waited for in every step over them. Where that
        worker is gone, or others are idle while it has calls waiting, Dask moves them. Rows that were sent are called
        one by one where they are, as a run of them would have to lie on one worker.
        """
        items, reading = self._begun(items)
        lengths = [] if reading is None else run_lengths(reading.n_chunks, RUNS)
        turns = self._turns(reading, len(lengths))

        def start(run: list[Any]) -> Waiting:
            place = None if reading is None else self._place(turns, len(run))
            return self._pair(stage, calls.work_each, function, [encode(item) for item in run], *shared, place=place)

        for kept, infos in self._ordered(runs_of(items, lengths), start, self._n_busy(turns)):
            for index, info in enumerate(infos):
                yield Held(kept, index), info

    def _carried(
        self,
        stage: str,
        step: Callable[..., Any],
        runs: Iterable[list[Any]],
        n_runs: int,
        wanted: Outputs,
        *shared: Any,
    ) -> Iterator[tuple[Any, Sequence[Any]]]:
        runs, reading = self._begun(runs)
        turns = self._turns(reading, n_runs)

        def start(run: list[Any]) -> Waiting:
            self._bring_together(run)
            encoded = [encode(item) for item in run]
            place = None if reading is None else self._place(turns, len(run))
            if wanted == "dropped":
                call = self._submit(stage, calls.work_on_state, encoded, step, *shared, place=place)
                return Call(self, call, fetch=False)
            if wanted == "returned":
                return self._pair(stage, calls.work_on_run, encoded, step, *shared, place=place)
            both = self._submit(stage, calls.work_on_run, encoded, step, *shared, place=place)
            outputs = self._submit(f"{stage}-held", calls.part, both, 1)
            state = Call(self, self._submit(f"{stage}-kept", calls.part, both, 0), fetch=False)
            return Apart(state, outputs, len(run))

        for started in self._ordered(runs, start, self._n_busy(turns)):
            yield (started, ()) if wanted == "dropped" else started

    def _begun(self, items: Iterable[Any]) -> tuple[Iterator[Any], Reading | None]:
        """Items, and what is known of them if workers read them: a source's say so once they begin."""
        self._reading = None
        iterator = iter(items)
        first = list(itertools.islice(iterator, 1))
        return itertools.chain(first, iterator), self._reading

    def _turns(self, reading: Reading | None, n_calls: int, *, large: bool = False) -> Turns:
        if reading is None or not self._placed:
            return Turns()
        return Turns(reading.stretch(n_calls, len(self._n_threads), large=large))

    def _n_busy(self, turns: Turns) -> int:
        """Calls that all workers are at, or have before them in their stretches."""
        return turns.stretch * len(self._n_threads) if turns.stretch > 1 else 1

    def _place(self, turns: Turns, n_items: int) -> str | None:
        return turns.place(self._n_threads, n_items) if self._n_threads and self._placed else None

    def _fetch(self, handle: Any) -> Any:
        return Call(self, handle).result() if hasattr(handle, "status") else handle

    def _submit(self, stage: str, function: Callable[..., Any], *args: Any, place: str | None = None) -> Any:
        """Start a call, on the worker with the address `place` if it can be."""
        key = (f"{stage}-{self._token}", next(self._ids))
        where: dict[str, Any] = {} if place is None else {"workers": [place], "allow_other_workers": True}
        # Dask would run calls that are started within 100 ms in any order; neighbours are to follow each other
        where["fifo_timeout"] = 0
        with self._explained(), _any_size():
            return self._kept(self._client.submit(function, *args, key=key, pure=False, **where))

    def _pair(self, stage: str, function: Callable[..., Any], *args: Any, place: str | None = None) -> Waiting:
        both = self._submit(stage, function, *args, place=place)
        return Pair(
            self._submit(f"{stage}-kept", calls.part, both, 0),
            Call(self, self._submit(f"{stage}-told", calls.part, both, 1)),
        )

    def _joiner(self, stage: str, joining: Joining[Any], shared: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
        # workers keep what they made
        return lambda states: self._submit(f"{stage}-join", joining.combine, states, *shared)

    def _kept(self, future: Any) -> Any:
        self._futures.add(future)
        return future

    def _bring_together(self, run: list[Any]) -> None:
        """Put held blocks of one run on one worker, once, if they were made apart."""
        held = [item for item in run if isinstance(item, Held)]
        if len(held) < len(run) or len({id(item.future) for item in held}) == 1:
            return
        together = self._submit("gather", calls.decoded, [encode(item) for item in held])
        for index, item in enumerate(held):
            item.future, item.index = together, index

    def _n_workers_now(self) -> int:
        if time.monotonic() > self._looked + LOOK_SECONDS:
            self._look()
        return self.n_workers

    def _look(self) -> None:
        """Look which workers there are; give up where there have been none for long.

        Raises
        ------
        ClusterError
            The scheduler does not answer; no worker for so long as Dask's setting
            ``distributed.scheduler.no-workers-timeout`` says, or ten minutes.
        """
        try:
            self._n_threads = dict(self._client.nthreads())
        except OSError as error:
            raise self._out_of_reach(error) from error
        self._looked = time.monotonic()
        if self._n_threads:
            self._last_seen, self.n_workers = self._looked, sum(self._n_threads.values())
            return
        setting = dask.config.get("distributed.scheduler.no-workers-timeout", None)
        limit = NO_WORKERS_SECONDS if setting is None else dask.utils.parse_timedelta(setting)
        if self._looked > self._last_seen + limit:
            raise ClusterError(
                f"no worker has been connected to {self._address()} for {limit:.0f} s; start workers and fit again, or "
                f"raise Dask's setting distributed.scheduler.no-workers-timeout"
            )

    def finish(self, future: Any, *, fetch: bool) -> Any:
        """Wait for a call; give its result, or where it is."""
        from distributed import wait

        gather_seconds = GATHER_SECONDS
        with self._explained():
            while True:
                try:
                    if future.status not in ("finished", "error"):
                        with self._client.as_current():
                            wait(future, timeout=LOOK_SECONDS)
                    if not fetch and future.status == "finished":
                        return future
                    if fetch and future.status == "finished":
                        return future.result(timeout=gather_seconds)
                except TimeoutError:  # not the call's own: that is raised below
                    if future.status == "finished":
                        gather_seconds *= 2
                    self._look()
                if future.status == "error":
                    return future.result()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what Dask raises of the cluster into a ClusterError; errors of calls pass."""
        from distributed import CancelledError, KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            yield
        except KilledWorker as error:
            raise ClusterError(
                f"{error.allowed_failures + 1} workers of {self._address()} were lost while they ran {error.task}, the "
                f"last {error.last_worker.address}; their logs say why. If it was memory, give workers more memory, or "
                f"fit with a smaller chunk_bytes"
            ) from error
        except CommClosedError as error:
            raise self._out_of_reach(error) from error
        except CancelledError as error:
            if "scheduler-" in str(error):  # its connection was lost, or it was restarted
                raise self._out_of_reach(error) from error
            if self._sends:
                raise ClusterError(
                    f"a worker of {self._address()} was lost, and rows that this process had sent to it; fit again, or "
                    f"fit data that workers read themselves (a path, a Dask array), which lost workers do no harm"
                ) from error
            raise ClusterError(f"work was cancelled on {self._address()} by another program: {error}") from error

    def _out_of_reach(self, error: BaseException) -> ClusterError:
        reason = " ".join(str(error).split())
        return ClusterError(
            f"lost the scheduler {self._address()} ({reason}); see that it runs and can be reached, and fit again"
        )

    def _address(self) -> str:
        return str(self._client.scheduler.address)


def _any_size() -> Any:
    """Hold back Dask's warning of data in calls: here they are what is shared, or what the user put in a graph."""
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"})
