"""Everything that walks a source into a sketch store: writing one, adding rows, adding features.

Each of them is one pass that can be killed at any moment and goes on where it was when it is called again: what is done
is recorded beside the store, in ``.NAME.work``. The store itself changes in one step at the end.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Metric
from streamkm.cluster.row_sample import SampleRule
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.compute import Executor, local_threads
from streamkm.core.atomic_io import remove_tree, replace_tree
from streamkm.core.exceptions import InUseError, InvalidInputError, InvalidParameterError, OutputError, StoreError
from streamkm.core.matrix import raw
from streamkm.core.partial_files import REPLACED
from streamkm.core.progress import Progress, Stage
from streamkm.passes.checkpoint import Checkpoint
from streamkm.passes.context import PassContext
from streamkm.passes.prepare import check_replayable, find_preparation
from streamkm.passes.reader import OnInvalid, Walk
from streamkm.passes.resume import Gathered
from streamkm.passes.sketch import sketch_pass
from streamkm.planning.sample_plan import plan_store
from streamkm.planning.sketch_choice import PCA_FEW_CLUSTERS, choose_sketch
from streamkm.preparation import Preparation
from streamkm.sketches import Sketch
from streamkm.sketches.registry import DATA_DEPENDENT, OBLIVIOUS, find_sketch, make_sketch
from streamkm.sources.base import RowSource
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.prepared import PreparedRows, prepared
from streamkm.sources.sketch_store import StoreInfo, StoreSource
from streamkm.stores.compatibility import (
    check_columns,
    check_inputs,
    check_new,
    check_sketch,
    check_steps_of,
    check_width,
    sketch_of_store,
)
from streamkm.stores.pass_ import Job, NewColumns, NewRows, fill_part, other_rows
from streamkm.stores.writer import check_only_store, next_part, part_directory, publish, start_store, sweep_parts

logger = logging.getLogger(__name__)

PCA_ROWS = 10_000  # that directions, and quartiles, are found on


def walk_for_store(
    source: RowSource,
    metric: Metric,
    on_invalid: OnInvalid,
    *,
    sketch: tuple[str, int | str] = ("auto", "auto"),
    steps: tuple[str, ...] = (),
    memory_limit: Any = "auto",
    executor: Any = "auto",
) -> tuple[Walk, int]:
    """Walk a source in chunks of the size that a fit would take, by so many threads.

    Parameters
    ----------
    sketch : (str, int or "auto")
        As `sketch` and `n_components` of `choose_store_sketch`.
    steps : tuple of str
        What is done to rows before; `prepared_walk` finds what they must know.
    memory_limit, executor
        As of `StreamKMeans`.

    Raises
    ------
    InvalidParameterError
        What does not fit the source.
    MemoryLimitError
        If the pass would not fit in memory.
    """
    known = ("auto", *OBLIVIOUS, *DATA_DEPENDENT)
    if sketch[0] not in known:
        raise InvalidParameterError(f"sketch={sketch[0]!r}; needed: one of {', '.join(map(repr, known))}")
    if steps and source.is_sketched:
        raise InvalidInputError(
            f"the rows of {source.name} are sketched already, and steps are for original ones; leave steps out"
        )
    if steps:
        preparation = Preparation(steps)
        check_replayable(source, preparation)
        source = prepared(source, preparation)
    kind, m, _ = choose_sketch(source, *sketch, PCA_FEW_CLUSTERS)
    found_on = PCA_ROWS if kind in DATA_DEPENDENT or "robust" in steps else 0
    n_threads = local_threads(executor)
    plan = plan_store(source, (kind, m), found_on, memory_limit=memory_limit, n_threads=n_threads)
    return Walk(source, plan.chunk_bytes, metric, on_invalid, skims=True), plan.n_threads


def prepared_walk(walk: Walk, executor: Executor, progress: Progress) -> Walk:
    """The same walk, once steps have found what they must know: a pass over the original rows for each that must.

    Raises
    ------
    InvalidInputError
        For rows that are invalid, unless they are to be skipped.
    """
    if not isinstance(walk.source, PreparedRows) or walk.source.preparation.is_complete:
        return walk
    original, steps = walk.source.source, walk.source.preparation.steps
    context = PassContext(executor=executor, walk=replace(walk, source=original))
    return replace(walk, source=prepared(original, find_preparation(context, steps, PCA_ROWS, progress)))


def choose_store_sketch(
    walk: Walk, sketch: str, n_components: int | str, seed: int, executor: Executor, stage: Stage
) -> Sketch:
    """The sketch for a store of a source's rows, as a fit would choose it.

    Parameters
    ----------
    sketch : str
        As of `StreamKMeans`. One that is found on rows reads the source once more, beforehand, for a sample of them.
    n_components : int or "auto"
    seed : int
        From 0 to 2^64 - 1; of the hash, or of the sample and its directions.

    Raises
    ------
    InvalidParameterError
        What does not fit the source.
    """
    kind, m, why = choose_sketch(walk.source, sketch, n_components, PCA_FEW_CLUSTERS)
    logger.info("sketch: %s, %d components: %s", kind, m, why)
    if kind not in DATA_DEPENDENT:
        return make_sketch(kind, m, seed, walk.source.n_features)
    rule = SampleRule.of(PCA_ROWS, seed, walk.source.estimated_rows, NO_WEIGHTS)
    sketched = sketch_pass(PassContext(executor=executor, walk=walk), Gathered(rule), stage)
    return find_sketch(kind, m, seed, sketched.sample.X, PCA_FEW_CLUSTERS)


def write_store(
    path: str | os.PathLike[str],
    walk: Walk,
    sketch: Sketch,
    executor: Executor,
    stage: Stage,
    *,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    overwrite: bool = False,
    restart: bool = False,
) -> StoreSource:
    """Sketch all rows of a source into a new store; one pass.

    Parameters
    ----------
    path : path
        Of the store, a directory. It appears when it is complete.
    walk : Walk
        Its metric becomes the store's. Rows that it skips become rows of NaN.
    sketch : Sketch
    weights : float64 (n,) or (0,)
    overwrite : bool
        Replace what is at `path`, at the end, if that is a store.
    restart : bool
        Forget what an interrupted call has done, whatever it was of.

    Raises
    ------
    OutputError, DiskFullError, InUseError
        It exists, cannot be written, or another process writes it.
    CheckpointError
        An interrupted call was of another source or other settings; says which.
    InvalidInputError, SourceError
        As reading the source; also no rows, or another number of weights.
    """
    target, preparation = Path(path), _preparation(walk)
    check_store_place(target, overwrite=overwrite)
    with _work(target, "write", walk, sketch, weights, restart=restart) as saved:
        place = saved.directory / "store"
        sketch_checksums = start_store(place, sketch, preparation)
        filled = fill_part(Job(saved, walk, executor, stage), part_directory(place, 0), NewRows(sketch), None)
        part = filled.writer.finish(0, _checked_weights(walk, weights, filled.writer.n_rows))
        n_features = walk.source.n_features or max(1, filled.width)
        info = StoreInfo(
            filled.kind,
            part.n_rows,
            sketch.n_components,
            n_features,
            walk.metric,
            len(weights) > 0,
            sketch.to_dict(),
            sketch_checksums,
            (part,),
            (_input(walk, (0, part.n_rows), (0, n_features)),),
            () if preparation is None else preparation.steps,
        )
        publish(place, info)
        check_store_place(target, overwrite=overwrite)  # once more: the pass may have taken hours
        target = Path(os.path.realpath(target))
        replace_tree(place, target, saved.directory / REPLACED)
        remove_tree(saved.directory / REPLACED)
        saved.discard()
    return StoreSource(target)


def check_store_place(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse a path where a store cannot be written.

    Parameters
    ----------
    path : path
    overwrite : bool
        Whether a store that is there may be replaced; nothing else may.

    Raises
    ------
    OutputError
        It exists, or holds other files than a store's.
    SourceError
        What is there is no store.
    """
    target = Path(path)
    if os.path.lexists(target):
        if not overwrite:
            raise OutputError(f"{target} exists; choose another name, append to it, or pass overwrite")
        check_only_store(target.resolve(), StoreInfo.read(target))


