"""The cost of rows on this machine: process a few chunks and cluster a sample of them, as a fit would.

The passes and the search are the fit's own; nothing that is measured is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import joblib
import numpy as np

from streamkm.cluster.blocks import densified
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import SampleRule
from streamkm.cluster.totals import Totals, absorb_totals
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.progress import Progress, Stage
from streamkm.engine import open_executor
from streamkm.engine.threads import LocalThreads
from streamkm.fitting.centers import check_clusters, find_centers
from streamkm.fitting.clustering import Clustering
from streamkm.fitting.context import FitContext
from streamkm.fitting.normalize import normalize_rows
from streamkm.fitting.settings import Settings
from streamkm.passes.assign import Assign, assign_pass
from streamkm.passes.context import PassContext
from streamkm.passes.gathered import Gathered
from streamkm.passes.label_sinks import GatheredLabels
from streamkm.passes.prepare import find_preparation
from streamkm.passes.reader import RowReader
from streamkm.passes.sketch import Sketched, sketch_pass
from streamkm.planning.forecast import Cluster, Cost, Rates, forecast
from streamkm.planning.plan import Plan
from streamkm.planning.request import SMALLEST_SAMPLE_ROWS
from streamkm.preparation import Preparation
from streamkm.sources.base import ChunkedSource, Rows, RowSource
from streamkm.sources.chunking import SMALLEST_CHUNK_BYTES
from streamkm.sources.chunks import Chunk
from streamkm.sources.prepared import prepared

CHUNKS = 4  # that are walked at least, and two for each processor
NOTHING = Cost(0.0, 0.0)


def estimate_seconds(reader: RowReader, plan: Plan, settings: Settings, n_threads: int) -> float:
    """Seconds that a fit may take, about, by so many threads of this machine when it does nothing else.

    Raises
    ------
    InvalidInputError
        If the source has no chunks that can be read by themselves.
    """
    return forecast(plan, measure(reader, plan, settings), Cluster.here(n_threads, joblib.cpu_count())).seconds


def measure(reader: RowReader, plan: Plan, settings: Settings) -> Rates:
    """RowReader a few chunks of a source as a fit would, and cluster a sample of them.

    Parameters
    ----------
    reader : RowReader
        Of the source that is there.
    plan : Plan
        Of the fit that is planned, which may be of more rows of the same kind.
    settings : Settings

    Raises
    ------
    InvalidInputError
        If the source has no chunks that can be read by themselves, or fewer rows than clusters.
    """
    source = reader.source
    if source.streams:
        raise InvalidInputError(f"{source.name} streams rows; a few of them cannot be read to measure the time")
    reader = replace(reader, target_bytes=plan.chunk_bytes)
    # one small chunk before: kernels are compiled or loaded, files are opened
    first = replace(reader, source=_Few(source, source.chunks(min(SMALLEST_CHUNK_BYTES, plan.chunk_bytes))[:1]))
    sampled = _sampled(first, plan, settings)
    if sampled.n_valid >= settings.n_clusters:
        _measured(first, plan, settings, _found(first, sampled, plan, settings, _Clock(False)), 1)
    few = replace(reader, source=_Few(source, _spread(source, plan)))
    sampled = _sampled(few, plan, settings)
    check_clusters(settings.n_clusters, sampled.n_valid)
    clock, started = _Clock(False), time.perf_counter()
    found = _found(few, sampled, plan, settings, clock)
    took = time.perf_counter() - started
    client = {stage.name: stage.seconds for stage in clock.stages if stage.name != "seed"}
    client = {"seed": took - sum(client.values()), **client}  # with the finding of the sketch
    alone, gather_s = _measured(few, plan, settings, found, 1)
    crowded, _ = _measured(few, plan, settings, found, joblib.cpu_count())
    sample, sketch, assign, step = (
        replace(cost, crowd=max(1.0, other.cpu / cost.cpu) if cost.cpu > 0 else 1.0)
        for cost, other in zip(alone, crowded, strict=True)
    )
    steps = sum(entry["stage"] == "lloyd" for entry in found.history)
    join_s, n_sampled = _join_seconds(found), len(sampled.sample.rows)
    chunk_rows = float(sampled.chunk_rows.mean())
    return Rates(sample, sketch, assign, step, gather_s, join_s, client, n_sampled, max(1, steps), chunk_rows)


def roughly_prepared(reader: RowReader, preparation: Preparation | None) -> RowReader:
    """The reader of rows prepared as a fit would, by what a few chunks say of all; rows without steps as they are.

    Raises
    ------
    InvalidInputError
        If the source has no chunks that can be read by themselves.
    """
    if preparation is None:
        return reader
    source = reader.source
    if source.streams:
        raise InvalidInputError(f"{source.name} streams rows; a few of them cannot be read to measure the time")
    few = _Few(source, source.chunks(reader.target_bytes)[:CHUNKS])
    with open_executor(1) as here:
        context = PassContext(executor=here, reader=replace(reader, source=few))
        found = find_preparation(context, preparation, SMALLEST_SAMPLE_ROWS, _Clock(False))
    return replace(reader, source=prepared(source, found))


class _Clock(Progress):
    """Records times, draws no bars: these stages are none of a fit."""

    @contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "chunks") -> Iterator[Stage]:  # noqa: ARG002
        """Time one stage."""
        stage, started = Stage(name), time.perf_counter()
        yield stage
        stage.seconds = time.perf_counter() - started
        self.stages.append(stage)


class _Few(ChunkedSource):
    """Some chunks of a source."""

    def __init__(self, source: RowSource, chunks: Sequence[Chunk]) -> None:
        self._source, self._chunks = source, chunks
        self.take_after(source, n_rows=None, n_bytes=None)

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:  # noqa: ARG002
        """The same ones, whatever the target."""
        return self._chunks

    def read(self, chunk: Chunk) -> Rows:
        """Read one chunk of the source."""
        return self._source.read(chunk)

    def describe(self, place: int) -> str:
        return self._source.describe(place)


def _spread(source: RowSource, plan: Plan) -> tuple[Chunk, ...]:
    """Chunks from all over the source: enough for the row sample and for all processors."""
    chunks = source.chunks(plan.chunk_bytes)
    rows_a_chunk = max(1.0, (source.estimated_rows or len(chunks)) / len(chunks))
    wanted = max(CHUNKS, 2 * joblib.cpu_count(), int(np.ceil(plan.sample_rows / rows_a_chunk)))
    return tuple(chunks[i] for i in np.unique(np.linspace(0, len(chunks) - 1, wanted).astype(int)))


def _sampled(reader: RowReader, plan: Plan, settings: Settings) -> Sketched:
    """A row sample as large as the fit's, if there are so many rows."""
    gathered = Gathered(SampleRule.of(plan.sample_rows, settings.seed64("sample"), None, NO_WEIGHTS))
    with open_executor(joblib.cpu_count()) as workers:
        return sketch_pass(PassContext(executor=workers, reader=reader), gathered, Stage("sketch"))


