"""What a sketch store's provenance allows: its sketch, models for rows in it and for original ones, what may be added.

Reads no rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Metric, Model, Space
from streamkm.core.display import is_masked
from streamkm.core.exceptions import StoreError
from streamkm.core.matrix import raw
from streamkm.sketches import Sketch, sketch_from_dict
from streamkm.sources.base import RowSource
from streamkm.sources.prepared import PreparedRows
from streamkm.sources.remote import is_remote
from streamkm.sources.sketch_store import StoreSource


def sketch_of_store(source: StoreSource) -> Sketch:
    """The sketch that a store's rows were made by.

    Raises ModelFileError: a kind that this release does not know; SourceError: its arrays are damaged.
    """
    return sketch_from_dict(source.info.sketch, source.sketch_arrays())


def model_of_store(source: StoreSource, centers: NDArray[np.float64]) -> Model:
    """A model that labels original rows by centers (k, m) that were found on a store: it makes them such rows first."""
    info, sketch = source.info, sketch_of_store(source)
    space: Space = "original" if sketch.is_identity else "sketch"
    return Model(centers, info.n_features, info.metric, space, sketch, preparation=source.preparation())


def model_on_store(model: Model, source: StoreSource) -> Model:
    """The same centers for rows of a store, which are sketched (and of unit length, under cosine) already.

    Raises StoreError: the model prepares or sketches rows in another way than the store's were.
    """
    check_sketch(source, model.sketch, model.metric)
    check_steps_of(source, () if model.preparation is None else model.preparation.steps)
    if model.preparation is not None and model.preparation.columns:
        raise StoreError(
            f"{source.path} holds rows whose steps are for all columns, unlike the model's; label the rows"
        )
    if model.preparation is not None:
        stored, given = source.preparation(), model.preparation
        ours = {} if stored is None else stored.arrays()
        if any(not np.array_equal(ours[name], values) for name, values in given.arrays().items()):
            raise StoreError(
                f"{source.path} holds rows after steps that have found other values than the model's; label the "
                f"original rows"
            )
    return replace(model, n_features=source.info.n_components, metric="euclidean", space="original", preparation=None)


def prepared_as(store: StoreSource, source: RowSource) -> RowSource:
    """Rows of a source, prepared as those of a store were before they were sketched."""
    preparation = store.preparation()
    return source if preparation is None else PreparedRows(source, preparation)


def check_steps_of(store: StoreSource, steps: tuple[str, ...]) -> None:
    """Refuse rows that were prepared by other steps than a store's.

    Raises StoreError.
    """
    if steps != store.info.steps:
        told = [", ".join(each) or "none" for each in (store.info.steps, steps)]
        raise StoreError(f"{store.path} holds rows after the steps {told[0]}, not {told[1]}; prepare rows as it does")


def metric_on_store(source: StoreSource, metric: Metric) -> Metric:
    """The metric that a store's rows are walked with, where `metric` was asked for: they are scaled already, or never.

    Raises StoreError: "cosine" for rows that were not of unit length when they were sketched.
    """
    if metric == "cosine" and source.info.metric != "cosine":
        raise StoreError(
            f"{source.path} was sketched for the {source.info.metric} metric, and what was sketched cannot be scaled "
            f"to unit length; sketch the data again with metric='cosine'"
        )
    return "euclidean"


def check_sketch(source: StoreSource, sketch: Sketch, metric: Metric) -> None:
    """Refuse another sketch or metric than a store's.

    Raises StoreError: names what differs.
    """
    stored, given = source.info.sketch, sketch.to_dict()
    for name in dict.fromkeys([*stored, *given]):
        if stored.get(name) != given.get(name):
            raise StoreError(
                f"{source.path} was sketched with {name} {stored.get(name)}, not {given.get(name)}; "
                f"use the store's sketch, or sketch the data into another store"
            )
    for name, values in sketch.arrays().items():
        if zlib.crc32(raw(values)) != source.info.sketch_checksums.get(name):
            raise StoreError(
                f"{source.path} was sketched with another {name} of its {stored['kind']} sketch; use its own"
            )
    if metric != source.info.metric:
        raise StoreError(
            f"{source.path} was sketched for the {source.info.metric} metric, not {metric}; pass metric="
            f"{source.info.metric!r}, or sketch the data into another store"
        )


def check_new(source: StoreSource, added: Mapping[str, Any]) -> None:
    """Refuse rows of a file that a store has already.

    `added`: fingerprint of what is to be added.
    """
    for entry in source.info.inputs:
        held = entry["source"]
        names = (held["name"], added["name"])
        inside = [":/" in name.replace("://", "") or ".npz:" in name for name in names]
        if all(inside) and held["name"] != added["name"]:
            continue  # another dataset of one file
        if _documents(held) != _documents(added):
            continue  # other fields of one file
        files = list(map(_identity, held.get("files", ())))
        for file in added.get("files", ()):
            if _identity(file) in files:
                start, stop = entry["rows"]
                raise StoreError(
                    f"{file['path']} is in {source.path} already, among rows {start:,}-{stop - 1:,}; pass files that "
                    f"are not"
                )


def _identity(file: Mapping[str, Any]) -> Any:
    """What tells a file from others: its path; of a URL that is not told in full, what is there too."""
    return dict(file) if is_masked(file["path"]) and is_remote(file["path"]) else file["path"]


def _documents(described: Mapping[str, Any]) -> Any:
    """What of its files makes a document, by the fingerprint of a source; None where they hold rows."""
    return described.get("made_with", {}).get("documents")


def check_width(source: StoreSource, added: RowSource) -> None:
    """Refuse rows of another number of features than a store's, where both numbers are exact, not counted.

    Raises StoreError.
    """
    d = added.n_features
    exact = all(entry["exact"] for entry in source.info.inputs)
    if d is not None and d != source.info.n_features and (exact or d < source.info.n_features):
        raise StoreError(
            f"{added.name} has {d:,} features; the rows of {source.path} have {source.info.n_features:,}: pass rows "
            f"with the same features"
        )