def append_rows(
    path: str | os.PathLike[str],
    walk: Walk,
    executor: Executor,
    stage: Stage,
    *,
    sketch: Sketch | None = None,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    restart: bool = False,
) -> StoreSource:
    """Sketch the rows of a source onto the end of a store; one pass over the source, none over the store.

    Parameters
    ----------
    path : path
        Of a store.
    walk : Walk
        Of the source, prepared as the store's rows were (`prepared_as`); in the store's metric.
    sketch : Sketch or None
        What the caller takes the store's sketch to be; None: whatever it is.
    weights : float64 (n,) or (0,)
        Needed if and only if the store's rows have weights.
    restart
        As of `write_store`.

    Raises
    ------
    StoreError
        Another sketch, seed, metric or number of features than the store's, or other steps; an input of the store that
        has changed; a file that is in it already.
    OutputError, DiskFullError, InUseError, CheckpointError, InvalidInputError, SourceError
        As `write_store`.
    """
    store = StoreSource(path)
    own = sketch_of_store(store)
    check_sketch(store, own if sketch is None else sketch, walk.metric)
    preparation = _preparation(walk)
    check_steps_of(store, () if preparation is None else preparation.steps)
    check_inputs(store)
    check_width(store, walk.source)
    if (len(weights) > 0) != store.info.weighted:
        raise StoreError(
            f"{store.path} has {'' if store.info.weighted else 'no '}weights; rows to be added need "
            f"{'some' if store.info.weighted else 'none'}, too"
        )
    with _work(Path(path), "append rows", walk, own, weights, restart=restart, store=store) as saved:
        info, number = store.info, next_part(store.info)
        filled = fill_part(Job(saved, walk, executor, stage), part_directory(path, number), NewRows(own), info.kind)
        part = filled.writer.finish(number, _checked_weights(walk, weights, filled.writer.n_rows))
        n_rows = info.n_rows + part.n_rows
        n_features = max(info.n_features, walk.source.n_features or filled.width)
        added = _input(walk, (info.n_rows, n_rows), (0, walk.source.n_features or max(1, filled.width)))
        publish(
            path,
            replace(
                info,
                n_rows=n_rows,
                n_features=n_features,
                parts=(*info.parts, part),
                inputs=(*info.inputs, added),
            ),
        )
        saved.discard()
    return StoreSource(path)


