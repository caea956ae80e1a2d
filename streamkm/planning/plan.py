"""What a run will do, decided before the first read: sketch, sizes, regime, passes, bytes.

Pure functions of the source's description, the parameters and the memory that may be taken. Reads no rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from streamkm.cluster.coreset import CoresetRule, Method, default_size
from streamkm.cluster.draws import draw_rows
from streamkm.cluster.model import Space
from streamkm.core.exceptions import InvalidInputError, MemoryLimitError
from streamkm.core.memory import available_memory, human_bytes, memory_limit_bytes
from streamkm.planning.memory import CANDIDATES, LIBRARY_BYTES, Needs, Regime
from streamkm.planning.sketch_choice import choose_sketch
from streamkm.sketches import CountSketch, IdentitySketch, PreconditionedSampling, Sketch
from streamkm.sketches.countsketch import DENSE_COMPONENTS
from streamkm.sketches.registry import DATA_DEPENDENT, FIT_BY_PASS, n_directions
from streamkm.sketches.subspace import subspace_passes
from streamkm.sources.base import ChunkedSource, RowSource

MIB = 1 << 20
SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = MIB, 16 * MIB
CHUNKS_WANTED = 16  # of a small source, so that several workers share it
SAMPLE_ROWS_PER_CLUSTER = 1000  # centers of s sampled rows cost k / s of the objective: 0.1 percent
SMALLEST_SAMPLE_ROWS = 50_000
SAMPLE_BYTES = 256 * MIB
SHARE = 8  # of what a limit leaves for data, one part each for the row sample and for the chunks that are read
DRAWN_STEP, FEWEST_DRAWN = 4, 64  # rows that are drawn by their share of the objective: so many times fewer; at least
SPILL_SHARE = 0.9  # of the room that a projection leaves, for blocks that are kept in memory
# what the sample is not made smaller than for want of memory: so many rows, or bytes where rows are wide
FEWEST_SAMPLED, FEWEST_PER_CLUSTER, SMALLEST_SAMPLE_BYTES = 1000, 20, 8 * MIB
UNKNOWN_ROW_BYTES = 1024
LEAVES_ZEROS = ("countsketch", "identity", "leverage", "laplacian", "selection")  # of sparse rows
MOST_ROUNDS = 2  # of looking further, where `refine` is "auto"
MANY_CENTERS = "found on two levels, moved among neighbours; rows are assigned by an index, to the nearest for certain"
MANY_CHUNKS = 1 << 16  # of a source that does not say how many rows it has


AnyPlan = TypeVar("AnyPlan", bound="Projected")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a limit leaves for data: by the limit and the data alone, whatever else the process holds.

    Attributes
    ----------
    limit_bytes : int
    base_bytes : int
        What a process that does nothing else holds: its libraries, and the rows if they are in memory.
    free_bytes : int or None
        What the machine has left for this process, where no limit was given; None where one was. Only what is kept in
        memory or on disk is chosen by it: another plan that it has no room for is refused.
    """

    limit_bytes: int
    base_bytes: int
    free_bytes: int | None = None

    @classmethod
    def of(cls, memory_limit: Any, source: RowSource) -> Allowance:
        """Of a fit of these rows; see `core.memory.memory_limit_bytes`."""
        limit, base = memory_limit_bytes(memory_limit), LIBRARY_BYTES + source.held_bytes
        unlimited = isinstance(memory_limit, str) and memory_limit == "auto"
        return cls(limit, base, available_memory() if unlimited else None)

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
    n_threads : int
        Threads of this process that work on rows, at most.
    fit_passes : int
        How many of the passes find the sketch; 0 where it needs no rows, or the row sample's.
    block_room : int or None
        Bytes of sketched rows that are kept in memory where they are spilled; None where they are not.
    chooses_space : bool
        Whether rows are labelled in the sketch's space where the limit has no room for the original one, and only then.
    more_passes : int
        That are made, at most, where the sample missed something.
    drawn_rows : int
        Rows that the last pass draws by their share of the objective, to tell whether it did; 0: none.
    keeps_sample : bool
        Whether the row sample is kept, so that such a pass begins with a search.
    few_sampled : bool
        Whether the limit left fewer sampled rows than serve: such passes are worth it for less.
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
    n_threads: int
    fit_passes: int = 0
    block_room: int | None = None
    chooses_space: bool = False
    more_passes: int = 0
    drawn_rows: int = 0
    keeps_sample: bool = False
    few_sampled: bool = False

    def coreset_rule(self, n_clusters: int, seed: int) -> CoresetRule | None:
        """How the coreset is drawn; None where there is none."""
        if self.regime != "coreset" or self.needs is None:
            return None
        return CoresetRule(self.needs.coreset_rows, n_clusters, seed, self.coreset)

    def space_for(self, n_features: int) -> Space:
        """Where rows are assigned, once the number of features is known."""
        if self.assign_space is not None or self.needs is None:
            return self.assign_space or "original"
        needs = replace(self.needs, n_features=n_features)
        memory = needs.stages(self.regime, "original", self.base_bytes, self.block_room or 0)
        return "original" if max(memory.values()) <= self.limit_bytes else "sketch"

    @property
    def expected_space(self) -> Space:
        """Where rows are assigned, by the number of features that is known or estimated."""
        return self.space_for(0 if self.needs is None else self.needs.n_features)

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
            ("assignment", self._assignment()),
            *([("centers", MANY_CENTERS)] if self.needs is not None and self.needs.many else []),
            ("passes", f"{self.passes}{self._more()}"),
            (
                "bytes read",
                "unknown"
                if total is None
                else f"{human_bytes(total)} ({self.passes} x {human_bytes(total // self.passes)})",
            ),
            ("bytes written", self._written()),
            ("memory", f"{human_bytes(self.peak_bytes)} at the peak, of {human_bytes(self.limit_bytes)}; {memory}"),
        ]

    def _more(self) -> str:
        return f", up to {self.more_passes} more if the sample missed something" if self.more_passes else ""

    def _assignment(self) -> str:
        if self.assign_space is None and self.needs is not None:
            about = f"about {self.needs.n_features:,} features"
            return f"in the {self.expected_space} space, if there are {about}; settled after the first pass"
        by_limit = self.chooses_space and self.assign_space == "sketch"
        why = ": the centers of the original one have no room below the limit" if by_limit else ""
        return f"in the {self.expected_space} space{why}"

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
    refine: int | str,
    assign_space: Space | Literal["auto"],
    coreset: str | None,
    chunk_bytes: int | str,
    memory_limit: Any,
    n_threads: int,
    weighted: bool = False,
    sketch_fit: str = "sample",
    gathers_labels: bool = True,
    refuses: bool = True,
) -> Plan:
    """Decide how a fit will go, from what is known without reading.

    Parameters
    ----------
    memory_limit : "auto", int, float or str
        See `core.memory.memory_limit_bytes`.
    n_threads : int
        Threads of this process that will read.
    sketch_fit : "sample" or "all"
        What a sketch that depends on the data is found on.
    gathers_labels : bool
        Whether this process holds the labels of all rows.
    refuses : bool
        Whether what does not fit is refused; it is not where other machines are planned.

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
    allowance = Allowance.of(memory_limit, source)
    found = kind in DATA_DEPENDENT and isinstance(sketch, str)
    streamed = found and sketch_fit == "all" and kind in FIT_BY_PASS
    fit_passes = subspace_passes(n_features) if streamed else 0
    asked = refine if isinstance(refine, int) else 0
    if once:
        _check_once(source, kind, assign_space, asked, found=found)
    wanted = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    few = max(FEWEST_SAMPLED, FEWEST_PER_CLUSTER * n_clusters)
    fewest = max(n_clusters, min(few, wanted, SMALLEST_SAMPLE_BYTES // row_bytes))  # whatever the limit
    drawn = draw_rows(n_clusters, row_bytes)
    first = Sizes(
        allowance.chunk_bytes(source, chunk_bytes, row_bytes, n_threads),
        n_threads,
        max(fewest, min(wanted, allowance.most_sampled(row_bytes))),
        0 if once or drawn < FEWEST_DRAWN else drawn,
        refine == "auto" and not once,
    )
    needs = Needs(
        n_rows=n_rows or first.sample_rows,
        sample_rows=first.sample_rows,
        n_clusters=n_clusters,
        n_features=n_features,
        n_components=components,
        n_threads=n_threads,
        row_bytes=row_bytes,
        block_row_bytes=block_row_bytes(source, row_bytes, sketch, kind, components),
        sample_floats=float_row_bytes(source, row_bytes),
        largest_chunk=0,
        itemsize=4 if source.is_sparse or np.can_cast(source.dtype, np.float32) else 8,
        read_factor=source.read_factor,
        fitted=found,
        n_chunks=0,
        coreset_rows=default_size(n_clusters),
        directions=n_directions(kind, components, n_clusters) if streamed else 0,
        made_bytes=source.made_bytes,
        streams=not isinstance(source, ChunkedSource),
        once=once,
        labels=gathers_labels,
        shared_bytes=source.shared_bytes,
        dense=not source.is_sparse,
    )
    fixed = kind == IdentitySketch.kind and assign_space == "auto"
    spaces: tuple[Space, ...] = ("original", "sketch") if assign_space == "auto" else (assign_space,)
    if once or fixed:
        spaces = ("original",) if kind == IdentitySketch.kind else ("sketch",)
    regimes = _regimes(needs, kind, assign_space, coreset)
    if n_rows is None and regimes.pop("blocks", None) is not None:  # whether memory holds them is not known
        regimes = {"spilled": regimes.pop("spilled"), **regimes}
    choice = _choose(source, needs, regimes, spaces, list(smaller_sizes(first, chunk_bytes, fewest)), allowance)
    needs, regime, space = choice.needs, choice.regime, choice.space
    # a source that only streams is counted as it comes; a chunk of text does not know its first row's number
    counts_first = weighted and source.n_rows is None and isinstance(source, ChunkedSource)
    plan = Plan(
        source=source.name,
        n_rows=n_rows,
        n_features=source.n_features,
        stored_bytes=source.n_bytes,
        passes=1 if once else 2 + asked + counts_first + fit_passes + (found and regime != "sample"),
        counts_first=counts_first,
        chunk_bytes=choice.sizes.chunk_bytes,
        n_chunks=choice.n_chunks,
        sketch=kind,
        n_components=components,
        why_sketch=why,
        regime=regime,
        why_regime=regimes[regime],
        coreset="lightweight" if coreset == "lightweight" else "sensitivity",
        sample_rows=needs.sample_rows,
        assign_space=space if source.n_features is not None or len(spaces) == 1 else None,
        memory=choice.memory(allowance.base_bytes),
        limit_bytes=allowance.limit_bytes,
        base_bytes=allowance.base_bytes,
        needs=needs,
        n_threads=needs.n_threads,
        fit_passes=fit_passes,
        block_room=choice.room if regime == "spilled" else None,
        chooses_space=len(spaces) > 1,
        more_passes=MOST_ROUNDS if refine == "auto" and not once else 0,
        drawn_rows=needs.drawn_rows,
        keeps_sample=needs.keeps_sample,
        few_sampled=needs.sample_rows < min(wanted, n_rows or wanted),
    )
    if not refuses:
        return plan
    return checked(plan, "or use fewer n_components or fewer n_clusters", needs.largest_chunk, allowance)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a plan chooses by itself, beside the regime and the space.

    Attributes
    ----------
    chunk_bytes, n_threads, sample_rows, drawn_rows : int
    keeps_sample : bool
        Whether the row sample is kept for rounds that look further.
    """

    chunk_bytes: int
    n_threads: int
    sample_rows: int
    drawn_rows: int = 0
    keeps_sample: bool = False


