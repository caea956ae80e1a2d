"""What an operation on a store has done so far, in ``.NAME.work`` beside it, and what it is of.

It locks the store against other writers, and mends what a killed operation left.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import remove_tree
from streamkm.core.exceptions import InUseError, StoreError
from streamkm.core.matrix import raw
from streamkm.core.partial_files import REPLACED
from streamkm.engine.checkpoint import Checkpoint
from streamkm.passes.reader import RowReader
from streamkm.preparation import Preparation
from streamkm.sketches import Sketch
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.sketch_store import StoreInfo, StoreSource
from streamkm.stores.compatibility import check_new
from streamkm.stores.publish import sweep_parts


@contextmanager
def open_work(
    target: Path,
    operation: str,
    reader: RowReader,
    sketch: Sketch,
    weights: NDArray[np.float64],
    *,
    restart: bool,
    store: StoreSource | None = None,
) -> Iterator[Checkpoint]:
    """What an operation has done so far, beside the store that it is on; locks that store against other writers."""
    source, preparation = fingerprint(reader.source), preparation_of(reader)
    described = {
        "store": None if store is None else store.info.digest(),
        "operation": operation,
        "source": source,
        "settings": {
            "sketch": sketch.to_dict(),
            "sketch arrays": _digests(sketch.arrays()),
            "metric": reader.metric,
            "invalid": reader.invalid,
            "chunk_bytes": reader.target_bytes,
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


def preparation_of(reader: RowReader) -> Preparation | None:
    """How the rows of a reader are prepared, if they are."""
    return reader.source.prepared_by


def _digests(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    return {name: _digest(values) for name, values in arrays.items()}


def _digest(values: NDArray[Any]) -> str:
    return hashlib.blake2b(raw(values), digest_size=16).hexdigest()
