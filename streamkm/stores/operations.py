"""Everything that walks a source into a sketch store: writing one, adding rows.

The store changes in one step at the end of a pass: a call that is killed before leaves it as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.atomic_io import REPLACED, check_new_directory, named, replace_tree, working_directory
from streamkm.core.exceptions import InvalidInputError, OutputError, StoreError
from streamkm.core.locks import Lock
from streamkm.core.progress import Stage
from streamkm.engine import Executor
from streamkm.passes.context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.sketches import Sketch
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.sketch_store import StoreInfo, StoreSource
from streamkm.stores.compatibility import (
    check_inputs,
    check_new,
    check_sketch,
    check_steps_of,
    check_width,
    sketch_of_store,
)
from streamkm.stores.writer import fill_part, part_directory, publish, start_store, sweep_parts


def write_store(
    path: str | os.PathLike[str],
    reader: RowReader,
    sketch: Sketch,
    executor: Executor,
    stage: Stage,
    *,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    overwrite: bool = False,
) -> StoreSource:
    """Sketch all rows of a source into a new store; one pass.

    `path`: of the store, a directory. It appears when it is complete. `reader`: its metric becomes the store's. Rows
    that it skips become rows of NaN. `weights`: float64 (n,) or (0,). `overwrite`: replace what is at `path`, at the
    end, if that is a store. Raises OutputError, DiskFullError: it exists, or cannot be written; InvalidInputError,
    SourceError: as reading the source; also no rows, or another number of weights.
    """
    preparation = reader.source.prepared_by
    check_store_place(path, overwrite=overwrite)
    target = Path(os.path.realpath(path))
    with working_directory(target) as work, named(work, target):
        place, context = work / "store", PassContext(executor=executor, reader=reader)
        sketch_checksums = start_store(place, sketch, preparation)
        filled = fill_part(context, stage, part_directory(place, 0), sketch, None)
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
        replace_tree(place, target, work / REPLACED)
    return StoreSource(target)


def check_store_place(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse a path where a store cannot be written, or replaced: another directory, a store with files of others.

    Raises OutputError; SourceError where what is there is no store.
    """
    target = os.path.realpath(path)
    check_new_directory(target, r"zarr\.json|parts|sketch|\.?zarr\..*\.partial", overwrite=True)
    if os.path.lexists(target):
        if not overwrite:
            raise OutputError(f"{target} exists; choose another name, append to it, or pass overwrite")
        StoreInfo.read(target)


@contextmanager
def _locked(path: str | os.PathLike[str]) -> Iterator[StoreSource]:
    """A store that no other process changes meanwhile, without the parts that killed processes began."""
    target = Path(os.path.realpath(path))
    StoreInfo.read(target)
    lock = Lock(target.with_name(f".{target.name}.lock"), f"store {os.fspath(path)}")
    try:
        store = StoreSource(path)
        sweep_parts(target, store.info)
        yield store
    finally:
        lock.release(remove=True)


def append_rows(
    path: str | os.PathLike[str],
    reader: RowReader,
    executor: Executor,
    stage: Stage,
    *,
    sketch: Sketch | None = None,
    weights: NDArray[np.float64] = NO_WEIGHTS,
) -> StoreSource:
    """Sketch the rows of a source onto the end of a store; one pass over the source, none over the store.

    `path`: of a store. `reader`: of the source, prepared as the store's rows were (`prepared_as`); in the store's
    metric. `sketch`: what the caller takes the store's sketch to be; None: whatever it is. `weights`: float64 (n,) or
    (0,), needed if and only if the store's rows have weights. Raises StoreError: another sketch, seed, metric or number
    of features than the store's, or other steps; an input of the store that has changed; a file that is in it already;
    InUseError: another process changes the store; OutputError, DiskFullError, InvalidInputError, SourceError: as
    `write_store`.
    """
    with _locked(path) as store:
        info, own = store.info, sketch_of_store(store)
        check_sketch(store, own if sketch is None else sketch, reader.metric)
        preparation = reader.source.prepared_by
        check_steps_of(store, () if preparation is None else preparation.steps)
        check_inputs(store)
        check_width(store, reader.source.original)
        if (len(weights) > 0) != info.weighted:
            raise StoreError(
                f"{store.path} has {'' if info.weighted else 'no '}weights; rows to be added need "
                f"{'some' if info.weighted else 'none'}, too"
            )
        check_new(store, fingerprint(reader.source))
        number, context = _next_part(path), PassContext(executor=executor, reader=reader)
        filled = fill_part(context, stage, part_directory(path, number), own, info.kind)
        part = filled.writer.finish(number, _checked_weights(reader, weights, filled.writer.n_rows))
        n_rows, width = info.n_rows + part.n_rows, reader.source.n_features or max(1, filled.width)
        changed = replace(
            info,
            n_rows=n_rows,
            n_features=max(info.n_features, reader.source.n_features or filled.width),
            parts=(*info.parts, part),
            inputs=(*info.inputs, _input(reader, range(info.n_rows, n_rows), range(width))),
        )
        publish(path, changed)
    return StoreSource(path)


def _next_part(path: str | os.PathLike[str]) -> int:
    """The number of a part to come."""
    return 1 + max(int(name) for name in os.listdir(Path(path) / "parts") if name.isdecimal())


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