def smaller_sizes(first: Sizes, chunk_bytes: int | str, fewest_sampled: int) -> Iterator[Sizes]:
    """Sizes to try in turn: what costs time is given up first, then what costs quality.

    Below the first, they are the same whatever the limit: where the last do not fit, a limit that they fit in helps.
    """
    yield first
    sizes = first
    while chunk_bytes == "auto" and sizes.chunk_bytes > SMALLEST_CHUNK_BYTES:
        sizes = replace(sizes, chunk_bytes=_power_below(sizes.chunk_bytes, SMALLEST_CHUNK_BYTES))
        yield sizes
    if sizes.keeps_sample:
        sizes = replace(sizes, keeps_sample=False)
        yield sizes
    while sizes.drawn_rows:
        fewer = sizes.drawn_rows // DRAWN_STEP
        sizes = replace(sizes, drawn_rows=fewer if fewer >= FEWEST_DRAWN else 0)
        yield sizes
    while sizes.n_threads > 1:
        sizes = replace(sizes, n_threads=_power_below(sizes.n_threads, 1))
        yield sizes
    while sizes.sample_rows > fewest_sampled:
        sizes = replace(sizes, sample_rows=_power_below(sizes.sample_rows, fewest_sampled))
        yield sizes


def _power_below(value: int, smallest: int) -> int:
    """The largest ``smallest * 2^i`` below a value that is larger than `smallest`."""
    power = smallest
    while 2 * power < value:
        power *= 2
    return power


