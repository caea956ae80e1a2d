"""A cost model: the time of a fit on other machines, from measured costs of rows on this one.

Pure arithmetic of a `Plan`, of `Rates` that `fitting.benchmark` measures, and of a `Cluster`. Reads nothing, starts
nothing.

The model. W workers of T threads; P = W T threads work at once, or as many as there are processors where all processes
share one machine of C of them. n rows in c chunks, which are cut into r = `count_runs(c)` runs, and these into R shards
by `engine.dask_shards`: a call each, which leaves one state or several, S in all. L is the latency of a message there
and back, B the bandwidth of each machine. A task costs the scheduler s, the client a and its worker w seconds of a
processor. Sums (k, d) have f = 8 k d bytes. A row costs `wall` seconds of a thread and `cpu` seconds of processors,
both times `crowd` where more than one thread works.

tasks
    3 R the first pass: the call, what it keeps and what it tells; 2 R an assign pass; R a Lloyd step; J joins of eight
    states that leave the shards, counted on the tree itself; one for what is shared.
send
    b bytes to all workers, by way of the scheduler and then from worker to worker: ``(2 + ceil(log2 W)) b / B + 2 L``;
    ``(W + 1) b`` bytes travel.
workers
    ``max(ceil(R / P) (n / R) wall, n cpu / P) + (tasks w + (r - 1) t + c g) / P + (S - 1) u / W`` with t the time of
    adding f bytes to others and ``u = f / B`` that of fetching them, where W > 1.
scheduler
    ``tasks s``.
client
    ``tasks a + c h`` with h the time that it takes to cut a chunk, name it in a call and note what it tells, and
    ``c g`` more for parts of coresets, with g the time to add what a chunk tells; workers add up sampled rows.
network
    ``2 x / B`` for x bytes that calls tell, as a result goes to the scheduler and then to the client: sampled rows,
    counts of chunks and parts of coresets in the first pass. Labels stay on the workers that make them.
storage
    Stored bytes over the bandwidth of the storage, where that is given.
machine
    Where all share one: ``(n cpu + tasks (s + a + w) + r t + c g) / C``.
stage
    ``send + max(workers, scheduler, client, network, storage, machine) + ceil(log8 S) (t + 8 u + L)``, the last for
    sums on their way up the tree, or L where there are none.
at the client
    Finding the sketch, seeding, Lloyd on the row sample and polishing: as measured here, times the rows that are
    sampled over those that were. Where all rows are sketched and kept, each Lloyd step is a stage of the above, and so
    is each batch of an epoch of moving averages, which works on its share of the rows.

Chunks, sketch, cluster_on, passes and the client's memory are `fit_plan.plan_fit`'s, runs and their tree those of
`engine.reduction`. The client is a machine like this one, and so is each worker's processor; storage is as fast as it
was measured, unless its bandwidth is given; nothing fails. Lloyd's algorithm on all rows is taken to need as many steps
as on the sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from streamkm.cluster.sampling.row_sample import FEWEST_CANDIDATES, SPARE
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine.dask_shards import count_shards, states_of_shards
from streamkm.engine.reduction import ARITY, FEW_RUNS, RUNS, JoinTree, count_runs
from streamkm.planning.forecast.values import (
    CLIENT_CHUNK_BYTES,
    CLIENT_CHUNK_S,
    SCHEDULER_CHUNK_BYTES,
    TOLD_CHUNK_BYTES,
    Cluster,
    Cost,
    Forecast,
    Rates,
    Step,
)
from streamkm.planning.memory import MemoryModel
from streamkm.planning.plan import Plan
from streamkm.planning.worker_memory import WorkerModel
from streamkm.sketches.registry import DATA_DEPENDENT

SCHEDULER_BYTES = 250 << 20
LABEL_BYTES = 4


def forecast(plan: Plan, rates: Rates, cluster: Cluster) -> Forecast:
    """Apply the model. Raises InvalidInputError if the plan is not of chunks."""
    if plan.memory_model is None or not plan.n_chunks:
        raise InvalidInputError(f"{plan.source} has no chunks that can be read by themselves; its time cannot be told")
    n_rows = plan.n_rows or int(rates.chunk_rows * plan.n_chunks)
    model = _Model(plan, plan.memory_model, n_rows, plan.n_chunks, rates, cluster)
    chunks = CLIENT_CHUNK_BYTES * plan.n_chunks
    stages, client = tuple(model.stages()), plan.peak_bytes + chunks
    return Forecast(
        plan=plan,
        cluster=cluster,
        rates=rates,
        stages=stages,
        worker_memory=model.worker_memory(),
        client_bytes=client,
        labelled_client_bytes=max(client, plan.base_bytes + chunks + LABEL_BYTES * n_rows),
        scheduler_bytes=SCHEDULER_BYTES
        + SCHEDULER_CHUNK_BYTES * plan.n_chunks
        + max(stage.scheduler_bytes for stage in stages),
        written_bytes=LABEL_BYTES * n_rows + model.state_bytes,
    )


def count_joins(shards: list[list[int]]) -> int:
    """Joins that the states of shards take, given by their levels, by the tree that the fit joins them in."""
    n_joins = 0

    def join(_: list[None]) -> None:
        nonlocal n_joins
        n_joins += 1

    tree = JoinTree(join, eager=False)
    for levels in shards:
        for level in levels:
            tree.add(None, level)
    tree.total()
    return n_joins


@lru_cache(maxsize=16)
def _count_tree(n_runs: int, n_threads: int, n_rows: int, *, sums: bool) -> tuple[int, int, int]:
    """Calls of a pass, the states that leave them, and joins of these; without sums, each call leaves one state."""
    if not sums:
        n_calls = min(n_runs, count_shards(n_threads, n_rows, n_runs))
        return n_calls, n_calls, count_joins([[0]] * n_calls)
    shards = states_of_shards(n_runs, n_threads, n_rows)
    return len(shards), sum(map(len, shards)), count_joins(shards)


def _levels(n_runs: int) -> int:
    """Joins that lie one above the other, at least 1: ``ceil(log8 R)``."""
    levels = 1
    while ARITY**levels < n_runs:
        levels += 1
    return levels


@dataclass(frozen=True, slots=True)
class _Load:
    """What a walk over all rows is given and gives, beside the rows."""

    n_runs: int  # that shards are made of
    # bytes that every worker gets; that calls tell the client; of the sums of a call
    shared: int
    returned: int
    state: int
    read: int | None  # bytes read from the storage; None where blocks are walked
    gathered_s: float = 0.0  # seconds that joining what calls tell takes: of workers, or of the client
    joined: bool = True  # whether workers join what calls tell, or their sums
    share: float = 1.0  # of the rows, that are worked on


@dataclass(frozen=True, slots=True)
class _Model:
    """The formulas of the module's docstring."""

    plan: Plan
    memory_model: MemoryModel
    n_rows: int
    n_chunks: int
    rates: Rates
    cluster: Cluster

    @property
    def width(self) -> int:
        """Features of the space that rows are assigned in."""
        original = self.plan.space_for(self.memory_model.rows.n_features) == "original"
        return self.memory_model.rows.center_features if original else self.memory_model.rows.n_components

    @property
    def state_bytes(self) -> int:
        return 8 * self.memory_model.n_clusters * self.width

    @property
    def keeps_blocks(self) -> bool:
        return self.plan.cluster_on in ("blocks", "spilled")

    @property
    def _fewest_runs(self) -> int:
        """Calls, or a multiple of them, that carry sums of the assign pass."""
        return FEW_RUNS if self.state_bytes > self.plan.chunk_bytes else RUNS

    def stages(self) -> list[Step]:
        """All stages, in order."""
        clustered = min(self.n_rows, self.plan.sample_rows)
        seconds = {name: took * clustered / self.rates.sampled for name, took in self.rates.client.items()}
        if self.plan.cluster_on == "coreset":
            seconds["lloyd"] *= min(1.0, self.memory_model.coreset_rows / clustered)
        later = self.plan.sketches_later
        found = [self._gather(step, self.rates.sample) for step in self.plan.reading.finding_steps]
        found += [self._gather("sketch", self.rates.sample)] if later else []
        found.append(self._gather("sketch-all" if later else "sketch", self.rates.sketch, self._coreset_bytes()))
        found.append(Step("seed", seconds["seed"], "client"))
        found += self._epochs()
        found.append(self._lloyd() if self.keeps_blocks else Step("lloyd", seconds["lloyd"], "client"))
        if "polish" in seconds:
            found.append(Step("polish", seconds["polish"], "client"))
        sketch_bytes = (
            8 * self.memory_model.rows.n_features * self.memory_model.rows.n_components
            if self.plan.sketch in DATA_DEPENDENT
            else 0
        )
        shared = self.state_bytes + self.memory_model.centers(self.width).table_bytes + sketch_bytes
        load = _Load(
            count_runs(self.n_chunks, self._fewest_runs), shared, 0, self.state_bytes,
            self.plan.stored_bytes or 0,
        )  # fmt: skip
        n_passes = self.plan.passes - len(self.plan.reading.passes_before) - len(self.plan.reading.finding_steps)
        names = ["assign", *(f"refine-{number}" for number in range(1, n_passes - 1 - later))]
        return [*found, *(self._pass(name, self.rates.assign, load) for name in names)]

    def _coreset_bytes(self) -> int:
        """Of the parts of a coreset that all calls tell."""
        if self.plan.cluster_on != "coreset":
            return 0
        part_rows = min(self.memory_model.coreset_rows, self.n_rows / self.n_chunks)
        return int(self.n_chunks * part_rows * (16 + self.memory_model.rows.block_row_bytes))

    def _gather(self, name: str, cost: Cost, returned: int = 0) -> Step:
        """A pass that returns candidates for the sample, and `returned` bytes beside them."""
        joined = self.plan.cluster_on != "coreset"
        rows = SPARE * self.plan.sample_rows
        rows = min(self.n_rows, rows if joined else max(rows, FEWEST_CANDIDATES * self.n_chunks))
        returned += int(rows) * (self.memory_model.rows.row_bytes + 16) + TOLD_CHUNK_BYTES * self.n_chunks
        gathered = self.n_chunks * self.rates.gather_s
        load = _Load(count_runs(self.n_chunks, RUNS), 0, returned, 0, self.plan.stored_bytes or 0, gathered, joined)
        return self._pass(name, cost, load)

    def _lloyd(self) -> Step:
        """All steps on all rows sketched."""
        return self._steps("lloyd", self.rates.iterations)

    def _epochs(self) -> list[Step]:
        """Epochs of moving averages on dense rows, if there are any: each batch is a walk over all held rows."""
        epochs = self.plan.clustering.epochs
        schedule = None if epochs is None or not self.keeps_blocks else epochs.schedule
        if schedule is None or schedule.sparse:
            return []
        return [self._steps("epochs", schedule.n_epochs * schedule.n_batches, 1 / schedule.n_batches)]

    def _steps(self, name: str, n_steps: int, share: float = 1.0) -> Step:
        """So many walks over all rows sketched, each of which works on a share of them."""
        state = 8 * self.memory_model.n_clusters * self.memory_model.rows.n_components
        shared = state + self.memory_model.centers(self.memory_model.rows.n_components).table_bytes
        # a batch makes few states where they are larger than its rows of a block
        block_bytes = self.n_rows / self.n_chunks * self.memory_model.rows.block_row_bytes
        fewest_runs = FEW_RUNS if share < 1 and state > share * block_bytes else RUNS
        load = _Load(count_runs(self.n_chunks, fewest_runs), shared, 0, state, None, share=share)
        one = self._pass(name, self.rates.step, load)
        bounds = {part: n_steps * took for part, took in one.bounds.items()}
        return Step(
            name, n_steps * one.seconds, one.bound, n_steps * one.tasks, 0, n_steps * one.network_bytes,
            n_steps * one.client_bytes, one.scheduler_bytes, bounds,
        )  # fmt: skip

    def _pass(self, name: str, cost: Cost, load: _Load) -> Step:
        """One walk over all rows."""
        cluster, n_rows, at_once = self.cluster, self.n_rows, self.cluster.at_once
        shared, returned, state, gathered = load.shared, load.returned, load.state, load.gathered_s
        n_calls, n_states, n_joins = _count_tree(load.n_runs, cluster.slots, n_rows, sums=state > 0)
        a_call = 1 if load.read is None else 2 if state else 3
        tasks = a_call * n_calls + n_joins * load.joined + 1
        crowd = cost.crowd if cluster.slots > 1 else 1.0
        cpu = load.share * n_rows * cost.cpu * crowd
        add = self.rates.join_s * state / max(1, self.state_bytes)
        fetch = state / cluster.bandwidth if cluster.workers > 1 else 0.0
        waves = -(-n_calls // at_once)
        work = max(waves * load.share * n_rows / n_calls * cost.wall * crowd, cpu / at_once)
        read = load.read or 0
        by_workers, by_client = (gathered, 0.0) if load.joined and not cluster.in_process else (0.0, gathered)
        if load.read is not None and not cluster.in_process:
            by_client += self.n_chunks * CLIENT_CHUNK_S
        beside = tasks * cluster.worker_s + (load.n_runs - 1) * add + by_workers
        bounds = {
            "workers": work + beside / at_once + (n_states - 1) * fetch / cluster.workers,
            "scheduler": tasks * cluster.scheduler_s,
            "client": tasks * cluster.client_s + by_client,
            "network": 2 * returned / cluster.bandwidth,
            "storage": read / cluster.storage,
        }
        if cluster.cores is not None:
            a_task = cluster.scheduler_s + cluster.client_s + cluster.worker_s
            bounds["machine"] = (cpu + tasks * a_task + load.n_runs * add + by_workers + by_client) / cluster.cores
        bound = max(bounds, key=lambda which: bounds[which])
        hops = 2 + math.ceil(math.log2(cluster.workers))
        send = hops * shared / cluster.bandwidth + 2 * cluster.latency_s
        levels = _levels(n_states) if state else 0
        climb = levels * (add + ARITY * fetch) + max(1, levels) * cluster.latency_s
        moved = (n_states - 1) * state if cluster.workers > 1 else 0
        told = 0 if cluster.in_process else returned + state
        shared = 0 if cluster.in_process else shared
        network = 2 * told + moved + shared * (cluster.workers + 1) if told + shared else 0
        one = max(returned, state) if load.joined else 0  # parts of coresets pass by one call at a time
        return Step(
            name, send + bounds[bound] + climb, bound, tasks, read, network, told + shared, shared + one, bounds
        )

    def worker_memory(self) -> dict[str, int]:
        """Resident bytes of a worker, stage by stage: its share of held blocks and of labels grows with the rows."""
        given, plan, cluster = self.memory_model, self.plan, self.cluster
        sizes = replace(
            given,
            rows=replace(given.rows, n_rows=self.n_rows),
            reading=replace(given.reading, n_chunks=self.n_chunks),
            chosen=replace(given.chosen, sample_rows=plan.sample_rows, chunk_bytes=plan.chunk_bytes),
        )
        model = WorkerModel(sizes, cluster.workers, cluster.threads, cluster.slots)
        return model.stages(plan.cluster_on, plan.space_for(given.rows.n_features), plan.base_bytes)
