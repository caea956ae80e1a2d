"""Plans for sketch stores: preparation and sketch of a new one, and checks of additions to one. Writes nothing."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.model import Metric, Model, Space
from streamkm.cluster.rows import NO_WEIGHTS, merged
from streamkm.cluster.sampling.row_sample import SampleRule, as_block_matrix
from streamkm.core.display import MASK
from streamkm.core.exceptions import InvalidParameterError, StoreError
from streamkm.core.matrix import Matrix, raw
from streamkm.core.progress import Progress, Stage
from streamkm.engine import Executor, local_threads
from streamkm.engine.pass_memory import PassMemory
from streamkm.engine.passes import Map
from streamkm.passes.gathered import Gathered
from streamkm.passes.pass_context import PassContext
from streamkm.passes.prepare import find_preparation, planned_rows
from streamkm.passes.reader import Invalid, RowReader, ValidRows
from streamkm.passes.sketch import sketch_pass
from streamkm.planning.fit_plan import plan_store
from streamkm.planning.memory_budget import planned_line_limit
from streamkm.planning.request import Resources
from streamkm.planning.sketch_choice import PCA_FEW_CLUSTERS, choose_sketch
from streamkm.preparation import Preparation
from streamkm.sketches import DATA_DEPENDENT, find_sketch, make_sketch, sketch_from_dict, sketch_names
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.options import SketchOptions
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.prepared import PreparedRows
from streamkm.sources.remote import is_remote
from streamkm.sources.row_source import RowSource
from streamkm.sources.sketch_store import STEPS_PREFIX, StoreSource

logger = logging.getLogger(__name__)

STORED_COPIES = 4  # of a sketched chunk: made, gathered, compressed, written
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
    """RowReader of a source in chunks of a fit's size, for `n_threads` threads; `prepared_reader` completes its steps.

    Raises InvalidParameterError for options that do not fit the source; MemoryLimitError if the pass does not fit.
    """
    known = ("auto", *sketch_names())
    if sketch.sketch not in known:
        raise InvalidParameterError(f"sketch={sketch.sketch!r}; needed: one of {', '.join(map(repr, known))}")
    source = planned_rows(source, Preparation(preprocess))
    planned = choose_sketch(source, sketch, PCA_FEW_CLUSTERS)
    found_on = PCA_ROWS if planned.sketch in DATA_DEPENDENT or {"robust", "table"} & {*preprocess} else 0
    resources = Resources(memory_limit=memory_limit, chunk_bytes="auto", n_threads=local_threads(executor))
    plan = plan_store(source, resources, planned, found_on, StoredRows.memory)
    source = planned_line_limit(source, memory_limit, plan)
    return RowReader(source, plan.chunk_bytes, metric, invalid, may_index=True), plan.n_threads


def prepared_reader(reader: RowReader, executor: Executor, progress: Progress) -> RowReader:
    """The reader with complete steps, found by one pass over the original rows for each step that needs all of them.

    Raises InvalidInputError for invalid rows, unless they are to be skipped.
    """
    preparation, original = reader.source.origin.prepared_by, reader.source.original
    if preparation is None or preparation.is_complete:
        return reader
    context = PassContext(executor=executor, reader=replace(reader, source=original))
    return replace(reader, source=PreparedRows(original, find_preparation(context, preparation, PCA_ROWS, progress)))


def choose_store_sketch(
    reader: RowReader, sketch: SketchOptions, seed: int, executor: Executor, stage: Stage
) -> Sketch:
    """The sketch for a store of a source's rows, as a fit would choose it; some kinds need a pass that samples rows.

    `seed`: from 0 to 2^64 - 1, of the hash, or of the sample and its directions. Raises InvalidParameterError if the
    sketch does not fit the source.
    """
    planned = choose_sketch(reader.source, sketch, PCA_FEW_CLUSTERS)
    kind, m = planned.sketch, planned.n_components
    logger.info("sketch: %s, %d components: %s", kind, m, planned.why_sketch)
    if kind not in DATA_DEPENDENT:
        return make_sketch(kind, m, seed, reader.source.n_features)
    rule = SampleRule.of(PCA_ROWS, seed, reader.source.estimated_rows, NO_WEIGHTS)
    sketched = sketch_pass(PassContext(executor=executor, reader=reader), Gathered(rule), stage)
    return find_sketch(kind, m, seed, sketched.sample.X, PCA_FEW_CLUSTERS)


@dataclass(frozen=True, slots=True)
class StoredRows(Map[tuple[Matrix, int]]):
    """Sketched rows of a chunk, canonical, with NaN for skipped ones; and the width of the original rows."""

    sketch: Sketch

    @staticmethod
    def memory(block_bytes: int) -> PassMemory:
        """Memory of a pass over stored chunks of `block_bytes`."""
        return PassMemory(kept=STORED_COPIES * block_bytes, output=block_bytes)

    def output(self, rows: ValidRows) -> tuple[Matrix, int]:
        """The rows of one chunk."""
        X = as_block_matrix(merged(self.sketch.apply(rows.X)))
        if isinstance(X, np.ndarray):
            return rows.spread(X, np.nan), rows.X.shape[1]
        if rows.kept is not None:
            gap = sp.csr_array(([X.dtype.type(np.nan)], ([0], [0])), shape=(1, X.shape[1]))
            X = sp.vstack([X, gap], format="csr")[rows.spread(np.arange(X.shape[0]), X.shape[0])]
        return X, rows.X.shape[1]


def sketch_of_store(source: StoreSource) -> Sketch:
    """The sketch of a store's rows. Raises ModelFileError: an unknown kind; SourceError: damaged arrays."""
    return sketch_from_dict(source.info.sketch, source.sketch_arrays())