@dataclass(frozen=True, slots=True)
class _Choice:
    """What was chosen.

    Attributes
    ----------
    sizes : Sizes
    needs : Needs
    n_chunks : int or None
    regime : Regime
    space : Space
    room : int
        Bytes of spilled blocks that are kept in memory.
    """

    sizes: Sizes
    needs: Needs
    n_chunks: int | None
    regime: Regime
    space: Space
    room: int = 0

    def memory(self, base: int) -> dict[str, int]:
        """Resident bytes of each stage."""
        return self.needs.stages(self.regime, self.space, base, self.room)

    def with_room(self, allowance: Allowance, n_rows: int | None) -> _Choice:
        """Keep in memory what there is room for of blocks that are spilled."""
        if self.regime != "spilled":
            return self
        limit = allowance.limit_bytes
        if allowance.free_bytes is not None:  # of the machine's memory; what is kept where changes no result
            limit = min(limit, allowance.base_bytes + allowance.free_bytes)
        free = limit - max(self.memory(allowance.base_bytes).values())
        room = max(0, int(SPILL_SHARE * free))
        if n_rows is not None:
            room = min(room, n_rows * (8 + self.needs.block_row_bytes))
        return replace(self, room=room)


def _choose(
    source: RowSource,
    needs: Needs,
    regimes: dict[Regime, str],
    spaces: tuple[Space, ...],
    ladder: list[Sizes],
    allowance: Allowance,
) -> _Choice:
    """The best space, in it the best regime, with it the largest sizes, that fit; else what takes the least memory."""
    cuts: dict[int, _Cut] = {}
    least: _Choice | None = None
    for space in spaces:
        for regime in regimes:
            for sizes in ladder:
                if sizes.chunk_bytes not in cuts:
                    cuts[sizes.chunk_bytes] = _Cut.of(source, sizes.chunk_bytes)
                cut = cuts[sizes.chunk_bytes]
                choice = _Choice(sizes, _sized(source, needs, sizes, cut), cut.n_chunks, regime, space)
                peak = max(choice.memory(allowance.base_bytes).values())
                if peak <= allowance.limit_bytes:
                    return choice.with_room(allowance, source.estimated_rows)
            if least is None or peak < max(least.memory(allowance.base_bytes).values()):
                least = choice
    if least is None:
        raise ValueError("nothing to choose from")
    return least


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a source is cut: how many chunks, if they are known, and bytes of the largest."""

    n_chunks: int | None
    largest: int

    @classmethod
    def of(cls, source: RowSource, chunk_bytes: int) -> _Cut:
        """Cut it; that may read pointers of sparse rows."""
        if not isinstance(source, ChunkedSource):
            return cls(None, chunk_bytes)
        chunks = source.chunks(chunk_bytes)
        return cls(len(chunks), max((chunk.n_bytes for chunk in chunks), default=chunk_bytes))


def _sized(source: RowSource, needs: Needs, sizes: Sizes, cut: _Cut) -> Needs:
    """The needs with these sizes."""
    n_rows = source.estimated_rows
    return replace(
        needs,
        n_rows=n_rows or sizes.sample_rows,
        sample_rows=sizes.sample_rows,
        n_threads=sizes.n_threads,
        drawn_rows=sizes.drawn_rows,
        keeps_sample=sizes.keeps_sample,
        largest_chunk=cut.largest,
        n_chunks=MANY_CHUNKS if n_rows is None or cut.n_chunks is None else max(1, cut.n_chunks),
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


def _regimes(needs: Needs, kind: str, assign_space: Space | Literal["auto"], coreset: str | None) -> dict[Regime, str]:
    """What k-means may run on, best first, and why."""
    spilled = "; what memory does not hold of them is written to disk"
    if needs.once:
        why = "on all sketched rows, whose labels are the result: the data can be walked once only"
        return {"blocks": why, "spilled": why + spilled}
    if coreset == "uniform" or (needs.fitted and coreset == "auto"):
        found = coreset != "uniform" and not needs.directions
        return {"sample": "on the row sample" + (", which its directions are found on" if found else "")}
    if coreset is None:
        why = "on all sketched rows, as asked for"
        return {"blocks": why, "spilled": why + spilled}
    if coreset != "auto":
        return {"coreset": f"on a {coreset} coreset of the sketched rows, as asked for"}
    if kind != IdentitySketch.kind and assign_space != "sketch":
        # a sketch of all rows would only find starts for polishing on the sample: the sample finds them as well
        return {"sample": "on the row sample: with its means polished in the original space, all rows change little"}
    as_they_are = kind == IdentitySketch.kind
    kept = "rows, which are kept as they are" if as_they_are else "sketched rows: labels are the sketch's"
    return {
        "blocks": f"on all {kept}",
        "coreset": "on a sensitivity coreset of the sketched rows: all of them would not fit in memory",
        "spilled": f"on all {kept}; a coreset would not fit in memory{spilled}",
        "sample": "on the row sample: neither all rows nor a coreset would fit in memory",
    }


class Projected(Protocol):
    """What a plan says of memory; see `Plan`."""

    @property
    def source(self) -> str:
        """Its name."""

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of a chunk."""

    @property
    def memory(self) -> dict[str, int]:
        """Resident bytes of each stage."""

    @property
    def limit_bytes(self) -> int:
        """What they may not exceed."""

    @property
    def base_bytes(self) -> int:
        """What the process holds beside data."""


