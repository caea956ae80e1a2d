"""The most variable genes of cells, found in one pass, within a memory limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamkm.core.memory import memory_limit_bytes, trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import local_threads, open_executor, under_limit
from streamkm.engine.memory import ReadingMemory
from streamkm.passes.context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.passes.variable_genes import VariableGenes
from streamkm.planning.memory_budget import accepted
from streamkm.planning.sample_plan import SamplePlan, plan_stages
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes
from streamkm.sources.genes import GenesToFind

STAGE = "genes"


def find_genes(
    source: RowSource,
    *,
    executor: Any = "auto",
    memory_limit: Any = "auto",
    progress: Progress | None = None,
    then: Callable[..., Any] | None = None,
) -> RowSource:
    """The cells of a source with their most variable genes alone; any other source as it is.

    The genes are the same for any number of threads and workers.

    Parameters
    ----------
    source : RowSource
    executor : "auto", int, or a Dask client
    memory_limit : "auto", int, float or str
    progress : Progress, optional
    then : callable, optional
        Plans what is done with the cells, by `source` and `memory_limit`; a limit that it refuses finds no genes.

    Raises
    ------
    InvalidInputError
        A negative value, NaN, or infinity, with its row; no cells.
    MemoryLimitError
        The pass, or what follows, has no room below the limit.
    """
    if not isinstance(source, GenesToFind):
        return source
    cells, n_threads, what = source.source, local_threads(executor), "pass that finds the most variable genes"

    def stages(reading: ReadingMemory) -> dict[str, int]:
        return {STAGE: reading.peak(VariableGenes.memory(cells, reading.largest_chunk))}

    def planned(below: Any) -> SamplePlan:
        plan = plan_stages(cells, decoded_row_bytes(cells), stages, below, n_threads, what, "choose genes by a column")
        if then is not None:
            then(source, memory_limit=below)
        return plan

    plan = accepted(planned, memory_limit)
    reader = RowReader(cells, plan.chunk_bytes, "euclidean", "raise")
    genes = VariableGenes(source.n_features, cells.n_features or 0, cells.name)
    with (
        under_limit(memory_limit),
        open_executor(executor, plan.n_threads) as workers,
        (progress or Progress()).stage(STAGE, cells.n_chunks(plan.chunk_bytes) or 1) as stage,
    ):
        trim_heap(memory_limit_bytes(memory_limit))
        numbers, stage.rows = PassContext(executor=workers, reader=reader).run(genes, stage)
    return source.found(numbers.tolist(), stage)
