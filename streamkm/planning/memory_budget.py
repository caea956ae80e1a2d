"""Memory that the process and a limit leave for data, sizes that keep the limit, and the refusal of larger plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil
from typing import Any, TypeVar

from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import (
    available_memory,
    given_process_memory,
    human_bytes,
    is_given,
    memory_limit_bytes,
    resident_bytes,
    with_process_memory,
)
from streamkm.engine.dask_workers import WorkerMemory
from streamkm.engine.pass_memory import MIB, ReadingMemory
from streamkm.kernels.centers.nearest import nearest_csr, nearest_dense
from streamkm.passes.gathered import CANDIDATES
from streamkm.passes.sizes import Sizes
from streamkm.planning.memory_model import HELD_SHARE, MemoryModel, PlannedWorkers
from streamkm.sources.chunks import SMALLEST_CHUNK_BYTES, Access, default_chunk_bytes
from streamkm.sources.row_source import RowSource
from streamkm.sources.text_lines import LineLimit

AUTO_BYTES = 320 * MIB  # without a limit, so that results never depend on the process
# A process with NumPy, SciPy, scikit-learn and numba, 140 MiB measured, takes 44 to 51 more in its first fit: kernels
# from the cache and what runs them. Plans are the same wherever processes hold at most 148 MiB, or about the same.
LEAST_BYTES, STEP_BYTES = 200 * MIB, 32 * MIB
FIRST_BYTES, LATER_BYTES = 52 * MIB, 8 * MIB  # by which a first fit grows, and a later one: rarer kernels
WORDS_BYTES = 8 * MIB  # of the tokenizer
SEARCH = "search"  # stage of the one worker that searches for starts
SAMPLE_BYTES = 256 * MIB
LOADED_ROOM_MIB = 512  # beside data that are loaded whole, before anything is planned
SHARE = 8  # of the memory for data, one part each for the row sample and for chunks
KEPT_SHARE = 4  # without a limit: of the memory for data, one part for cached rows
PLANNED_THREADS = 4  # that the chunks' part is shared by, however many there are: sizes do not depend on threads
DRAWN_STEP, FEWEST_DRAWN = 4, 64  # rows that are drawn by their share of the objective: so many times fewer; at least

AnyPlan = TypeVar("AnyPlan", bound=Any)


def process_memory(memory_limit: Any, source: RowSource, *, on_cluster: bool = False) -> int:
    """Bytes that this process, client of a cluster or alone, will hold beside data, in steps; or those of the limit."""
    if not is_given(memory_limit):
        return AUTO_BYTES
    given = given_process_memory(memory_limit)
    if given is not None:
        return given
    libraries = {*source.access.libraries, *(("distributed",) if on_cluster else ())}
    for library in libraries - {"words"}:  # a fit loads them: measured, not assumed
        with suppress(ImportError):
            import_module(library)
    held = resident_bytes() - source.access.resident_bytes + source.access.unloaded_bytes
    # a fit that has loaded its kernels ends by looking for the nearest centers
    has_fitted = getattr(nearest_csr if source.is_sparse else nearest_dense, "signatures", True)
    words = WORDS_BYTES * ("words" in libraries)
    more = held + (LATER_BYTES if has_fitted else FIRST_BYTES) - LEAST_BYTES
    return LEAST_BYTES + words + max(0, -(-more // STEP_BYTES)) * STEP_BYTES


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory that a limit leaves for data, beside that of the process, in steps."""

    limit_bytes: int
    # memory beside the plan: `process_memory`, and the rows if they are in memory
    base_bytes: int
    process_memory: int  # see `process_memory`
    # what the machine has left for this process, where no limit was given; None where one was. Only what is kept in
    # memory or on disk is chosen by it: another plan that it has no room for is refused
    free_bytes: int | None = None
    workers: PlannedWorkers | None = None  # of a cluster

    @classmethod
    def of(
        cls, memory_limit: Any, source: RowSource, *, on_cluster: bool = False, workers: Sequence[WorkerMemory] = ()
    ) -> MemoryBudget:
        """The budget for these rows, of the client of a cluster or alone; see `core.memory.memory_limit_bytes`."""
        limit, process = memory_limit_bytes(memory_limit), process_memory(memory_limit, source, on_cluster=on_cluster)
        free = None if is_given(memory_limit) else available_memory()
        base = process + source.access.resident_bytes
        # before anything asks for rows, which would load them
        if source.access.resident_bytes and source.access.unloaded_bytes and base > limit:
            raise MemoryLimitError(
                f"{source.name} can only be loaded whole, and needs about {human_bytes(base)}, above the limit of "
                f"{human_bytes(limit)}; raise memory_limit to {-(-base // MIB) + LOADED_ROOM_MIB:,} MiB"
            )
        return cls(limit, base, process, free, PlannedWorkers.of(workers))

    def chunk_bytes(self, source: RowSource, asked: int | str, row_bytes: int) -> int:
        """Decoded bytes of a chunk: those asked for, or the default, or less if that has no room."""
        if asked != "auto":
            return int(asked)
        share = SHARE * source.access.read_factor * PLANNED_THREADS
        return default_chunk_bytes(source, row_bytes=row_bytes, largest=int(self._room / share))

    def threads(self, n_threads: int, peak: Callable[[int], int]) -> int:
        """The most threads that have room, by the projected `peak`, beside sizes that are planned for one."""
        return next((count for count in range(n_threads, 1, -1) if peak(count) <= self.now_bytes), 1)

    def most_sampled(self, row_bytes: int) -> int:
        """Rows that the row sample has room for."""
        return min(SAMPLE_BYTES, int(self._room / (SHARE * CANDIDATES))) // max(1, row_bytes)

    def room_for_rows(self, peak_bytes: int) -> int:
        """Bytes for cached rows beside the plan: below the limit, or a quarter of free memory without one."""
        if self.free_bytes is None:
            return self.limit_bytes - peak_bytes
        free = self.free_bytes - (peak_bytes - self.base_bytes)
        return min(free, self._room) // KEPT_SHARE

    def excess_bytes(self, sizes: MemoryModel) -> int:
        """Bytes by which a fit exceeds the limits of this process and of workers; negative if it keeps them."""
        excess, workers = max(sizes.stages(self.base_bytes).values()) - self.limit_bytes, self.workers
        return excess if workers is None else max(excess, max(workers.stages(sizes).values()) - workers.limit_bytes)

    def first_that_fits(self, models: Iterable[MemoryModel]) -> MemoryModel:
        """The first model that keeps the limits, else the one that exceeds them least."""
        tried = list[MemoryModel]()
        for model in models:
            if self.excess_bytes(model) <= 0:
                return model
            tried.append(model)
        return min(tried, key=self.excess_bytes)

    def planned_workers(self, sizes: MemoryModel) -> PlannedWorkers | None:
        """The workers with their stages; one searches for starts on drawn rows if it has room, else the client does."""
        if self.workers is None:
            return None
        workers, memory = self.workers, self.workers.stages(sizes)
        searching = workers.base_bytes + workers.held_bytes(sizes) + sizes.searching_bytes(sizes.rows.n_rows)
        if sizes.cluster_on == "blocks" and searching <= workers.limit_bytes:
            memory[SEARCH] = searching
        return replace(workers, memory=memory)

    @property
    def now_bytes(self) -> int:
        """The limit, or the machine's free memory if that is less: for choices that change no result."""
        return self.limit_bytes if self.free_bytes is None else min(self.limit_bytes, self.base_bytes + self.free_bytes)

    @property
    def _room(self) -> int:
        return self.limit_bytes - self.base_bytes