def checked(plan: AnyPlan, remedy: str, largest_chunk: int, allowance: Allowance, *, what: str = "fit") -> AnyPlan:
    """The plan, if it fits.

    Raises
    ------
    MemoryLimitError
        What does not fit, and what to do.
    """
    stage = max(plan.memory, key=lambda name: plan.memory[name])
    peak = plan.memory[stage]
    said = f"the {what} of {plan.source} needs about {human_bytes(peak)} (stage {stage!r})"
    free = allowance.free_bytes
    if peak <= plan.limit_bytes:
        if free is None or peak - plan.base_bytes <= free:
            return plan
        raise MemoryLimitError(
            f"{said}, and of the machine's memory {human_bytes(free)} are free; end what takes the rest, or pass "
            f'memory_limit="{(plan.base_bytes + free) // MIB} MiB", so that the {what} is planned for that'
        )
    said += f", above the limit of {human_bytes(plan.limit_bytes)}"
    needed = f"raise memory_limit to {-(-peak // MIB):,} MiB"
    if plan.base_bytes >= plan.limit_bytes:
        base = human_bytes(plan.base_bytes)
        raise MemoryLimitError(f"{said}; {base} of it are this process and its libraries: {needed}")
    if largest_chunk > 2 * plan.chunk_bytes:
        raise MemoryLimitError(
            f"{said}: it is stored in chunks of {human_bytes(largest_chunk)}, which can only be read whole; "
            f"store it in smaller ones, or {needed}"
        )
    raise MemoryLimitError(f"{said}; {needed}, {remedy}")


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


def block_row_bytes(source: RowSource, row_bytes: int, sketch: Any, kind: str, n_components: int) -> int:
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


def float_row_bytes(source: RowSource, row_bytes: int) -> int:
    """Bytes of a row as floats of its original features, about; 0 where it need not be converted."""
    if source.is_sparse:
        return 0 if source.dtype == np.float32 else 4 * row_bytes // (4 + source.dtype.itemsize)
    working = 4 if np.can_cast(source.dtype, np.float32) else 8
    return 0 if source.dtype in (np.float32, np.float64) else row_bytes // source.dtype.itemsize * working
