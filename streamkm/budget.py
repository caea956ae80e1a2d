"""What a run will do, decided before the first read: sketch, sizes, regime, passes, bytes.

Pure functions of the source's description, the parameters and the memory that may be taken. May import sources and
below; reads no rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from streamkm.choosing import choose_sketch
from streamkm.cluster.coreset import CoresetRule, Method, default_size
from streamkm.errors import InvalidInputError, MemoryLimitError
from streamkm.limits import human_bytes, memory_limit_bytes, resident_bytes
from streamkm.making import FOUND, STREAMED, n_directions
from streamkm.model import Space
from streamkm.projection import CANDIDATES, LIBRARY_BYTES, LOADING_BYTES, Needs, Regime
from streamkm.sketches import CountSketch, IdentitySketch, PreconditionedSampling, Sketch
from streamkm.sketches.countsketch import DENSE_COMPONENTS
from streamkm.sketches.subspace import subspace_passes
from streamkm.sources.base import ChunkedSource, RowSource

MIB = 1 << 20
SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = MIB, 16 * MIB
CHUNKS_WANTED = 16  # of a small source, so that several workers share it
SAMPLE_ROWS_PER_CLUSTER = 1000  # centers of s sampled rows cost k / s of the objective: 0.1 percent
SMALLEST_SAMPLE_ROWS = 50_000
SAMPLE_BYTES = 256 * MIB
SHARE = 8  # of what a limit leaves for data, one part each for the row sample and for the chunks that are read
SPILL_SHARE = 0.9  # of the room that a projection leaves, for blocks that are kept in memory
UNKNOWN_ROW_BYTES = 1024
BASE_STEP_BYTES = 16 * MIB
LEAVES_ZEROS = ("countsketch", "identity", "leverage", "laplacian", "selection")  # of sparse rows
MANY_CHUNKS = 1 << 16  # of a source that does not say how many rows it has


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a limit leaves for data.

    Attributes
    ----------
    limit_bytes : int
    base_bytes : int
        What the process holds once its libraries are loaded: in steps, so that the same fit is planned alike again.
    """

    limit_bytes: int
    base_bytes: int

    @classmethod
    def of(cls, memory_limit: Any) -> Allowance:
        """Of this process now; see `limits.memory_limit_bytes`."""
        limit = memory_limit_bytes(memory_limit)
        beyond = max(0, resident_bytes() + LOADING_BYTES - LIBRARY_BYTES)
        return cls(limit, LIBRARY_BYTES + -(-beyond // BASE_STEP_BYTES) * BASE_STEP_BYTES)

    def chunk_bytes(self, source: RowSource, asked: int | str, row_bytes: int, n_threads: int) -> int:
        """Decoded bytes of a chunk: those asked for, or what `chunk_size` chooses; less where that finds no room."""
        if asked != "auto":
            return int(asked)
        n_rows = source.estimated_rows
        decoded = None if n_rows is None else n_rows * row_bytes
        return chunk_size(decoded, int(self._room / (SHARE * source.read_factor * n_threads)))

    def most_sampled(self, row_bytes: int) -> int:
        """Rows that the row sample has room for."""
        return min(SAMPLE_BYTES, int(self._room / (SHARE * CANDIDATES))) // max(1, row_bytes)

    @property
    def _room(self) -> int:
        return self.limit_bytes - self.base_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fit will do.

    Attributes
    ----------
    source : str
    n_rows : int or None
        Exact, or about; None if only reading can tell.
    n_features : int or None
    stored_bytes : int or None
        Read in one pass.
    passes : int
    counts_first : bool
        Whether one of them comes first and only counts rows, so that weights find theirs.
    chunk_bytes : int
        Decoded bytes of a chunk, about.
    n_chunks : int or None
    sketch : str
        "identity", "countsketch" or "pca".
    n_components : int
    why_sketch : str
    regime : str
        What k-means runs on. "sample": the row sample; "blocks": all sketched rows, which are kept; "coreset": a
        weighted coreset of them; "spilled": all of them, those that memory does not hold on disk.
    why_regime : str
    coreset : str
        How a coreset is drawn: "sensitivity", "lightweight" or "uniform".
    sample_rows : int
    assign_space : str or None
        "original" or "sketch"; None: decided when the number of features is known.
    memory : dict of str to int
        Projected resident bytes of the process in each stage.
    limit_bytes : int
        What they may not exceed.
    base_bytes : int
        What the process and its libraries hold.
    needs : Needs or None
        What the projection is made of; None where it is another's.
    fit_passes : int
        How many of the passes find the sketch; 0 where it needs no rows, or the row sample's.
    """

    source: str
    n_rows: int | None
    n_features: int | None
    stored_bytes: int | None
    passes: int
    counts_first: bool
    chunk_bytes: int
    n_chunks: int | None
    sketch: str
    n_components: int
    why_sketch: str
    regime: Regime
    why_regime: str
    coreset: Method
    sample_rows: int
    assign_space: Space | None
    memory: dict[str, int]
    limit_bytes: int
    base_bytes: int
    needs: Needs | None
    fit_passes: int = 0

    def coreset_rule(self, n_clusters: int, seed: int) -> CoresetRule | None:
        """How the coreset is drawn; None where there is none."""
        if self.regime != "coreset" or self.needs is None:
            return None
        return CoresetRule(self.needs.coreset_rows, n_clusters, seed, self.coreset)

    def space_for(self, n_features: int) -> Space:
        """Where rows are assigned, once the number of features is known."""
        if self.assign_space is not None or self.needs is None:
            return self.assign_space or "original"
        return _choose_space(replace(self.needs, n_features=n_features), self.regime, self.base_bytes, self.limit_bytes)

    @property
    def sketches_later(self) -> bool:
        """Whether the first pass only samples, and all rows are sketched in one after the sketch is found."""
        return self.needs is not None and self.needs.fitted and self.regime != "sample"

    @property
    def peak_bytes(self) -> int:
        """Projected resident bytes at the peak."""
        return max(self.memory.values())

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        total = None if self.stored_bytes is None else self.stored_bytes * self.passes
        memory = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.memory.items())
        return [
            ("data", self.source),
            ("rows", "known after the first pass" if self.n_rows is None else f"about {self.n_rows:,}"),
            ("features", "known after the first pass" if self.n_features is None else f"{self.n_features:,}"),
            (
                "chunks",
                f"{'unknown number' if self.n_chunks is None else self.n_chunks} of {human_bytes(self.chunk_bytes)}",
            ),
            ("sketch", f"{self.sketch}, {self.n_components:,} components: {self.why_sketch}"),
            ("row sample", f"up to {self.sample_rows:,} rows"),
            ("clustering", self.why_regime),
            ("assignment", f"in the {self.assign_space or 'original'} space"),
            ("passes", str(self.passes)),
            (
                "bytes read",
                "unknown"
                if total is None
                else f"{human_bytes(total)} ({self.passes} x {human_bytes(total // self.passes)})",
            ),
            ("bytes written", self._written()),
            ("memory", f"{human_bytes(self.peak_bytes)} at the peak, of {human_bytes(self.limit_bytes)}; {memory}"),
        ]

    @property
    def block_room(self) -> int | None:
        """Bytes of sketched rows that memory has room for where they are spilled; None where they are not."""
        return int(SPILL_SHARE * max(0, self.limit_bytes - self.peak_bytes)) if self.regime == "spilled" else None

    def _written(self) -> str:
        if self.block_room is None:
            return "none"
        room = f"sketched rows beyond {human_bytes(self.block_room)}"
        if self.n_rows is None or self.needs is None:
            return room
        written = max(0, self.n_rows * (8 + self.needs.block_row_bytes) - self.block_room)
        return f"{room}, about {human_bytes(written)}; read again in every step"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def plan_fit(
    source: RowSource,
    *,
    n_clusters: int,
    sketch: str | Sketch,
    n_components: int | str,
    eps: float | None,
    delta: float,
    refine: int,
    assign_space: Space | Literal["auto"],
    coreset: str | None,
    chunk_bytes: int | str,
    memory_limit: Any,
    n_threads: int,
    weighted: bool = False,
    sketch_fit: str = "sample",
) -> Plan:
    """Decide how a fit will go, from what is known without reading.

    Parameters
    ----------
    memory_limit : "auto", int, float or str
        See `limits.memory_limit_bytes`.
    n_threads : int
        Threads of this process that will read.
    sketch_fit : "sample" or "all"
        What a sketch that depends on the data is found on.

    Raises
    ------
    InvalidInputError
        If the source cannot be walked as often as needed.
    InvalidParameterError
        If a parameter does not fit the data.
    MemoryLimitError
        If the projected memory exceeds the limit.
    """
    n_rows, row_bytes = source.estimated_rows, decoded_row_bytes(source)
    once = not source.replayable
    kind, components, why = choose_sketch(
        source, sketch, n_components, n_clusters, eps=eps, delta=delta, sketch_fit=sketch_fit
    )
    n_features = source.estimated_features or components
    allowance = Allowance.of(memory_limit)  # after the look at the head of a text, which may compile its parser
    limit, base = allowance.limit_bytes, allowance.base_bytes
    size = allowance.chunk_bytes(source, chunk_bytes, row_bytes, n_threads)
    found = kind in FOUND and isinstance(sketch, str)
    streamed = found and sketch_fit == "all" and kind in STREAMED
    fit_passes = subspace_passes(n_features) if streamed else 0
    if once:
        _check_once(source, kind, assign_space, refine, found=found)
    sample_rows = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    sample_rows = max(n_clusters, min(sample_rows, allowance.most_sampled(row_bytes)))
    chunks = source.chunks(size) if isinstance(source, ChunkedSource) else ()
    itemsize = 4 if source.is_sparse or np.can_cast(source.dtype, np.float32) else 8
    needs = Needs(
        n_rows or sample_rows,
        sample_rows,
        n_clusters,
        n_features,
        components,
        n_threads,
        row_bytes,
        _block_row_bytes(source, row_bytes, sketch, kind, components),
        _float_row_bytes(source, row_bytes),
        max((chunk.n_bytes for chunk in chunks), default=size),
        itemsize,
        source.read_factor,
        found,
        max(1, len(chunks)) if n_rows is not None else MANY_CHUNKS,
        default_size(n_clusters),
        n_directions(kind, components, n_clusters) if streamed else 0,
        source.made_bytes,
    )
    if once:
        assign_space = "original" if kind == IdentitySketch.kind else "sketch"
        fits = n_rows is not None and max(needs.stages("blocks", assign_space, base).values()) <= limit
        regime: Regime = "blocks" if fits else "spilled"
        why_regime = "on all sketched rows, whose labels are the result: the data can be walked once only"
    else:
        regime, why_regime = _choose_regime(needs, kind, assign_space, coreset, base, limit)
        if regime == "blocks" and n_rows is None:
            regime, why_regime = "spilled", f"{why_regime}; what memory does not hold of them is written to disk"
    space = _choose_space(needs, regime, base, limit) if assign_space == "auto" else assign_space
    memory = needs.stages(regime, space, base)
    # a source that only streams is counted as it comes; a chunk of text does not know its first row's number
    counts_first = weighted and source.n_rows is None and isinstance(source, ChunkedSource)
    plan = Plan(
        source.name,
        n_rows,
        source.n_features,
        source.n_bytes,
        1 if once else 2 + refine + counts_first + fit_passes + (found and regime != "sample"),
        counts_first,
        size,
        len(chunks) if isinstance(source, ChunkedSource) else None,
        kind,
        components,
        why,
        regime,
        why_regime,
        "lightweight" if coreset == "lightweight" else "sensitivity",
        sample_rows,
        space if source.n_features is not None or assign_space != "auto" else None,
        memory,
        limit,
        base,
        needs,
        fit_passes,
    )
    return checked(
        plan,
        "raise memory_limit, or use fewer n_components, fewer n_clusters, or a smaller chunk_bytes",
        needs.largest_chunk,
    )


def _check_once(source: RowSource, kind: str, assign_space: str, refine: int, *, found: bool) -> None:
    """Refuse what one pass cannot give."""
    refused = {
        f"refine={refine}": refine > 0,
        'assign_space="original"': assign_space == "original" and kind != IdentitySketch.kind,
        f'sketch="{kind}"': found,
    }
    for parameter, given in refused.items():
        if given:
            raise InvalidInputError(
                f"{source.name} can be walked once only, and {parameter} needs another pass; "
                "pass a list of chunks, or a function that returns a fresh iterator"
            )


def _choose_regime(
    needs: Needs, kind: str, assign_space: Space | Literal["auto"], coreset: str | None, base: int, limit: int
) -> tuple[Regime, str]:
    """What k-means runs on, and why."""
    space: Space
    if coreset == "uniform" or (needs.fitted and coreset == "auto"):
        found = coreset != "uniform" and not needs.directions
        return "sample", "on the row sample" + (", which its directions are found on" if found else "")
    if coreset != "auto":
        if coreset is not None:
            return "coreset", f"on a {coreset} coreset of the sketched rows, as asked for"
        space = "original" if kind == IdentitySketch.kind else "sketch"
        fits = max(needs.stages("blocks", space, base).values()) <= limit
        kept = "" if fits else "; what memory does not hold of them is written to disk"
        return "blocks" if fits else "spilled", f"on all sketched rows, as asked for{kept}"
    if kind != IdentitySketch.kind and assign_space != "sketch":
        # a sketch of all rows would only find starts for polishing on the sample: the sample finds them as well
        return "sample", "on the row sample: with its means polished in the original space, all rows change little"
    space = "original" if kind == IdentitySketch.kind else "sketch"
    if max(needs.stages("blocks", space, base).values()) > limit:
        return "coreset", "on a sensitivity coreset of the sketched rows: all of them would not fit in memory"
    kept = "rows, which are kept as they are" if space == "original" else "sketched rows: labels are the sketch's"
    return "blocks", f"on all {kept}"


def _choose_space(needs: Needs, regime: Regime, base: int, limit: int) -> Space:
    """Where rows are assigned: in the original space wherever the centers fit."""
    return "original" if max(needs.stages(regime, "original", base).values()) <= limit else "sketch"


def checked(plan: Plan, remedy: str, largest_chunk: int) -> Plan:
    """The plan, if it fits.

    Raises
    ------
    MemoryLimitError
        What does not fit, and what to do.
    """
    if plan.peak_bytes <= plan.limit_bytes:
        return plan
    stage = max(plan.memory, key=lambda name: plan.memory[name])
    said = (
        f"the fit of {plan.source} needs about {human_bytes(plan.peak_bytes)} (stage {stage!r}), "
        f"above the limit of {human_bytes(plan.limit_bytes)}"
    )
    if plan.base_bytes >= plan.limit_bytes:
        base = human_bytes(plan.base_bytes)
        raise MemoryLimitError(f"{said}; {base} of it are this process and its libraries: raise memory_limit")
    if largest_chunk > 2 * plan.chunk_bytes:
        raise MemoryLimitError(
            f"{said}: it is stored in chunks of {human_bytes(largest_chunk)}, which can only be read whole; "
            "store it in smaller ones, use fewer threads (executor=1), or raise memory_limit"
        )
    raise MemoryLimitError(f"{said}; {remedy}")


def chunk_size(decoded_bytes: int | None, largest: int = LARGEST_CHUNK_BYTES) -> int:
    """Decoded bytes of a chunk for a source of so many decoded bytes.

    The same whatever the machine, unless a memory limit leaves no room for so `largest` ones.
    """
    most = max(SMALLEST_CHUNK_BYTES, min(LARGEST_CHUNK_BYTES, largest))
    if decoded_bytes is None:
        return min(most, LARGEST_CHUNK_BYTES // 2)
    return int(min(most, max(SMALLEST_CHUNK_BYTES, decoded_bytes // CHUNKS_WANTED)))


def decoded_row_bytes(source: RowSource) -> int:
    """Bytes of a row in memory, about."""
    if not source.is_sparse and source.n_features is not None:
        return max(1, source.n_features * source.dtype.itemsize)
    if isinstance(source, ChunkedSource) and source.estimated_rows:
        decoded = sum(chunk.n_bytes for chunk in source.chunks(LARGEST_CHUNK_BYTES))
        return max(1, decoded // source.estimated_rows)
    return UNKNOWN_ROW_BYTES


def _block_row_bytes(source: RowSource, row_bytes: int, sketch: Any, kind: str, n_components: int) -> int:
    """Bytes of a row once sketched, about."""
    if isinstance(sketch, PreconditionedSampling):
        return 8 * sketch.n_kept
    if source.is_sparse and kind in LEAVES_ZEROS:
        if kind == CountSketch.kind and n_components <= DENSE_COMPONENTS:
            return 4 * n_components
        entries = sketch.nnz_per_feature if isinstance(sketch, CountSketch) else 1
        return entries * 8 * row_bytes // (4 + source.dtype.itemsize)
    itemsize = 4 if np.can_cast(source.dtype, np.float32) else 8
    return itemsize * n_components


def _float_row_bytes(source: RowSource, row_bytes: int) -> int:
    """Bytes of a row as floats of its original features, about; 0 where it need not be converted."""
    if source.is_sparse:
        return 0 if source.dtype == np.float32 else 4 * row_bytes // (4 + source.dtype.itemsize)
    working = 4 if np.can_cast(source.dtype, np.float32) else 8
    return 0 if source.dtype in (np.float32, np.float64) else row_bytes // source.dtype.itemsize * working
