"""The result of a fit: centers, their space, and the assignment of rows; saved and loaded without pickle.

Never walks a source: that is passes' work.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.fit_info import PREFIX as FIT_PREFIX
from streamkm.cluster.fit_info import FitInfo, read_arrays
from streamkm.cluster.occurring import Columns
from streamkm.cluster.rows import NO_WEIGHTS, merged
from streamkm.core.atomic_io import replace_file
from streamkm.core.exceptions import InvalidInputError, ModelFileError
from streamkm.core.matrix import Matrix
from streamkm.preparation import Preparation
from streamkm.sketches import sketch_from_dict
from streamkm.sketches.base_sketch import Sketch

# Of files: with dense centers; with those of text, which are zero almost everywhere; of rows that are prepared; with
# the state of a stream beside the model.
FORMAT, SPARSE_FORMAT, PREPARED_FORMAT, STREAM_FORMAT = 1, 2, 3, 4
# of the names of arrays that belong to the sketch, to steps, and to a stream
SKETCH_PREFIX, STEPS_PREFIX, STREAM_PREFIX = "sketch_", "steps_", "stream_"

INDEX = "index_"  # arrays of older files, which are not read
MEANS = "mean_"  # before the names of arrays of centers
IDS = "center_ids"  # of clusters, where these are not their numbers
OCCURRING = "center_features"  # the features that centers have, where these are few of all
PRICES = "center_prices"  # of clusters with bounds of their sizes

Metric = Literal["euclidean", "cosine"]
Space = Literal["original", "sketch"]


@dataclass(frozen=True, slots=True)
class Model:
    """Centers and the map that brings rows into their space."""

    centers: NDArray[np.float64]  # (k, d): (k, m) in the sketch's space, or (k, u + 1) of `columns`
    n_features: int  # d
    metric: Metric  # "euclidean" or "cosine", "cosine": rows are scaled to unit length first
    space: Space  # "original" or "sketch"
    sketch: Sketch
    preparation: Preparation | None = None  # how original rows are prepared, before anything else
    laid_out: NearestCenters | None = None  # the table of these centers, where it is kept; see `with_table`
    columns: Columns | None = None  # the features that centers have, where they are few of all
    ids: NDArray[np.int64] | None = None  # (k,): what labels are; None: the numbers of the centers
    # float64, of the shape of `centers`, or None, exact means of the clusters of a fit, for its file, where centers are
    # other points by construction
    means: NDArray[np.float64] | None = None
    prices: NDArray[np.float64] | None = None  # (k,): added to squared distances, at least 0; see `even_sizes`

    def names(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Labels of rows, of any dtype, by the numbers of their centers."""
        return numbers if self.ids is None else self.ids.astype(numbers.dtype)[numbers.astype(np.intp)]

    def place(self, X: Matrix) -> Matrix:
        """Bring rows (n, d), of unit length under the cosine metric, into the space of the centers; `X` is not changed.

        Raises InvalidInputError: if the rows have another number of features.
        """
        too_wide = X.shape[1] > self.n_features
        if too_wide or (isinstance(X, np.ndarray) and X.shape[1] < self.n_features):
            raise InvalidInputError(f"rows have {X.shape[1]:,} features; the model was fitted on {self.n_features:,}")
        if self.space == "sketch":
            return merged(self.sketch.apply(X))
        return X if self.columns is None else self.columns.narrow(X)

    def sketched(self, X: Matrix) -> Matrix:
        """Sketch rows or points of the original space, as `place` gives them."""
        return merged(self.sketch.apply(X if self.columns is None else self.columns.wide_rows(X)))

    def wide_centers(self) -> NDArray[np.float64]:
        """The centers with all features."""
        return self.centers if self.columns is None else self.columns.wide(self.centers)

    def table(self) -> NearestCenters:
        """The centers, for rows in their space."""
        prices = NO_WEIGHTS if self.prices is None else self.prices
        if self.laid_out is not None and self.laid_out.centers is self.centers and self.laid_out.prices is prices:
            return self.laid_out
        return NearestCenters.build(self.centers, np.float32, prices=prices)

    def with_table(self) -> Model:
        """Add a table that is laid out once for all later calls, and stays in memory."""
        return replace(self, laid_out=self.table())

    def save(
        self,
        path: str | os.PathLike[str],
        parameters: dict[str, Any],
        fit: FitInfo | None = None,
        stream: tuple[dict[str, NDArray[Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Write the model as .npz of plain arrays with a JSON header; readers see the old file or the whole new one.

        `path`: used under this very name. `parameters`, `fit`, `stream`: kept beside the model, for `load`,
        `FitInfo.load` and `read_stream`. Raises DiskFullError, OutputError: the old file is as it was.
        """
        header: dict[str, Any] = {
            "n_features": self.n_features,
            "metric": self.metric,
            "space": self.space,
            "sketch": self.sketch.to_dict(),
            "parameters": parameters,
            "fit": {} if fit is None else fit.values(),
        }
        arrays = {SKETCH_PREFIX + name: array for name, array in self.sketch.arrays().items()}
        arrays |= {} if fit is None else fit.arrays()
        header["format"], stored = _packed_centers(self.centers, self.columns)
        if self.preparation is not None:
            header["format"], header["steps"] = PREPARED_FORMAT, self.preparation.described()
            arrays |= {STEPS_PREFIX + name: array for name, array in self.preparation.arrays().items()}
        if stream is not None:
            header["format"], header["stream"] = STREAM_FORMAT, stream[1]
            arrays |= {STREAM_PREFIX + name: array for name, array in stream[0].items()}
        if self.ids is not None and (self.ids != np.arange(len(self.ids))).any():
            arrays[IDS] = self.ids
        if self.prices is not None:
            arrays[PRICES] = self.prices
        if self.means is not None:
            arrays |= {MEANS + name: array for name, array in _packed_centers(self.means, self.columns)[1].items()}
        arrays |= {"header": np.array(json.dumps(header)), **stored}
        n_bytes = sum(array.nbytes for array in arrays.values())
        replace_file(path, lambda file: np.savez(file, **arrays), n_bytes)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[Model, dict[str, Any]]:
        """Read a model and the parameters saved with it; nothing in the file is executed.

        Raises FileNotFoundError: if there is no such file; ModelFileError: if it is no saved model, damaged, or of a
        later format.
        """
        header, arrays = read_arrays(path, lambda name: not name.startswith(STREAM_PREFIX))
        try:
            return _checked(header, arrays), header["parameters"]
        except (ValueError, KeyError, TypeError, MemoryError) as error:
            raise ModelFileError(f"{os.fspath(path)} is not a model that this release reads: {error}") from error


def read_stream(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """Read the stream state in a model file, if any, unchecked; raises ModelFileError as `Model.load`."""
    header, arrays = read_arrays(path, lambda name: name.startswith(STREAM_PREFIX))
    if "stream" not in header:
        return None
    return {name.removeprefix(STREAM_PREFIX): array for name, array in arrays.items()}, header["stream"]


def _checked(header: Any, arrays: dict[str, NDArray[Any]]) -> Model:
    """Make a model of a file's contents, which may be any bytes; kernels trust widths."""
    form = header.get("format") if isinstance(header, dict) else header
    if form not in (FORMAT, SPARSE_FORMAT, PREPARED_FORMAT, STREAM_FORMAT):
        raise ModelFileError(f"format {form!r}, not {FORMAT} to {STREAM_FORMAT}")
    if (form == STREAM_FORMAT) != ("stream" in header):
        raise ModelFileError(f"format {form}, {'without' if form == STREAM_FORMAT else 'with'} a stream")
    if not isinstance(header["parameters"], dict) or not isinstance(header["sketch"], dict):
        raise ModelFileError("parameters and sketch are to be mappings")
    if header["metric"] not in get_args(Metric) or header["space"] not in get_args(Space):
        raise ModelFileError(f"metric {header['metric']!r} in the space {header['space']!r}")
    if type(header["n_features"]) is not int or header["n_features"] < 1:
        raise ModelFileError(f"n_features is {header['n_features']!r}")
    others = (FIT_PREFIX, MEANS, STEPS_PREFIX, "center", INDEX)
    stored = {name.removeprefix(SKETCH_PREFIX): each for name, each in arrays.items() if not name.startswith(others)}
    sketch = sketch_from_dict(header["sketch"], stored)
    if not sketch.fits_features(header["n_features"]):
        raise ModelFileError(
            f"the {sketch.kind} sketch is for other rows than the model's {header['n_features']} features"
        )
    width = sketch.n_components if header["space"] == "sketch" else header["n_features"]
    columns = _checked_columns(arrays, width)
    if columns is not None:
        width = columns.n_columns
    centers = _unpacked_centers(arrays, width, columns)
    told = {name.removeprefix(MEANS): array for name, array in arrays.items() if name.startswith(MEANS)}
    means = _unpacked_centers(told, width, columns) if told else None
    if means is not None and means.shape != centers.shape:
        raise ModelFileError(f"means of shape {means.shape}, and centers of {centers.shape}")
    preparation = None
    if form == PREPARED_FORMAT or "steps" in header:
        known = {
            name.removeprefix(STEPS_PREFIX): each for name, each in arrays.items() if name.startswith(STEPS_PREFIX)
        }
        preparation = Preparation.restored(header["steps"], known, header["n_features"])
    given = (header["n_features"], header["metric"], header["space"], sketch)
    ids = arrays.get(IDS)
    if ids is not None and not (ids.dtype == np.int64 and ids.shape == (len(centers),) and (np.diff(ids) > 0).all()):
        raise ModelFileError(f"ids of {ids.dtype} {ids.shape}; needed: int64 ({len(centers)},) that ascend")
    prices = arrays.get(PRICES)
    if prices is not None and not (prices.dtype == np.float64 and prices.shape == (len(centers),) and min(prices) >= 0):
        raise ModelFileError(f"prices of {prices.dtype} {prices.shape}; needed: float64 ({len(centers)},) from 0")
    return Model(centers, *given, preparation=preparation, columns=columns, ids=ids, means=means, prices=prices)


def _packed_centers(centers: NDArray[np.float64], known: Columns | None) -> tuple[int, dict[str, NDArray[Any]]]:
    """The storage format of centers, and arrays: entry by entry if that takes less than half, to the bit.

    Earlier releases, which ignore the features that occur, find the same centers.
    """
    rows, columns = np.nonzero(centers.view(np.int64))  # -0.0 is kept
    if known is None and 2 * (8 + 4) * len(rows) >= centers.nbytes:
        return FORMAT, {"centers": centers}
    arrays = {"center_counts": np.bincount(rows, minlength=len(centers)), "center_values": centers[rows, columns]}
    if known is not None:
        arrays[OCCURRING], columns = known.occurring, known.occurring[columns]
    return SPARSE_FORMAT, {**arrays, "center_columns": columns.astype(np.int32)}


def _checked_columns(arrays: dict[str, NDArray[Any]], n_features: int) -> Columns | None:
    """Check the features of stored centers, if they are few of all; any values may stand there."""
    if OCCURRING not in arrays:
        return None
    occurring = arrays[OCCURRING]
    ascends = occurring.dtype == np.int64 and occurring.ndim == 1 and bool((np.diff(occurring) > 0).all())
    if "centers" in arrays or not ascends or (len(occurring) and not 0 <= occurring[0] <= occurring[-1] < n_features):
        raise ModelFileError(f"{OCCURRING} are no ascending int64 numbers of {n_features:,} features")
    return Columns(occurring, n_features)


def _unpacked_centers(arrays: dict[str, NDArray[Any]], width: int, known: Columns | None) -> NDArray[np.float64]:
    """The inverse of `_packed_centers`; any values may stand there."""
    centers = arrays["centers"] if "centers" in arrays else _filled_centers(arrays, width, known)
    if centers.dtype != np.float64 or centers.ndim != 2 or centers.shape[1] != width or not len(centers):
        raise ModelFileError(f"centers of {centers.dtype} {centers.shape}; needed: float64 (k, {width})")
    if not np.isfinite(centers).all():
        raise ModelFileError("centers hold NaN or infinity")
    return centers


def _filled_centers(arrays: dict[str, NDArray[Any]], width: int, known: Columns | None) -> NDArray[np.float64]:
    """Make centers from stored entries."""
    counts, columns, values = (arrays[f"center_{name}"] for name in ("counts", "columns", "values"))
    fits = counts.dtype == np.int64 and columns.dtype == np.int32 and values.dtype == np.float64
    fits = fits and counts.ndim == columns.ndim == 1 and columns.shape == values.shape
    fits = fits and bool(((counts >= 0) & (counts <= width)).all()) and int(counts.sum()) == len(columns)
    if fits and known is not None:
        fits = bool(np.isin(columns, known.occurring).all())
        columns = np.searchsorted(known.occurring, columns)
    if not fits or (len(columns) and not 0 <= columns.min() <= columns.max() < width):
        raise ModelFileError(f"stored entries of centers do not fit each other, or {width:,} columns")
    centers = np.zeros((len(counts), width))
    centers[np.repeat(np.arange(len(counts)), counts), columns] = values
    return centers
