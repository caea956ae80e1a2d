"""The most variable genes of cells, found in one pass, within a memory limit."""

from __future__ import annotations

from typing import Any

from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import human_bytes, memory_limit_bytes, trim_heap
from streamkm.core.progress import Progress
from streamkm.engine import is_on_cluster, local_threads, open_executor, under_limit
from streamkm.engine.memory import MIB
from streamkm.passes.context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.passes.variable_genes import VariableGenes
from streamkm.planning.memory_budget import MemoryBudget, largest_chunk, reading_of
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes
from streamkm.sources.genes import GenesToFind

STAGE = "genes"


def find_genes(
    source: RowSource, *, executor: Any = "auto", memory_limit: Any = "auto", progress: Progress | None = None
) -> RowSource:
    """The cells of a source with their most variable genes alone; any other source as it is.

    The genes are the same for any number of threads and workers.

    Parameters
    ----------
    source : RowSource
    executor : "auto", int, or a Dask client
    memory_limit : "auto", int, float or str
    progress : Progress, optional

    Raises
    ------
    InvalidInputError
        A negative value, NaN, or infinity, with its row; no cells.
    MemoryLimitError
        The pass has no room below the limit.
    """
    if not isinstance(source, GenesToFind):
        return source
    cells, on_cluster = source.source, is_on_cluster(executor)
    budget = MemoryBudget.of(memory_limit, cells, on_cluster=on_cluster)
    chunk_bytes = budget.chunk_bytes(cells, "auto", decoded_row_bytes(cells))
    largest, n_chunks = largest_chunk(cells, chunk_bytes), cells.n_chunks(chunk_bytes) or 1
    memory = VariableGenes.memory(cells, largest)

    def peak(n_threads: int) -> int:
        reading = reading_of(cells, n_threads, largest, n_chunks=n_chunks, on_cluster=on_cluster)
        return budget.base_bytes + reading.peak(memory)

    needed = peak(1)
    if needed > budget.now_bytes:
        raise MemoryLimitError(
            f"the pass that finds the most variable genes of {cells.name} needs about {human_bytes(needed)}, above the "
            f"limit of {human_bytes(budget.now_bytes)}; raise memory_limit to {-(-needed // MIB):,} MiB, or choose "
            f"genes by a column of var"
        )
    reader = RowReader(cells, chunk_bytes, "euclidean", "raise")
    genes = VariableGenes(source.n_features, cells.n_features or 0, cells.name)
    stages = Progress() if progress is None else progress
    with (
        under_limit(memory_limit),
        open_executor(executor, budget.threads(local_threads(executor), peak)) as workers,
        stages.stage(STAGE, n_chunks) as stage,
    ):
        trim_heap(memory_limit_bytes(memory_limit))
        numbers, stage.rows = PassContext(executor=workers, reader=reader).run(genes, stage)
    return source.found(numbers.tolist(), stage)
