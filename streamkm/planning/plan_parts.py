"""The parts of a plan: its sketch, its samples, the rows it clusters, its epochs, and how it reads. Pure values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkm.cluster.model import Space
from streamkm.cluster.moving_averages import DRAWN_ROWS, GATHERED_ROWS, Schedule
from streamkm.cluster.sampling.coreset import Method
from streamkm.core.matrix import Matrix
from streamkm.passes.sizes import ClusterOn


@dataclass(frozen=True, slots=True)
class EpochRoom:
    """The most rows that epochs may run on in one process, where workers of a cluster hold all rows."""

    gathered: int  # all rows, in a worker
    drawn: int  # in a worker, beside those that it holds
    here: int  # in the client


MUCH_ROOM = EpochRoom(1 << 62, 1 << 62, 0)


def epoch_schedule(
    n_rows: int,
    asked: Any,
    cluster_on: ClusterOn,
    *,
    stored: float | None = None,
    counted: bool = True,
    room: EpochRoom | None = None,
) -> Schedule | None:
    """Epochs on so many rows, by the settings of a fit; None where Lloyd's algorithm is expected, or is as good.

    `stored`: share of the sketched rows' entries that are stored; None: they are dense. `counted`: whether the plan
    knows about how many rows there are. `room`: None: rows are held where epochs run.
    """
    plain = not asked.searches or asked.n_init == 1 or asked.tol == 0
    # a batch would read all rows from disk; rows that are not counted may lie there, unless workers hold them
    if plain or cluster_on == "spilled" or (cluster_on == "blocks" and not counted):
        return None
    n_clusters, n_drawn = asked.n_clusters, None
    if room is not None and n_rows > min(room.gathered, GATHERED_ROWS * n_clusters):
        n_drawn = min(n_rows, DRAWN_ROWS * n_clusters, max(room.drawn, room.here))
    made = Schedule.of(n_rows, n_clusters, asked.max_iter, stored=stored, n_drawn=n_drawn)
    if made is None or room is None:
        return made
    return replace(made, place="worker" if (n_drawn or 0) <= room.drawn else "client")


def stored_share(X: Matrix) -> float | None:
    """Share of the entries of sparse rows that are stored; None for dense rows."""
    return None if isinstance(X, np.ndarray) else X.nnz / max(1, X.shape[0] * X.shape[1])


@dataclass(frozen=True, slots=True)
class PlannedEpochs:
    """Epochs that a fit will run."""

    schedule: Schedule | None  # None where the number of rows is not known
    n_rows: int  # that the epochs look at; where their number is not known, the fewest that epochs run on
    exact: bool = True  # whether the fit will find as many

    def __str__(self) -> str:
        if self.schedule is None:
            return f"if there are {self.n_rows:,} rows or more; the first pass counts them"
        n_epochs, n_batches, n_drawn = self.schedule.n_epochs, self.schedule.n_batches, self.schedule.n_drawn
        about, n_rows = "" if self.exact else "about ", self.n_rows if n_drawn is None else n_drawn
        said = f"{about}{n_epochs} of {n_batches:,} batches of {n_rows // n_batches:,} rows"
        if self.schedule.place:
            said += ", on all rows" if n_drawn is None else f", on {n_drawn:,} rows drawn evenly"
            said += " in one worker" if self.schedule.place == "worker" else " in this process"
        then = "" if n_drawn is None else " on all rows in all workers"
        return f"{said}, then at most {self.schedule.n_steps} steps of Lloyd's algorithm{then}"


@dataclass(frozen=True)
class PlannedSketch:
    """The sketch of a plan."""

    sketch: str  # its kind, as in `streamkm.sketches.SKETCHES`
    n_components: int
    why_sketch: str


@dataclass(frozen=True, kw_only=True)
class PlannedSample:
    """The rows that a fit samples and draws."""

    sample_rows: int  # rows of the row sample, at most
    # rows that the last pass draws by their share of the objective, to tell what the sample missed; 0: none
    drawn_rows: int = 0
    keeps_sample: bool = False  # whether the row sample is kept, so that a further pass begins with a search
    # whether the limit left fewer sampled rows than serve: further passes are worth it for less
    few_sampled: bool = False


@dataclass(frozen=True, kw_only=True)
class PlannedClustering:
    """The rows that a fit clusters, and the space in which it assigns rows."""

    # what k-means runs on. "sample": the row sample; "blocks": all sketched rows, which are kept; "coreset": a weighted
    # coreset of them; "spilled": all of them, those that memory does not hold on disk
    cluster_on: ClusterOn
    why_regime: str
    coreset: Method  # how a coreset is drawn: "sensitivity" or "lightweight"
    assign_space: Space | None  # "original" or "sketch"; None: decided when the number of features is known
    # whether rows are labelled in the sketch's space where the limit has no room for the original one, and only then
    chooses_space: bool = False
    # bytes of sketched rows that are kept in memory where they are spilled; None where they are not
    block_room: int | None = None
    rereads: bool = False  # whether those beyond it are read again from the source, not from a copy
    # of moving averages, between steps of Lloyd's algorithm; None where there are none
    epochs: PlannedEpochs | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedReading:
    """The passes of a fit, and how each of them reads."""

    passes: int
    # what takes one of the passes each, in front of all others, before rows are there: "categories", "idf"
    passes_before: tuple[str, ...] = ()
    # steps that rows are prepared by which take one of the passes each, in front of the others
    finding_steps: tuple[str, ...] = ()
    counts_first: bool  # whether one of the passes comes first and only counts rows, so that weights find theirs
    fit_passes: int = 0  # how many of the passes find the sketch; 0 where it needs no rows, or the row sample's
    # whether the sketch is found on a few rows read ahead, so that the first pass sketches all rows
    reads_ahead: bool = False
    more_passes: int = 0  # further passes, at most, where the sample missed something
    chunk_bytes: int  # decoded bytes of a chunk, about
    n_chunks: int | None
    n_threads: int  # threads of this process that work on rows, at most
    # room for rows that stay in memory once they are read, so that the passes which follow read nothing; 0: each reads
    # them
    cached_bytes: int = 0

    @property
    def from_source(self) -> int:
        """Passes that read the source; the others read cached rows."""
        return 1 + len(self.passes_before) if self.cached_bytes else self.passes