def smaller_sizes(first: Sizes, chunk_bytes: int | str, fewest_sampled: int) -> Iterator[Sizes]:
    """Sizes to try in turn: first those that cost time shrink, then rows, as far as they do not decide on quality.

    The smaller sizes are the same for any limit, so a limit that the last ones fit in is accepted.
    """
    yield first
    sizes = first
    while chunk_bytes == "auto" and sizes.chunk_bytes > SMALLEST_CHUNK_BYTES:
        sizes = replace(sizes, chunk_bytes=_power_below(sizes.chunk_bytes, SMALLEST_CHUNK_BYTES))
        yield sizes
    while sizes.sample_rows > fewest_sampled:
        sizes = replace(sizes, sample_rows=_power_below(sizes.sample_rows, fewest_sampled))
        yield sizes
    while sizes.drawn_rows // DRAWN_STEP >= FEWEST_DRAWN:  # fewer would not tell what the sample missed
        sizes = replace(sizes, drawn_rows=sizes.drawn_rows // DRAWN_STEP)
        yield sizes
    while sizes.searched_rows > sizes.fewest_searched:
        sizes = replace(sizes, searched_rows=_power_below(sizes.searched_rows, sizes.fewest_searched))
        yield sizes


def _power_below(value: int, smallest: int) -> int:
    """The largest ``smallest * 2^i`` below a value that is larger than `smallest`."""
    return int(smallest << ((value - 1) // smallest).bit_length() - 1)


def reading_of(
    access: Access, n_threads: int, largest: int, *, n_chunks: int = 1, on_cluster: bool = False
) -> ReadingMemory:
    """The memory of reading a source whose largest chunk has `largest` decoded bytes."""
    return ReadingMemory(
        n_threads=n_threads, read_factor=access.read_factor, largest_chunk=largest, n_chunks=n_chunks,
        producer_bytes=access.producer_bytes, shared_bytes=access.shared_bytes, streams=access.streams,
        sequential=access.sequential, on_cluster=on_cluster, sent=on_cluster and (access.streams or access.in_process),
    )  # fmt: skip


def largest_chunk(source: RowSource, chunk_bytes: int) -> int:
    """Decoded bytes of the largest chunk, or of a piece if the source only streams."""
    return source.chunks(chunk_bytes).largest_bytes or chunk_bytes


def accepted(plan: Callable[[Any], AnyPlan], limit: Any, *, on_workers: bool = False) -> AnyPlan:
    """The plan below a limit, of this process or of workers.

    A refusal names a limit that is accepted, as a plan may need more below a higher one.
    """
    try:
        return plan(limit)
    except MemoryLimitError as refused:
        tried, needed, process = 0, refused.needed_bytes, given_process_memory(limit)
        while needed is not None and refused.on_workers == on_workers:
            refused.needed_bytes = tried = max(tried + MIB + tried // 64, -(-needed // MIB) * MIB)
            try:
                plan(tried if process is None else with_process_memory(tried, process))
                break
            except MemoryLimitError as error:
                needed = error.needed_bytes if error.on_workers == on_workers else None
        raise refused


def checked(plan: AnyPlan, remedy: str, largest: int, budget: MemoryBudget, *, what: str = "fit") -> AnyPlan:
    """The plan, if it fits; else raises MemoryLimitError with the size, the reason and the remedy."""
    stage, peak = max(plan.memory.items(), key=lambda each: each[1])
    said = f"the {what} of {plan.source} needs about {human_bytes(peak)} (stage {stage!r})"
    said += " in this process, the client of the cluster" if budget.workers is not None else ""
    free = budget.free_bytes
    if peak <= plan.limit_bytes:
        if free is None or peak - plan.base_bytes <= free:
            return plan
        raise MemoryLimitError(
            f"{said}, and of the machine's memory {human_bytes(free)} are free; end what takes the rest, or pass "
            f'memory_limit="{(plan.base_bytes + free) // MIB} MiB", so that the {what} is planned for that'
        )
    said += f", above the limit of {human_bytes(plan.limit_bytes)}"
    if plan.base_bytes >= plan.limit_bytes:
        said, remedy = f"{said}; {human_bytes(plan.base_bytes)} of it are this process and its libraries", ""
    elif largest > 2 * plan.chunk_bytes:
        said += f": it is stored in chunks of {human_bytes(largest)}, which can only be read whole"
        remedy = "store it in smaller ones"
    raise MemoryLimitError(said, peak, remedy)


def with_line_limit(
    source: RowSource, memory_limit: Any, peak_bytes: int, chunk_bytes: int, n_threads: int
) -> RowSource:
    """The rows, with long text lines refused: a line has the room of a chunk and a share of what the plan leaves."""
    if not is_given(memory_limit):
        return source
    limit_bytes = memory_limit_bytes(memory_limit)
    n_readers = 1 if source.access.streams else n_threads
    left = limit_bytes - peak_bytes
    room = (left // n_readers if left > 0 else left) + int(source.access.read_factor * chunk_bytes)
    return source.with_line_limit(LineLimit(limit_bytes, room, n_readers))


def planned_line_limit(source: RowSource, memory_limit: Any, plan: Any) -> RowSource:
    """The rows with the `with_line_limit` of a plan."""
    return with_line_limit(source, memory_limit, plan.peak_bytes, plan.chunk_bytes, plan.n_threads)


def check_workers(workers: PlannedWorkers | None, source: str) -> None:
    """Raise MemoryLimitError with the number if workers of a cluster have too little memory for a fit."""
    if workers is None or workers.peak_bytes <= workers.limit_bytes:
        return
    peak, limit = workers.peak_bytes, workers.limit_bytes
    stage = max(workers.memory, key=lambda name: workers.memory[name])
    raise MemoryLimitError(
        f"the fit of {source} needs about {human_bytes(peak)} on each of {workers.n_workers:,} workers (stage "
        f"{stage!r}), {human_bytes(peak - limit)} above the {human_bytes(limit)} that the smallest can hold: "
        f"{HELD_SHARE:.0%} of its memory limit; {human_bytes(workers.base_bytes)} are its process. The memory of this "
        f"process is not the reason",
        ceil(peak / HELD_SHARE),
        "more workers, or use fewer n_components or fewer n_clusters",
        on_workers=True,
    )
