"""Values that all stages of a fit share: the context of its passes, plan, settings and progress."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.even_sizes import SizeBounds
from streamkm.cluster.held_rows import Spill
from streamkm.cluster.seeding.init import Starts
from streamkm.cluster.seeding.search_set import search_rows
from streamkm.core.exceptions import InvalidInputError
from streamkm.core.locks import remove_dead_folders
from streamkm.core.memory import heap_restored
from streamkm.core.progress import Progress
from streamkm.engine import Executor, local_executor, open_executor
from streamkm.engine.checkpoint import CheckpointWriter
from streamkm.passes.pass_context import PassContext
from streamkm.passes.sketch import Sketched
from streamkm.planning.plan import Plan
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.kernel_columns import Kernel, KernelFunction
from streamkm.sketches.kernel_map import GramFit


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Kernel parameters as given; `gamma` is a number, None, "auto" or "neighbors"."""

    name: str | KernelFunction
    gamma: float | str | None
    factor: float
    degree: int
    coef0: float

    def with_gamma(self, gamma: float) -> Kernel:
        """The kernel with a width that was found."""
        return Kernel(self.name, gamma, self.degree, float(self.coef0))


@dataclass(frozen=True, slots=True)
class FoundKernel:
    """The width and the trace of a kernel, found in a fit."""

    gamma: float
    trace: float | None = None  # sum of k(x, x) over all rows, if the sample holds all and k(x, x) is not 1


@dataclass(frozen=True, slots=True)
class Mapping:
    """A kernel and its map, or the round of sums over rows that finds the map's projection."""

    kernel: FoundKernel
    found: GramFit | Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Validated settings of a clustering."""

    n_clusters: int
    # "k-means++", "k-means||", "ls++", "random", float64 (k, d), or a function that gives centers
    init: str | NDArray[np.float64] | Callable[..., Any]
    n_init: int | str | Starts  # int, "auto" or Starts
    max_iter: int
    tol: float
    refine: int | str  # int or "auto"
    seeds: np.random.SeedSequence  # source of the named random streams
    sketch: Sketch | None = None  # if it was made already
    spherical: bool = False  # whether centers are kept at unit length
    row_weight: float = 1.0  # of every row, if all weigh alike
    cluster_size: tuple[Any, ...] | None = None  # floor and cap of sizes, and "soft"; floats are multiples of the mean
    accelerated: ClassVar[bool] = True  # whether steps of Lloyd's algorithm without epochs carry means on
    # a name's position sets its seed, so the empty one keeps the results of earlier fits
    streams: ClassVar[tuple[str, ...]] = ("sketch", "sample", "seeding", "search", "coreset", "draws", "", "epochs")

    @property
    def view_rows(self) -> int:
        """Sampled rows for figures and estimates once the labels are known."""
        return search_rows(self.n_clusters)

    @property
    def start_rows(self) -> int | None:
        """Sampled rows on which centers are found; None: all."""
        return None

    def find_map(self, context: FitContext, sketched: Sketched) -> Mapping | None:  # noqa: ARG002
        """Find the map of a kernel; None for other fits."""
        return None

    @property
    def searches(self) -> bool:
        """Whether the start is searched for, not given or drawn at random."""
        return isinstance(self.init, str) and self.init != "random"

    def size_bounds(self, total: float, weights: NDArray[np.float64]) -> SizeBounds:
        """The bounds of sizes for rows of a total weight."""
        whole, given = not len(weights) and self.row_weight == 1, self.cluster_size or (None, None)
        return SizeBounds.of(given, self.row_weight * total, self.n_clusters, whole=whole).times(1 / self.row_weight)

    @property
    def n_refinements(self) -> int:
        """Passes after the first that `refine` prescribes."""
        return self.refine if isinstance(self.refine, int) else 0

    def stream(self, name: str) -> np.random.SeedSequence:
        """The random stream with a name of `streams`."""
        index = self.streams.index(name)
        return np.random.SeedSequence(self.seeds.entropy, spawn_key=(*self.seeds.spawn_key, index))

    def seed64(self, name: str) -> int:
        """A seed of 64 bits."""
        return int(self.stream(name).generate_state(1, np.uint64)[0])

    def generator(self, name: str) -> np.random.Generator:
        """A generator of the named stream."""
        return np.random.default_rng(self.stream(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class FitContext(PassContext):
    """Executors, plan and settings of a fit, which all its stages share."""

    here: Executor  # threads of this process, for its memory; `executor` if that runs in this process
    plan: Plan
    settings: Settings
    progress: Progress
    labels_to: Path | None = None  # Zarr array that calls write the labels to
    labels_stay: bool = False  # whether labels stay on the workers of a cluster; else they are gathered, or written

    @contextmanager
    def of_width(self, n_features: int) -> Iterator[Self]:
        """The context for the next passes, with as many threads as have room for rows of `n_features` features."""
        most = self.plan.threads_for(n_features)
        if self.executor is not self.here or self.executor.n_workers <= most:
            yield self
            return
        with open_executor(most) as fewer:
            yield replace(self, executor=fewer, here=fewer)

    @classmethod
    @contextmanager
    def opened(cls, executor: Any, *, plan: Plan, writer: CheckpointWriter, **attributes: Any) -> Iterator[Self]:
        """Open the executors of a fit, and a spill file if its plan has one; close them at the end."""
        remove_dead_folders()
        with ExitStack() as stack:
            stack.enter_context(heap_restored)
            workers = stack.enter_context(open_executor(executor, plan.n_threads))
            here = stack.enter_context(local_executor(workers))
            room: float | None = plan.block_room
            if room is None and workers is here and writer.checkpoint is not None:
                room = math.inf  # memory holds all rows, and the checkpoint a copy
            spill = None if room is None else stack.enter_context(closing(Spill(room, writer.checkpoint)))
            yield cls(executor=workers, here=here, plan=plan, writer=writer, spill=spill, **attributes)


def check_clusters(n_clusters: int, n_rows: int) -> None:
    """Refuse more clusters than rows."""
    if n_clusters > n_rows:
        raise InvalidInputError(f"n_samples={n_rows} should be >= n_clusters={n_clusters}; use fewer clusters")
