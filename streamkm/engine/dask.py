"""Workers of a Dask cluster as an executor, by the public API of `distributed.Client` alone.

Each call works on a shard, which is many runs of items. The held blocks of a shard lie on one worker, so a step over
them moves sums only. If a worker is lost, Dask repeats the calls whose results it held; rows that this process sent
cannot be made again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from operator import getitem
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import dask
from dask.highlevelgraph import HighLevelGraph

from streamkm.core.exceptions import ClusterError
from streamkm.engine import dask_calls as calls
from streamkm.engine.dask_calls import Call, Held, encode, future_of, held_blocks
from streamkm.engine.dask_workers import (
    MOST_FILES,
    Reading,
    Turns,
    check_readable,
    check_workers,
    count_shards,
    out_of_reach,
)
from streamkm.engine.executor import Executor, Outputs
from streamkm.engine.reduction import RUNS, JoinTree, Shard, run_lengths, runs_of, shard_stop, shards_of, subtree_levels
from streamkm.sources.chunks import Chunk
from streamkm.sources.row_graphs import RowGraphs
from streamkm.sources.row_source import Rows, RowSource

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0  # between looks at which workers there are
GATHER_SECONDS = 15.0  # for a result to come over the network, at first; each further try takes twice as long
SEND_SECONDS = 15.0  # for a worker to take rows, at first; each further try may take twice as long
SEND_TIMES = 5  # tries to send rows, each to another worker, before a fit is given up
NO_WORKERS_SECONDS = 600.0  # without any worker before a fit is given up, unless Dask's setting says otherwise


class DaskCluster(Executor):
    """Workers of a `distributed.Client`; held blocks stay on them.

    A pass takes some three calls a thread, at least twelve, and one or two more for the small part of each result. Keys
    are ``("stage-token", number)``, so the dashboard groups them by stage.
    """

    joins_here = False

    def __init__(self, client: Any):
        self._client = client
        self._token = secrets.token_hex(4)
        self._ids = itertools.count()
        self._futures: weakref.WeakSet[Any] = weakref.WeakSet()
        self._sends = False
        self._reading: Reading | None = None  # of the items that workers read next,
        self._n_threads: dict[str, int] = {}  # of workers, by their addresses
        self._checked: set[str] = set()  # workers with the same software as this process
        self._files: set[str] = set()  # that workers were asked for
        self._looked = self._last_seen = time.monotonic()
        self.n_workers = 1
        self._look()

    def cancel(self) -> None:
        """Cancel all calls and release all held blocks, even those that a traceback refers to."""
        # not Client.cancel: the scheduler ends the connection where a call is cancelled by itself and by what it needs
        if self._client.status == "running":
            for future in list(self._futures):
                future.release()

    def items(self, source: RowSource, target_bytes: int) -> Iterator[tuple[Any, int | None]]:
        """See `Executor.items`; rows read here are sent to workers, chunks of Dask arrays come with their graphs."""
        if source.access.streams or source.access.in_process:
            for rows in source.stream(target_bytes):
                yield self._sent(calls.measurable(rows)), len(rows.row_ids)
            return
        new = [path for path in source.origin.files if "://" not in path and path not in self._files]
        if new:  # each worker is asked once, before the first of them is read
            self._files.update(new)
            self.everywhere("look", check_readable, new[:: -(-len(new) // MOST_FILES)])
        chunks = source.chunks(target_bytes)
        make, is_placed = None, True
        if source.computed:
            graphs = source.computed.graphs()
            make, is_placed = self._graph_items(source, graphs), not graphs.futures
        sizes = len(chunks), chunks.largest_bytes, source.access.shared_bytes
        self._reading = Reading(*sizes, make is None, is_placed, n_rows=source.estimated_rows or 0)
        for chunk in chunks:
            yield chunk if make is None else make(chunk), None if source.n_rows is None else chunk.stop - chunk.start

    def _sent(self, rows: Rows) -> Any:
        """Send rows to a worker as data, since a task graph would stay on the scheduler; try others if it dies.

        Raises ClusterError: as `_look`; or the scheduler answers, but no worker takes the rows.
        """
        key = (f"rows-{self._token}", next(self._ids))  # one for all tries: two that arrive are the same rows
        seconds = SEND_SECONDS
        for _ in range(SEND_TIMES):
            with self._explained():
                try:
                    looked_at = sorted(self._n_threads) or None
                    sending = self._client.scatter({key: rows}, workers=looked_at, hash=False, asynchronous=True)
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
        return source.remote_view() if source.access.in_process or source.computed else source

    def _graph_items(self, source: RowSource, graphs: RowGraphs) -> Callable[[Chunk], tuple[Chunk, Any, list[Any]]]:
        """The function that makes an item of a chunk: with its graph, and futures of the values that the graph needs.

        Values that several chunks need are computed by calls of their own, from the first of these chunks to the last.
        """
        left = dict(graphs.n_users)
        started: dict[Any, Any] = {}

        def future(key: Any) -> Any:
            if key in graphs.futures:
                return graphs.futures[key]
            if key not in started:
                tasks, inputs = graphs.of_several([key], started)
                known = {each: graphs.futures[each] if each in graphs.futures else started[each] for each in inputs}
                with self._explained(), _any_size():
                    # a plain dictionary would be tokenized: open files cannot be
                    graph = HighLevelGraph.from_collections("needed", {**tasks, **known})
                    started[key] = self._kept(self._client.get(graph, [key], sync=False)[0])
            left[key] -= 1
            return started[key] if left[key] else started.pop(key)

        def item(chunk: Chunk) -> tuple[Chunk, Any, list[Any]]:
            block, inputs = source.computed.packed(chunk)
            return chunk, block, list(map(future, inputs))

        return item

    def share(self, value: Any) -> Any:
        """Send a value to the workers: once through the scheduler, then from worker to worker.

        The value is the result of a task, not scattered data, so Dask makes it again if its only worker is lost.
        """
        return self._submit("share", calls.unpacked, cloudpickle.dumps(value))

    def everywhere(self, stage: str, function: Callable[[Any], object], item: Any) -> None:
        """See `Executor.everywhere`; if a worker is lost meanwhile, another one is called twice."""
        given = encode([item])
        for future in [self._submit(stage, calls.work, function, *given, place=place) for place in self._n_threads]:
            self.finish(future, fetch=True)

    def map(
        self, stage: str, function: Callable[..., Any], items: Iterable[Any], *shared: Any, large: bool = False
    ) -> Iterator[Any]:
        """See `Executor.map`; one call works on a shard, or on one item if results are large."""
        items, reading = self._begun(items)
        n_items = None if reading is None else reading.n_chunks
        singles = ([item] for item in items)
        shards = (Shard(0, [run]) for run in singles) if large else self._shards(singles, 0, n_items, reading)
        turns = self._turns(reading, n_items or 0, large=large)

        def start(shard: Shard) -> Call:
            place = self._place(turns, len(shard.runs)) if self._n_busy(turns) > 1 else None
            found = shard.items if future_of(shard.items) is not None else [self._apart(item) for item in shard.items]
            return Call(self, self._submit(stage, calls.work, function, *encode(found), *shared, place=place))

        for results in self._ordered(shards, start, self._n_busy(turns)):
            yield from results

    def hold(
        self,
        stage: str,
        function: Callable[..., tuple[Any, Any]],
        items: Iterable[Any],
        *shared: Any,
        join: Callable[..., Any] | None = None,
        once: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        """Call a function on items and hold its results; see `Executor.hold`.

        Chunks that workers read are called in the shards over which `fold` will carry its states. Each shard goes to
        the worker with the fewest items, because later steps wait for the worker that holds most. Rows that were sent
        are called one by one on their workers, as the rows of a run lie on several.
        """
        items, reading = self._begun(items)
        lengths = [] if reading is None else run_lengths(reading.n_chunks, RUNS)
        shards = self._shards(runs_of(items, lengths), 0, len(lengths), reading)
        whole = (Shard(0, [shard.items]) for shard in shards)  # one run each: its infos are joined into one
        step, turns = partial(calls.keep, function, join), self._turns(reading, len(lengths))
        tree = None if join is None or not once else JoinTree(self._joiner(stage, join, shared), eager=False)
        last: list[Held] = []
        for states, _, handles, told in self._on_shards(
            stage, step, join, whole, turns, "held", *shared, tells=tree is None
        ):
            if tree is None:
                yield from zip(handles, [None] * (len(handles) - len(told[0])) + told[0], strict=True)
                continue
            tree.add(Held(states[0][1].future, 0, 0, 0))
            yield from ((handle, None) for handle in (*last, *handles[:-1]))
            last = handles[-1:]
        if tree is not None and last:
            yield last[0], self._fetch(tree.total())

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
    ) -> Iterator[tuple[list[tuple[int, Held]], int, list[Any]]]:
        runs, reading = self._begun(runs)
        shards, turns = self._shards(runs, first, total, reading), self._turns(reading, total)
        for states, count, handles, told in self._on_shards(stage, step, join, shards, turns, wanted, *shared):
            yield states, count, told if wanted == "returned" else handles

    def _on_shards(
        self,
        stage: str,
        step: Callable[..., Any],
        join: Callable[..., Any] | None,
        shards: Iterable[Shard],
        turns: Turns | None,
        wanted: Outputs,
        *shared: Any,
        tells: bool = False,
    ) -> Iterator[tuple[list[tuple[int, Held]], int, list[Held], Any]]:
        """Carry a state over the runs of each shard; yield states, number of runs, handles of outputs, and values.

        The values are the outputs if `wanted` is "returned", the states if `tells`.
        """

        def start(shard: Shard) -> Call:
            for run in shard.runs:
                self._bring_together(run)
            items, lengths = shard.items, list(map(len, shard.runs))
            given = (shard.first, lengths, step, join, wanted != "dropped", *encode(items))
            done = self._submit(stage, calls.work_on_shard, *given, *shared, place=self._place(turns, len(items)))
            levels = subtree_levels(shard.first, shard.first + len(shard.runs))
            states = [(level, Held(done, 0, index)) for index, level in enumerate(levels)]
            futures, handles = [done], []
            if wanted == "held":
                futures.append(self._submit(f"{stage}-held", calls.part, done, 1))
                handles = [Held(futures[-1], index) for index in range(len(items))]
            fetch = tells or wanted == "returned"
            if fetch:
                futures.append(self._submit(f"{stage}-told", calls.part, done, 0 if tells else 1))
            return Call(self, *reversed(futures), handles=(states, len(lengths), handles), fetch=fetch)

        yield from self._ordered(shards, start, self._n_busy(turns))

    def _shards(
        self, runs: Iterable[list[Any]], first: int, total: int | None, reading: Reading | None
    ) -> Iterator[Shard]:
        """Cut runs, from number `first` on, into shards, by the number of threads when each is cut."""

        def stop(start: int) -> float:
            if total is None:
                return math.inf
            n_shards = count_shards(self._n_workers_now(), reading.n_rows if reading else 0, total)
            return shard_stop(start, max(total, start + 1), n_shards)

        # chunks that workers read lie anywhere
        reads = reading is not None and reading.by_source
        return shards_of(runs, first, stop, (lambda _: reading) if reads else future_of)

    def _begun(self, items: Iterable[Any]) -> tuple[Iterator[Any], Reading | None]:
        """The items, and the `Reading` of their source, which its first item sets if workers read."""
        self._reading = None
        iterator = iter(items)
        first = list(itertools.islice(iterator, 1))
        return itertools.chain(first, iterator), self._reading

    def _turns(self, reading: Reading | None, n_calls: int, *, large: bool = False) -> Turns | None:
        """The turns of workers; None if Dask places calls, as their data lie on some worker."""
        if reading is None or not reading.is_placed:
            return None
        if reading.by_source and not large:
            n_calls = min(n_calls, count_shards(self.n_workers, reading.n_rows, n_calls))
        return Turns(reading.stretch(n_calls, len(self._n_threads), large=large))

    def _n_busy(self, turns: Turns | None) -> int:
        """The number of calls that workers run or that wait in their stretches."""
        return 1 if turns is None or turns.stretch == 1 else turns.stretch * len(self._n_threads)

    def _place(self, turns: Turns | None, n_items: int) -> str | None:
        return turns.place(self._n_threads, n_items) if turns is not None and self._n_threads else None

    def values(self, handles: Iterable[Any]) -> Iterator[Any]:
        """See `Executor.values`.

        Raises ClusterError: the client is closed, and the held values are lost; or as any call.
        """
        for _, group in itertools.groupby(handles, lambda handle: id(handle.future)):
            held = list(group)
            if self._client.status != "running":
                raise ClusterError(f"the Dask client is {self._client.status}")
            result = self.finish(held[0].future, fetch=True)
            yield from (reduce(getitem, handle.path, result) for handle in held)

    def _fetch(self, handle: Any) -> Any:
        if isinstance(handle, Held):
            handle = self._submit("state", calls.decoded, *encode(handle))
        return Call(self, handle).result() if hasattr(handle, "status") else handle

    def _submit(self, stage: str, function: Callable[..., Any], *args: Any, place: str | None = None) -> Any:
        """Start a call, if possible on the worker with the address `place`."""
        key = (f"{stage}-{self._token}", next(self._ids))
        where: dict[str, Any] = {} if place is None else {"workers": [place], "allow_other_workers": True}
        # Dask would run calls that are started within 100 ms in any order; neighbours are to follow each other
        with self._explained(), _any_size():
            return self._kept(self._client.submit(function, *args, key=key, pure=False, fifo_timeout=0, **where))

    def _joiner(self, stage: str, join: Callable[..., Any], shared: tuple[Any, ...]) -> Callable[[list[Any]], Any]:
        return lambda states: self._submit(f"{stage}-join", calls.join_states, join, *encode(states), *shared)

    def _kept(self, future: Any) -> Any:
        self._futures.add(future)
        return future

    def _bring_together(self, run: list[Any]) -> None:
        """Move the held blocks of a run to one worker if several futures have them; once."""
        held = held_blocks(run)
        if len({id(item.future) for item in held}) < 2:
            return
        together = self._submit("gather", calls.decoded, *encode(self._picked(held)))
        for index, item in enumerate(held):
            item.future, item.path = together, (index,)

    def _apart(self, item: Any) -> Any:
        """The item, with values picked from the results if it needs parts of several results."""
        held = [each for each in item if isinstance(each, Held)] if isinstance(item, list) else []
        if len({id(each.future) for each in held}) < 2:
            return item
        picked = iter(self._picked(held))
        return [next(picked) if isinstance(each, Held) else each for each in item]

    def _picked(self, held: list[Held]) -> list[Held]:
        """The values, each picked on the worker that has it, so that nothing else of its result travels."""
        picked = []
        for _, group in itertools.groupby(held, lambda item: id(item.future)):
            values = list(group)
            future = self._submit("gather", calls.decoded, *encode(values))
            picked += [Held(future, index) for index in range(len(values))]
        return picked

    def _n_workers_now(self) -> int:
        if time.monotonic() > self._looked + LOOK_SECONDS:
            self._look()
        return self.n_workers

    def _look(self) -> None:
        """List the workers and check the new ones.

        Raises ClusterError: the scheduler does not answer; there was no worker for ten minutes or Dask's setting
        ``distributed.scheduler.no-workers-timeout``; or see `check_workers`.
        """
        try:
            self._n_threads = dict(self._client.nthreads())
            check_workers(self._client, self._n_threads.keys() - self._checked)
        except OSError as error:
            raise out_of_reach(self._client, error) from error
        self._checked.update(self._n_threads)
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
        """Wait for a call; return its result or its handle."""
        from distributed import wait

        gather_seconds = GATHER_SECONDS
        with self._explained():
            while True:
                try:
                    if future.status not in ("finished", "error"):
                        with self._client.as_current():
                            wait(future, timeout=LOOK_SECONDS)
                    if future.status == "finished":
                        return future.result(timeout=gather_seconds) if fetch else future
                except TimeoutError:  # not the call's own: that is raised below
                    if future.status == "finished":
                        gather_seconds *= 2
                    self._look()
                if future.status == "error":
                    return future.result()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise ClusterError for Dask's errors of the cluster; errors of calls pass unchanged."""
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
            raise out_of_reach(self._client, error) from error
        except CancelledError as error:
            if "scheduler-" in str(error):  # its connection was lost, or it was restarted
                raise out_of_reach(self._client, error) from error
            if self._sends:
                raise ClusterError(
                    f"a worker of {self._address()} was lost, and rows that this process had sent to it; fit again, or "
                    f"fit data that workers read themselves (a path, a Dask array), which lost workers do no harm"
                ) from error
            raise ClusterError(f"work was cancelled on {self._address()} by another program: {error}") from error

    def _address(self) -> str:
        return str(self._client.scheduler.address)


def _any_size() -> Any:
    """Suppress Dask's warning of large data in calls: they are shared on purpose, or stand in the user's graph."""
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"})
