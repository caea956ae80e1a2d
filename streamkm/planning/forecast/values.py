"""Parts of a forecast: the machines, the cost of a row, and the figures of each stage.

Values only; the model is `cost_model`'s, the measurement `fitting.benchmark`'s.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.memory import human_bytes
from streamkm.core.text_table import Lines
from streamkm.engine.dask_workers import WorkerMemory
from streamkm.planning.plan import Plan
from streamkm.planning.worker_memory import HELD_SHARE

# processor seconds a task, of calls that do nothing; measured by the benchmark of plans (Dask 2026.8, EPYC Zen 4, idle)
SCHEDULER_S, CLIENT_S, WORKER_S = 2.1e-3, 1.8e-3, 3.4e-3
LATENCY_S = 11e-3  # of such a call: client, scheduler, worker and back
BANDWIDTH = 1.25e9  # bytes a second: 10 Gbit/s
# bytes of a chunk in the client (counts, totals and bounds), in the scheduler beside counts (3, and 48 more if chunks
# are uneven), and of its counts and totals as they are told; and the client's time for it in a pass
CLIENT_CHUNK_BYTES, SCHEDULER_CHUNK_BYTES, TOLD_CHUNK_BYTES = 100, 50, 35
CLIENT_CHUNK_S = 17e-6
THREAD_MEMORY = 4 << 30  # of a worker without a limit, for each of its threads


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines that a fit is planned for.

    Attributes
    ----------
    workers, threads : int
        Worker processes, and threads of each.
    cores : int or None
        Processors of the one machine that workers, scheduler and client share; None: each thread of the workers has a
        processor of its own, and scheduler and client have theirs.
    scheduler_s, client_s, worker_s : float
        Seconds of a processor that each of them takes for a task.
    latency_s : float
        Of a message there and back.
    bandwidth : float
        Bytes a second in and out of each machine.
    storage : float
        Bytes a second that the storage gives all workers together.
    worker_limit : int or None
        Bytes of Dask's memory limit of each worker; None: 4 GiB a thread.
    """

    workers: int
    threads: int = 1
    cores: int | None = None
    scheduler_s: float = SCHEDULER_S
    client_s: float = CLIENT_S
    worker_s: float = WORKER_S
    latency_s: float = LATENCY_S
    bandwidth: float = BANDWIDTH
    storage: float = math.inf
    worker_limit: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("workers", "threads", "cores", "worker_limit"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidParameterError(f"{name}={value!r}; needed: a whole number from 1")
        for name in ("scheduler_s", "client_s", "worker_s", "latency_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidParameterError(f"{name}={getattr(self, name)!r}; needed: seconds from 0")
        for name in ("bandwidth", "storage"):
            if not getattr(self, name) > 0:
                raise InvalidParameterError(f"{name}={getattr(self, name)!r}; needed: bytes a second, above 0")

    @classmethod
    def here(cls, threads: int, cores: int) -> Cluster:
        """Threads of one process: tasks cost nothing, nothing travels."""
        return cls(1, threads, cores, 0.0, 0.0, 0.0, 0.0, math.inf)

    @property
    def workers_memory(self) -> tuple[WorkerMemory, ...]:
        """The memory of all workers before the fit."""
        limit = self.threads * THREAD_MEMORY if self.worker_limit is None else self.worker_limit
        return (WorkerMemory(self.threads, limit, 0),) * self.workers

    @property
    def in_process(self) -> bool:
        """Whether all of it is one process: nothing travels."""
        return math.isinf(self.bandwidth)

    @property
    def slots(self) -> int:
        """Threads that work on rows."""
        return self.workers * self.threads

    @property
    def at_once(self) -> int:
        """Threads of them that have a processor."""
        return self.slots if self.cores is None else min(self.slots, self.cores)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a row.

    Attributes
    ----------
    wall : float
        Seconds of a thread that works alone.
    cpu : float
        Seconds of processors: more, where a reader decodes with threads of its own.
    crowd : float
        How many times more processor time it takes while all processors are busy, at least 1.
    """

    wall: float
    cpu: float
    crowd: float = 1.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Measured rates.

    Attributes
    ----------
    sample, sketch, assign, step : Cost
        Of a row in a pass that only samples, before the sketch is found (0 where there is none), in the one that
        sketches, in an assign pass, and in a Lloyd step on sketched rows (0 where none are kept).
    gather_s : float
        For what a chunk tells in the first pass, to join it to what others told.
    join_s : float
        For adding one (k, d) array of sums to another.
    client : dict of str to float
        Seconds of "seed", "lloyd" and "polish" on sampled rows, by all threads of this machine.
    sampled : int
        How many rows those were.
    iterations : int
        Lloyd steps that the sample took.
    chunk_rows : float
        Rows of a chunk: for a source that does not say how many it has.
    """

    sample: Cost
    sketch: Cost
    assign: Cost
    step: Cost
    gather_s: float
    join_s: float
    client: dict[str, float]
    sampled: int
    iterations: int
    chunk_rows: float


@dataclass(frozen=True, slots=True)
class Step:
    """One stage, as predicted.

    Attributes
    ----------
    name : str
    seconds : float
    bound : str
        The slowest part: "workers", "scheduler", "client", "network", "storage" or "machine".
    tasks : int
    read_bytes : int
        From the storage.
    network_bytes : int
        Between all processes,
    client_bytes : int
        of which to and from the client.
    scheduler_bytes : int
        That the scheduler holds at a time of what passes by it: what is shared, and one result.
    bounds : dict of str to float
        Seconds of each part, of which the longest is `bound`.
    """

    name: str
    seconds: float
    bound: str
    tasks: int = 0
    read_bytes: int = 0
    network_bytes: int = 0
    client_bytes: int = 0
    scheduler_bytes: int = 0
    bounds: dict[str, float] = field(default_factory=dict)

    def terms(self) -> str:
        """Seconds of each part, the longest first, for people."""
        ordered = sorted(self.bounds.items(), key=lambda bound: -bound[1])
        return ", ".join(f"{name} {human_seconds(took)}" for name, took in ordered if took)


@dataclass(frozen=True, slots=True)
class Forecast(Lines):
    """The forecast of a fit on a cluster.

    Attributes
    ----------
    plan : Plan
    cluster : Cluster
    rates : Rates
    stages : tuple of Step
    worker_memory : dict of str to int
        Resident bytes of a worker in each stage.
    client_bytes, labelled_client_bytes, scheduler_bytes : int
        Resident bytes at the peak: of the client, of one that asks for `labels_` after the fit, and of the scheduler.
    written_bytes : int
        Labels and centers.
    """

    plan: Plan
    cluster: Cluster
    rates: Rates
    stages: tuple[Step, ...]
    worker_memory: dict[str, int]
    client_bytes: int
    labelled_client_bytes: int
    scheduler_bytes: int
    written_bytes: int

    @property
    def seconds(self) -> float:
        """Of all stages."""
        return sum(stage.seconds for stage in self.stages)

    @property
    def worker_bytes(self) -> int:
        """Resident bytes of a worker at the peak."""
        return max(self.worker_memory.values())

    def total(self, name: str) -> int:
        """Sum of "tasks", "read_bytes", "network_bytes" or "client_bytes" over the stages."""
        return sum(getattr(stage, name) for stage in self.stages)

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        cluster = self.cluster
        where = "a processor for each" if cluster.cores is None else f"one machine of {cluster.cores} processors"
        parts = []
        for stage in self.stages:
            bound = f" ({stage.bound})" if stage.tasks else ""
            parts.append(f"{stage.name} {human_seconds(stage.seconds)}{bound}")
        memory = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.worker_memory.items())
        costs = (cluster.scheduler_s, cluster.client_s, cluster.worker_s, cluster.latency_s)
        of_task = "a task: scheduler {:.3g} ms, client {:.3g} ms, worker {:.3g} ms; latency {:.3g} ms"
        storage = "as fast as measured here"
        if not math.isinf(cluster.storage):
            storage = f"{cluster.storage / 1e9:.3g} GB/s"
        moved = human_bytes(self.total("network_bytes"))
        terms = [(f"{stage.name} by", stage.terms()) for stage in self.stages if stage.bounds]
        return [
            ("cluster", f"{cluster.workers:,} workers x {cluster.threads} threads, {where}"),
            ("time", f"about {human_seconds(self.seconds)}: {', '.join(parts)}"),
            *terms,
            ("tasks", f"{self.total('tasks'):,}"),
            ("network", f"{moved}, {human_bytes(self.total('client_bytes'))} of it to and from the client"),
            ("bytes written", f"{human_bytes(self.written_bytes)}: labels and centers"),
            ("worker memory", f"{human_bytes(self.worker_bytes)} each{self._above()}; {memory}"),
            ("client memory", self._client_memory()),
            ("scheduler memory", human_bytes(self.scheduler_bytes)),
            ("assumed", of_task.format(*(1e3 * cost for cost in costs))),
            ("", f"network {cluster.bandwidth / 1e9:.3g} GB/s a machine; storage {storage}"),
        ]

    def _above(self) -> str:
        """What workers lack, and the remedy; nothing where they have enough."""
        limit = self.cluster.workers_memory[0].limit_bytes
        if self.worker_bytes <= HELD_SHARE * limit:
            return ""
        needed = human_bytes(int(self.worker_bytes / HELD_SHARE))
        return (
            f", above {HELD_SHARE:.0%} of their limit of {human_bytes(limit)}: workers with a limit of {needed}, or "
            f"more workers"
        )

    def _client_memory(self) -> str:
        """What the client takes, with labels and without; what to do where that is more than it may."""
        needed, limit = human_bytes(self.client_bytes), self.plan.limit_bytes
        if self.client_bytes > limit:
            needed += f", above the limit of {human_bytes(limit)}: a client of more memory"
        labelled = f"{needed}; {human_bytes(self.labelled_client_bytes)} if labels_ is asked for"
        if self.labelled_client_bytes <= limit:
            return labelled
        return f"{labelled}: leave labels on workers (dask_labels_), or write them (fit(..., labels_to=...))"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        values = {name: value for name, value in asdict(self).items() if name != "plan"}
        values["cluster"] = {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in values["cluster"].items()
        }
        totals = {name: self.total(name) for name in ("tasks", "read_bytes", "network_bytes")}
        return {**values, **totals, "seconds": self.seconds, "worker_bytes": self.worker_bytes}


def human_seconds(seconds: float) -> str:
    """Seconds for people: ``12 s``, ``3.5 h``."""
    for unit, size in (("d", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
