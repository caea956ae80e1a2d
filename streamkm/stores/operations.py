"""Everything that walks a source into a sketch store: writing one, adding rows, adding features.

Each of them is one pass that can be killed at any moment and goes on where it was when it is called again: what is done
is recorded beside the store (`work`). The store itself changes in one step at the end.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.atomic_io import remove_tree, replace_tree
from streamkm.core.exceptions import InvalidInputError, OutputError, StoreError
from streamkm.core.partial_files import REPLACED
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.passes.reader import RowReader
from streamkm.sketches import Sketch
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.sketch_store import StoreInfo, StoreSource
from streamkm.stores.compatibility import (
    check_columns,
    check_inputs,
    check_sketch,
    check_steps_of,
    check_width,
    sketch_of_store,
)
from streamkm.stores.journal import open_work, preparation_of
from streamkm.stores.publish import check_only_store, next_part, part_directory, publish, start_store
from streamkm.stores.write import Job, NewColumns, NewRows, fill_part, other_rows


def write_store(
    path: str | os.PathLike[str],
    reader: RowReader,
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
    reader : RowReader
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
    target, preparation = Path(path), preparation_of(reader)
    check_store_place(target, overwrite=overwrite)
    with open_work(target, "write", reader, sketch, weights, restart=restart) as saved:
        place = saved.directory / "store"
        sketch_checksums = start_store(place, sketch, preparation)
        filled = fill_part(Job(saved, reader, executor, stage), part_directory(place, 0), NewRows(sketch), None)
        part = filled.writer.finish(0, _checked_weights(reader, weights, filled.writer.n_rows))
        n_features = reader.source.n_features or max(1, filled.width)
        info = StoreInfo(
            filled.kind,
            part.n_rows,
            sketch.n_components,
            n_features,
            reader.metric,
            len(weights) > 0,
            sketch.to_dict(),
            sketch_checksums,
            (part,),
            (_input(reader, range(part.n_rows), range(n_features)),),
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
    reader: RowReader,
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
    reader : RowReader
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
    check_sketch(store, own if sketch is None else sketch, reader.metric)
    preparation = preparation_of(reader)
    check_steps_of(store, () if preparation is None else preparation.steps)
    check_inputs(store)
    check_width(store, reader.source.original)
    if (len(weights) > 0) != store.info.weighted:
        raise StoreError(
            f"{store.path} has {'' if store.info.weighted else 'no '}weights; rows to be added need "
            f"{'some' if store.info.weighted else 'none'}, too"
        )
    with open_work(Path(path), "append rows", reader, own, weights, restart=restart, store=store) as saved:
        info, number = store.info, next_part(store.info)
        filled = fill_part(Job(saved, reader, executor, stage), part_directory(path, number), NewRows(own), info.kind)
        part = filled.writer.finish(number, _checked_weights(reader, weights, filled.writer.n_rows))
        n_rows = info.n_rows + part.n_rows
        n_features = max(info.n_features, reader.source.n_features or filled.width)
        added = _input(reader, range(info.n_rows, n_rows), range(reader.source.n_features or max(1, filled.width)))
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
    reader: RowReader,
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
    reader : RowReader
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
    if reader.metric != info.metric:
        check_sketch(store, sketch, reader.metric)
    check_inputs(store)
    if reader.source.n_rows not in (None, info.n_rows):
        raise other_rows(store, reader, f"{reader.source.n_rows:,}")
    operation = f"append features from {first}"
    with open_work(Path(path), operation, reader, sketch, NO_WEIGHTS, restart=restart, store=store) as saved:
        number, columns = next_part(info), NewColumns(sketch, first, store, reader)
        filled = fill_part(Job(saved, reader, executor, stage), part_directory(path, number), columns, info.kind)
        if filled.writer.n_rows != info.n_rows:
            raise other_rows(store, reader, f"{filled.writer.n_rows:,}")
        part = filled.writer.finish(number, store.weights())
        stop = first + (reader.source.n_features or max(1, filled.width))
        added = _input(reader, range(info.n_rows), range(first, stop))
        publish(path, replace(info, n_features=stop, parts=(part,), inputs=(*info.inputs, added)))
        saved.discard()
    return StoreSource(path)


def _input(reader: RowReader, rows: range, features: range) -> dict[str, Any]:
    """Rows and features of a store, and the source that they come from."""
    return {
        "rows": [rows.start, rows.stop],
        "features": [features.start, features.stop],
        "exact": reader.source.n_features is not None,
        "source": fingerprint(reader.source),
    }


def _checked_weights(reader: RowReader, weights: NDArray[np.float64], n_rows: int) -> NDArray[np.float64]:
    if len(weights) not in (0, n_rows):
        raise InvalidInputError(f"sample_weight has {len(weights):,} values; {reader.source.name} has {n_rows:,} rows")
    return weights