def append_columns(
    path: str | os.PathLike[str],
    walk: Walk,
    executor: Executor,
    stage: Stage,
    *,
    first_feature: int | None = None,
    restart: bool = False,
) -> StoreSource:
    """Add features to the rows of a store: the sketch of a row is the sum of the sketches of its pieces.

    One pass over the source and one over the store, which is written anew beside itself and then switched.

    Parameters
    ----------
    path : path
        Of a store of CountSketch rows.
    walk : Walk
        Of a source whose row i has further features of row i of the store.
    first_feature : int or None
        Number of the source's feature 0 among all features; None: the first that the store does not have.
    restart
        As of `write_store`.

    Raises
    ------
    StoreError
        A sketch that is no hash of features, a store of the cosine metric, features that it has already, another
        number of rows.
    OutputError, DiskFullError, InUseError, CheckpointError, InvalidInputError, SourceError
        As `write_store`.
    """
    store = StoreSource(path)
    info = store.info
    first = info.n_features if first_feature is None else first_feature
    sketch = check_columns(store, first)
    if walk.metric != info.metric:
        check_sketch(store, sketch, walk.metric)
    check_inputs(store)
    if walk.source.n_rows not in (None, info.n_rows):
        raise other_rows(store, walk, f"{walk.source.n_rows:,}")
    operation = f"append features from {first}"
    with _work(Path(path), operation, walk, sketch, NO_WEIGHTS, restart=restart, store=store) as saved:
        number, columns = next_part(info), NewColumns(sketch, first, store, walk)
        filled = fill_part(Job(saved, walk, executor, stage), part_directory(path, number), columns, info.kind)
        if filled.writer.n_rows != info.n_rows:
            raise other_rows(store, walk, f"{filled.writer.n_rows:,}")
        part = filled.writer.finish(number, store.weights())
        stop = first + (walk.source.n_features or max(1, filled.width))
        added = _input(walk, (0, info.n_rows), (first, stop))
        publish(path, replace(info, n_features=stop, parts=(part,), inputs=(*info.inputs, added)))
        saved.discard()
    return StoreSource(path)


@contextmanager
def _work(
    target: Path,
    operation: str,
    walk: Walk,
    sketch: Sketch,
    weights: NDArray[np.float64],
    *,
    restart: bool,
    store: StoreSource | None = None,
) -> Iterator[Checkpoint]:
    """What an operation has done so far, beside the store that it is on; locks that store against other writers."""
    source, preparation = fingerprint(walk.source), _preparation(walk)
    described = {
        "store": None if store is None else store.info.digest(),
        "operation": operation,
        "source": source,
        "settings": {
            "sketch": sketch.to_dict(),
            "sketch arrays": _digests(sketch.arrays()),
            "metric": walk.metric,
            "on_invalid": walk.on_invalid,
            "chunk_bytes": walk.target_bytes,
            "weights": _digest(weights),
            **({} if preparation is None else {"steps": _digests(preparation.arrays())}),
        },
    }
    target = Path(os.path.realpath(target))  # whatever it is called, its work has one place
    place = target.with_name(f".{target.name}.work")
    with Checkpoint.open(place, described, restart=restart, expires=("store",)) as saved:
        if store is not None and StoreInfo.read(target).digest() != store.info.digest():
            raise InUseError(f"{store.path} was changed by another process just now; run the same again")
        if not saved.resumed:
            remove_tree(place / "store")
            if store is not None:
                sweep_parts(target, store.info)  # of an operation that was killed when it was done
        if (place / REPLACED).exists():
            if target.exists():  # killed when the new store was in place
                remove_tree(place / REPLACED)
            else:  # killed when the old one had left its place and the new one was not there
                os.replace(place / REPLACED, target)
        if store is not None:
            try:
                check_new(store, source)
            except StoreError:
                saved.discard()  # an earlier call may have been killed when it was done
                raise
        yield saved


def _preparation(walk: Walk) -> Preparation | None:
    """How the rows of a walk are prepared, if they are."""
    return walk.source.preparation if isinstance(walk.source, PreparedRows) else None


def _digests(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    return {name: _digest(values) for name, values in arrays.items()}


def _digest(values: NDArray[Any]) -> str:
    return hashlib.blake2b(raw(values), digest_size=16).hexdigest()


def _input(walk: Walk, rows: tuple[int, int], features: tuple[int, int]) -> dict[str, Any]:
    exact = walk.source.n_features is not None
    return {"rows": list(rows), "features": list(features), "exact": exact, "source": fingerprint(walk.source)}


def _checked_weights(walk: Walk, weights: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
    if len(weights) not in (0, n_rows):
        raise InvalidInputError(f"sample_weight has {len(weights):,} values; {walk.source.name} has {n_rows:,} rows")
    return weights
