"""What a sketch store is made of, settled before it is written: how its source is walked, prepared and sketched.

A source and what the user chose come in, a `RowReader` and a `Sketch` go out. Writes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from streamkm.cluster.model import Metric
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.row_sample import SampleRule
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.progress import Progress, Stage
from streamkm.engine import Executor, local_threads
from streamkm.passes.context import PassContext
from streamkm.passes.gathered import Gathered
from streamkm.passes.prepare import check_replayable, find_preparation
from streamkm.passes.reader import Invalid, RowReader
from streamkm.passes.sketch import sketch_pass
from streamkm.planning.memory_budget import planned_line_limit
from streamkm.planning.sample_plan import plan_store
from streamkm.planning.sketch_choice import PCA_FEW_CLUSTERS, choose_sketch
from streamkm.preparation import Preparation
from streamkm.sketches import DATA_DEPENDENT, Sketch, SketchOptions, find_sketch, make_sketch, sketch_names
from streamkm.sources.base import RowSource
from streamkm.sources.prepared import PreparedRows
from streamkm.stores.writer import StoredRows

logger = logging.getLogger(__name__)

AUTO = SketchOptions()
PCA_ROWS = 10_000  # that directions, and quartiles, are found on


def reader_for_store(
    source: RowSource,
    metric: Metric,
    invalid: Invalid,
    *,
    sketch: SketchOptions = AUTO,
    preprocess: tuple[str, ...] = (),
    memory_limit: Any = "auto",
    executor: Any = "auto",
) -> tuple[RowReader, int]:
    """RowReader a source in chunks of the size that a fit would take, by so many threads.

    `sketch`: as of `choose_store_sketch`. `preprocess`: what is done to rows before; `prepared_reader` finds what they
    must know. `memory_limit`, `executor`: as of `StreamKMeans`. Raises InvalidParameterError: what does not fit the
    source; MemoryLimitError: if the pass would not fit in memory.
    """
    known = ("auto", *sketch_names())
    if sketch.sketch not in known:
        raise InvalidParameterError(f"sketch={sketch.sketch!r}; needed: one of {', '.join(map(repr, known))}")
    if preprocess and source.is_sketched:
        raise InvalidInputError(
            f"the rows of {source.name} are sketched already, and preprocess is for original ones; leave preprocess out"
        )
    if preprocess:
        preparation = Preparation(preprocess)
        check_replayable(source, preparation)
        source = PreparedRows(source, preparation)
    planned = choose_sketch(source, sketch, PCA_FEW_CLUSTERS)
    found_on = PCA_ROWS if planned.sketch in DATA_DEPENDENT or {"robust", "table"} & {*preprocess} else 0
    n_threads = local_threads(executor)
    stored = StoredRows.memory
    plan = plan_store(source, planned, found_on, stored=stored, memory_limit=memory_limit, n_threads=n_threads)
    source = planned_line_limit(source, memory_limit, plan)
    return RowReader(source, plan.chunk_bytes, metric, invalid, may_index=True), plan.n_threads


def prepared_reader(reader: RowReader, executor: Executor, progress: Progress) -> RowReader:
    """The same reader, once steps have found what they must know: a pass over the original rows for each that must.

    Raises InvalidInputError: for rows that are invalid, unless they are to be skipped.
    """
    preparation, original = reader.source.prepared_by, reader.source.original
    if preparation is None or preparation.is_complete:
        return reader
    context = PassContext(executor=executor, reader=replace(reader, source=original))
    return replace(reader, source=PreparedRows(original, find_preparation(context, preparation, PCA_ROWS, progress)))


def choose_store_sketch(
    reader: RowReader, sketch: SketchOptions, seed: int, executor: Executor, stage: Stage
) -> Sketch:
    """The sketch for a store of a source's rows, as a fit would choose it.

    `sketch`: by name, and its number of components. One that is found on rows reads the source once more, beforehand,
    for a sample of them. `seed`: from 0 to 2^64 - 1; of the hash, or of the sample and its directions. Raises
    InvalidParameterError: what does not fit the source.
    """
    planned = choose_sketch(reader.source, sketch, PCA_FEW_CLUSTERS)
    kind, m = planned.sketch, planned.n_components
    logger.info("sketch: %s, %d components: %s", kind, m, planned.why_sketch)
    if kind not in DATA_DEPENDENT:
        return make_sketch(kind, m, seed, reader.source.n_features)
    rule = SampleRule.of(PCA_ROWS, seed, reader.source.estimated_rows, NO_WEIGHTS)
    sketched = sketch_pass(PassContext(executor=executor, reader=reader), Gathered(rule), stage)
    return find_sketch(kind, m, seed, sketched.sample.X, PCA_FEW_CLUSTERS)