def model_of_store(source: StoreSource, centers: NDArray[np.float64]) -> Model:
    """A model that prepares and sketches original rows as a store's were, to label them by its centers (k, m)."""
    info, sketch = source.info, sketch_of_store(source)
    space: Space = "original" if sketch.is_identity else "sketch"
    return Model(centers, info.n_features, info.metric, space, sketch, preparation=source.preparation())


def model_on_store(model: Model, source: StoreSource) -> Model:
    """A model with the same centers for rows of a store, which are sketched (and of unit length, under cosine) already.

    Raises StoreError if the model prepares or sketches rows otherwise than the store.
    """
    check_made_alike(source, model.sketch, model.metric, model.preparation)
    return replace(model, n_features=source.info.n_components, metric="euclidean", space="original", preparation=None)


def prepared_as(store: StoreSource, source: RowSource) -> RowSource:
    """Rows of a source, prepared as those of a store before they were sketched."""
    preparation = store.preparation()
    return source if preparation is None else PreparedRows(source, preparation)


def metric_on_store(source: StoreSource, metric: Metric) -> Metric:
    """The metric for reading a store's rows if `metric` was asked for: they are scaled already, or never.

    Raises StoreError: "cosine" for rows that were not of unit length when they were sketched.
    """
    if metric == "cosine" and source.info.metric != "cosine":
        raise StoreError(
            f"{source.path} was sketched for the {source.info.metric} metric, and what was sketched cannot be scaled "
            f"to unit length; sketch the data again with metric='cosine'"
        )
    return "euclidean"


def stored_arrays(sketch: Sketch, preparation: Preparation | None) -> dict[str, NDArray[Any]]:
    """Arrays of a sketch and of steps, as a store has them."""
    found = {} if preparation is None else preparation.arrays()
    return {**sketch.arrays(), **{STEPS_PREFIX + name: values for name, values in found.items()}}


def check_made_alike(source: StoreSource, sketch: Sketch, metric: Metric, preparation: Preparation | None) -> None:
    """Refuse a sketch, metric or steps other than the store's. Raises StoreError, naming the difference."""
    info, steps = source.info, [] if preparation is None else list(map(str, preparation.described()))
    stored: dict[str, Any] = {**info.sketch, "metric": info.metric, "steps": ", ".join(info.steps) or "none"}
    given: dict[str, Any] = {**sketch.to_dict(), "metric": metric, "steps": ", ".join(steps) or "none"}
    for name in dict.fromkeys([*stored, *given]):
        if stored.get(name) != given.get(name):
            raise StoreError(
                f"{source.path} was sketched with {name} {stored.get(name)}, not {given.get(name)}; prepare and sketch "
                f"rows as it does, or sketch the data into another store"
            )
    for name, values in stored_arrays(sketch, preparation).items():
        if zlib.crc32(raw(values)) != info.sketch_checksums.get(name):
            raise StoreError(f"{source.path} was sketched with another {name}; use its own, or the original rows")


def check_appended(source: StoreSource, reader: RowReader) -> None:
    """Refuse rows made otherwise than a store's, of other features, or already in it. Raises StoreError."""
    rows, info = reader.source, source.info
    check_made_alike(source, sketch_of_store(source), reader.metric, rows.origin.prepared_by)
    d, exact = rows.original.n_features, all(entry["exact"] for entry in info.inputs)
    if d is not None and d != info.n_features and (exact or d < info.n_features):  # counted widths may grow
        raise StoreError(
            f"{rows.original.name} has {d:,} features; the rows of {source.path} have {info.n_features:,}: pass rows "
            f"with the same features"
        )
    added = _contents(fingerprint(rows))
    for entry in info.inputs:
        if taken := [file for file in _contents(entry["source"]) if file in added]:
            (path, *_), (start, stop) = taken[0], entry["rows"]
            raise StoreError(
                f"{path} is in {source.path} already, among rows {start:,}-{stop - 1:,}; pass files that are not"
            )


def _contents(described: Mapping[str, Any]) -> list[tuple[str, Any, Any, Any]]:
    """Files of a source by its fingerprint: path, dataset, fields of documents, and the version behind a masked URL."""
    name, documents = described["name"], described.get("made_with", {}).get("documents")
    dataset = name if ":/" in name.replace("://", "") or ".npz:" in name else ""
    return [
        (file["path"], dict(file) if MASK in file["path"] and is_remote(file["path"]) else None, dataset, documents)
        for file in described.get("files", ())
    ]