def _found(reader: RowReader, sampled: Sketched, plan: Plan, settings: Settings, clock: Progress) -> Clustering:
    """Centers, as a client finds them on the row sample."""
    complete = plan.n_rows is not None and plan.n_rows <= len(sampled.sample.rows)
    sampled = replace(sampled, sample=replace(sampled.sample, complete=complete))
    with open_executor(joblib.cpu_count()) as here:
        context = FitContext(executor=here, here=here, reader=reader, plan=plan, settings=settings, progress=clock)
        return find_centers(context, normalize_rows(context, replace(sampled, blocks=None)))


def _measured(
    reader: RowReader, plan: Plan, settings: Settings, found: Clustering, n_threads: int
) -> tuple[tuple[Cost, Cost, Cost, Cost], float]:
    """Costs of a row as of `Rates`; seconds of the caller for a chunk in the pass that sketches."""
    sketch = found.sketch if plan.cluster_on != "sample" else None
    rule = SampleRule.of(plan.sample_rows, settings.seed64("sample"), plan.n_rows, NO_WEIGHTS)
    gathered = Gathered(rule, plan.coreset_rule(settings.n_clusters, settings.seed64("coreset")))
    model = found.model(reader.metric)
    with open_executor(n_threads), ThreadPoolExecutor(n_threads) as pool:
        workers = _Timed(pool, n_threads)
        context = PassContext(executor=workers, reader=reader)
        sample = NOTHING
        if plan.sketches_later:
            only = Gathered(rule)
            before = workers.cost(lambda: sketch_pass(context, only, Stage("sketch")))
            sample = before.a_row(int(before.gave.chunk_rows.sum()))
        first = workers.cost(lambda: sketch_pass(context, gathered, Stage("sketch"), sketch=sketch))
        sketched = first.gave
        n_rows = int(sketched.chunk_rows.sum())
        last = workers.cost(
            lambda: assign_pass(
                context,
                Assign(model, model.table()),
                sketched.chunk_rows,
                Stage("assign"),
                sink=GatheredLabels(sketched.chunk_rows, context.writer),
            )
        )
        step = NOTHING
        if sketched.blocks is not None:
            blocks, centers = sketched.blocks, np.asarray(found.result.centers, np.float64)
            if found.space == "original" and blocks.n_components != centers.shape[1]:
                points = model.sketched(centers)
                centers = densified(points, np.arange(len(centers)), points.shape[1])
            step = workers.cost(lambda: blocks.totals(centers)).a_row(n_rows)
    return (sample, first.a_row(n_rows), last.a_row(n_rows), step), first.caller_s / len(sketched.chunk_rows)


def _join_seconds(found: Clustering) -> float:
    """Of adding the sums of one call to those of another."""
    one, other = (Totals.zeros(*found.result.centers.shape) for _ in range(2))
    started = time.perf_counter()
    absorb_totals(one, other)
    return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class _Spent:
    """Seconds of all calls, of processors beside the caller's, and of the caller; and what came of it."""

    calls_s: float
    workers_s: float
    caller_s: float
    gave: Any

    def a_row(self, n_rows: int) -> Cost:
        return Cost(self.calls_s / n_rows, self.workers_s / n_rows)


class _Timed(LocalThreads):
    """Threads that know how long they worked."""

    def __init__(self, pool: ThreadPoolExecutor, n_workers: int):
        super().__init__(pool, n_workers)
        self._seconds: list[float] = []

    def _submit(self, stage: str, function: Callable[..., Any], *args: Any) -> Any:
        return super()._submit(stage, self._timed, function, *args)

    def _timed(self, function: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args)
        finally:
            self._seconds.append(time.perf_counter() - started)

    def cost(self, work: Callable[[], Any]) -> _Spent:
        """Do something with these threads, and return its cost."""
        self._seconds.clear()
        all_before, caller_before = time.process_time(), time.thread_time()
        gave = work()
        caller = time.thread_time() - caller_before
        return _Spent(sum(self._seconds), time.process_time() - all_before - caller, caller, gave)
