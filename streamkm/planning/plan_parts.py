"""The parts of a plan: its sketch, its samples, the rows it clusters, and how it reads. Pure values."""

from __future__ import annotations

from dataclasses import dataclass

from streamkm.cluster.model import Space
from streamkm.cluster.sampling.coreset import Method
from streamkm.passes.sizes import ClusterOn
from streamkm.planning.schedule import EpochRoom, PlannedEpochs


@dataclass(frozen=True)
class PlannedSketch:
    """The sketch of a plan."""

    sketch: str  # its kind, as in `streamkm.sketches.SKETCHES`
    n_components: int
    why_sketch: str
    # components that a feature is added to, where a theorem says how many ("sparse-jl")
    nnz_per_feature: int | None = None


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
    coreset: Method  # how a coreset is drawn: "sensitivity", "lightweight" or "uniform"
    assign_space: Space | None  # "original" or "sketch"; None: decided when the number of features is known
    # whether rows are labelled in the sketch's space where the limit has no room for the original one, and only then
    chooses_space: bool = False
    # bytes of sketched rows that are kept in memory where they are spilled; None where they are not
    block_room: int | None = None
    # of moving averages, between steps of Lloyd's algorithm; None where there are none
    epochs: PlannedEpochs | None = None
    room: EpochRoom | None = None  # for epochs of a kernel fit, where workers hold the features of all rows


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
