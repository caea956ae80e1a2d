"""What a fit leaves behind: centers, the space they live in, and how to assign rows; saved and loaded without pickle.

Never walks a source: that is passes' work.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.center_index import IndexParts, are_orthonormal, is_worth
from streamkm.cluster.center_table import CenterTable
from streamkm.cluster.lloyd import merged
from streamkm.cluster.rows import row_d2norms, safe_scale
from streamkm.core.atomic_io import replace_file
from streamkm.core.exceptions import InvalidInputError, ModelFileError
from streamkm.core.matrix import Matrix, working_dtype
from streamkm.kernels.cluster.pruned import COORDINATES
from streamkm.sketches import Sketch, fits_features, sketch_from_dict

FORMAT = 1
SMALLEST_NORM = 1e-30
SKETCH_PREFIX = "sketch_"  # of the names of arrays that belong to the sketch

INDEX_ARRAYS = ("index_directions", "index_groups")

Metric = Literal["euclidean", "cosine"]
Space = Literal["original", "sketch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitInfo:
    """What a model file says of the fit, beside the model; None for what it does not say.

    Attributes
    ----------
    estimator : str
        Name of the class whose fit it was.
    feature_names : list of str
        d of them.
    counts : list of float
        Rows of each cluster, or their weight.
    inertia, distortion : float
    n_samples, n_iter, n_passes : int
    converged : bool
    seed : int
        As `random_state` it gives the same fit again.
    source : dict
        Of the rows, as JSON values.
    """

    estimator: str | None = None
    feature_names: list[str] | None = None
    counts: list[float] | None = None
    inertia: float | None = None
    distortion: float | None = None
    n_samples: int | None = None
    n_iter: int | None = None
    n_passes: int | None = None
    converged: bool | None = None
    seed: int | None = None
    source: dict[str, Any] | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FitInfo:
        """Read what `Model.save` wrote; files of earlier releases say nothing.

        Raises
        ------
        ModelFileError
            As `Model.load`.
        """
        header, arrays = _read(path, ("centers",))
        try:
            return _checked_fit(header.get("fit", {}), int(header["n_features"]), len(arrays["centers"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{os.fspath(path)} is not a model that this release reads: {error}") from error


@dataclass(frozen=True, slots=True)
class Model:
    """Centers and the map that brings rows into their space.

    Attributes
    ----------
    centers : float64 (k, d), or (k, m) in the sketch's space
    n_features : int
        d.
    metric : "euclidean" or "cosine"
        "cosine": rows are scaled to unit length first.
    space : "original" or "sketch"
    sketch : Sketch
    far : bool
        Whether sparse rows lie so far from these centers, by a sample, that sums and squared norms tell the objective.
        Of a fit; it is not saved.
    index : tuple of float32 (m, u) and int32 (k,), or None
        Directions and groups of an index of the centers, where there is one; see `center_index`.
    """

    centers: NDArray[np.float64]
    n_features: int
    metric: Metric
    space: Space
    sketch: Sketch
    far: bool = False
    index: IndexParts | None = None

    def indexed(self) -> Model:
        """The same with an index of the centers, if they are so many that one is worth it for dense rows."""
        if not is_worth(*self.centers.shape):
            return self
        found = self.table().index()
        return replace(self, index=(found.directions, found.groups))

    def place(self, X: Matrix) -> Matrix:
        """Bring rows into the space of the centers; `X` is not changed.

        Parameters
        ----------
        X : ndarray or csr_array (n, d)
            As a walk gives them: of unit length already under the cosine metric.

        Raises
        ------
        InvalidInputError
            If the rows have another number of features.
        """
        too_wide = X.shape[1] > self.n_features
        if too_wide or (isinstance(X, np.ndarray) and X.shape[1] < self.n_features):
            raise InvalidInputError(f"rows have {X.shape[1]:,} features; the model was fitted on {self.n_features:,}")
        return merged(self.sketch.apply(X)) if self.space == "sketch" else X

    def table(self) -> CenterTable:
        """The centers, for rows in their space."""
        return CenterTable.build(self.centers, np.float32, index=self.index)

    def save(self, path: str | os.PathLike[str], parameters: dict[str, Any], fit: FitInfo | None = None) -> None:
        """Write the model as .npz of plain arrays with a JSON header; readers see the old file or the whole new one.

        Parameters
        ----------
        path : path
            Written under this very name.
        parameters : dict
            JSON values kept beside the model, given back by `load`.
        fit : FitInfo, optional
            Kept too, given back by `FitInfo.load`.

        Raises
        ------
        DiskFullError, OutputError
            The old file is as it was.
        """
        header = {
            "format": FORMAT,
            "n_features": self.n_features,
            "metric": self.metric,
            "space": self.space,
            "sketch": self.sketch.to_dict(),
            "parameters": parameters,
            "fit": {} if fit is None else {name: value for name, value in asdict(fit).items() if value is not None},
        }
        arrays = {SKETCH_PREFIX + name: array for name, array in self.sketch.arrays().items()}
        if self.index is not None:
            arrays |= dict(zip(INDEX_ARRAYS, self.index, strict=True))
        arrays |= {"header": np.array(json.dumps(header)), "centers": self.centers}
        n_bytes = sum(array.nbytes for array in arrays.values())
        replace_file(path, lambda file: np.savez(file, **arrays), n_bytes)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[Model, dict[str, Any]]:
        """Read a model and the parameters saved with it; nothing in the file is executed.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        ModelFileError
            If the file is no saved model, damaged, or of a later format.
        """
        header, arrays = _read(path)
        try:
            return _checked(header, arrays), header["parameters"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelFileError(f"{os.fspath(path)} is not a model that this release reads: {error}") from error


def _read(path: str | os.PathLike[str], names: Collection[str] | None = None) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Header and arrays of a model file, those of `names` if given; nothing is checked."""
    try:
        # opened here, because np.load leaves a damaged file open
        with open(path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as stored:
            header = json.loads(str(stored["header"]))
            return header, {each: stored[each] for each in names or stored.files if each != "header"}
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        if isinstance(error, OSError) and not isinstance(error, EOFError) and error.errno is not None:
            raise
        raise ModelFileError(f"{os.fspath(path)} is not a saved model, or is damaged ({error})") from error


def _checked_fit(found: Any, n_features: int, n_clusters: int) -> FitInfo:
    """What a file says of a fit; any values may stand there. What a later release adds is left out."""
    if not isinstance(found, dict):
        raise ModelFileError(f"fit is {found!r}; needed: a mapping")
    wanted: dict[str, tuple[type, ...]] = {
        "feature_names": (list,), "counts": (list,), "inertia": (float, int), "distortion": (float, int),
        "n_samples": (int,), "n_iter": (int,), "n_passes": (int,), "converged": (bool,), "seed": (int,),
        "source": (dict,), "estimator": (str,),
    }  # fmt: skip
    told = {name: found[name] for name in wanted if found.get(name) is not None}
    for name, value in told.items():
        if type(value) not in wanted[name]:
            raise ModelFileError(f"fit.{name} is {value!r}; needed: {wanted[name][0].__name__}")
    lengths = {"feature_names": (n_features, (str,)), "counts": (n_clusters, (float, int))}
    for name, (length, kinds) in lengths.items():
        if name in told and (len(told[name]) != length or any(type(each) not in kinds for each in told[name])):
            raise ModelFileError(f"fit.{name} holds other values than {length:,} of {kinds[0].__name__}")
    return FitInfo(**told)


def _checked(header: Any, arrays: dict[str, NDArray[Any]]) -> Model:
    """A model of what a file holds; any bytes may stand there, and kernels trust widths."""
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError(f"format {header.get('format') if isinstance(header, dict) else header!r}, not {FORMAT}")
    if not isinstance(header["parameters"], dict) or not isinstance(header["sketch"], dict):
        raise ModelFileError("parameters and sketch are to be mappings")
    if header["metric"] not in get_args(Metric) or header["space"] not in get_args(Space):
        raise ModelFileError(f"metric {header['metric']!r} in the space {header['space']!r}")
    if type(header["n_features"]) is not int or header["n_features"] < 1:
        raise ModelFileError(f"n_features is {header['n_features']!r}")
    others = {"centers", *INDEX_ARRAYS}
    stored = {name.removeprefix(SKETCH_PREFIX): array for name, array in arrays.items() if name not in others}
    sketch = sketch_from_dict(header["sketch"], stored)
    if not fits_features(sketch, header["n_features"]):
        raise ModelFileError(
            f"the {sketch.kind} sketch is for other rows than the model's {header['n_features']} features"
        )
    centers, width = arrays["centers"], header["n_features"]
    if header["space"] == "sketch":
        width = sketch.n_components
    if centers.dtype != np.float64 or centers.ndim != 2 or centers.shape[1] != width or not len(centers):
        raise ModelFileError(f"centers of {centers.dtype} {centers.shape}; needed: float64 (k, {width})")
    if not np.isfinite(centers).all():
        raise ModelFileError("centers hold NaN or infinity")
    index = _checked_index(arrays, centers)
    return Model(centers, header["n_features"], header["metric"], header["space"], sketch, index=index)


def _checked_index(arrays: dict[str, NDArray[Any]], centers: NDArray[np.float64]) -> IndexParts | None:
    """The index that a file holds, if any: what it excludes is certain for orthonormal directions alone."""
    if not any(name in arrays for name in INDEX_ARRAYS):
        return None
    directions, groups = (arrays[name] for name in INDEX_ARRAYS)
    fits = directions.dtype == np.float32 and directions.shape == (centers.shape[1], COORDINATES)
    if not fits or not are_orthonormal(directions):
        raise ModelFileError(f"{INDEX_ARRAYS[0]} are no {COORDINATES} orthonormal directions of float32")
    if groups.dtype != np.int32 or groups.shape != (len(centers),) or groups.min() < 0 or groups.max() >= len(centers):
        raise ModelFileError(f"{INDEX_ARRAYS[1]} are no int32 numbers of groups, one for each center")
    return directions, groups


def normalized(X: Matrix) -> Matrix:
    """Rows scaled to unit length, as floats; rows of zeros stay zeros."""
    norms = np.sqrt(row_d2norms(X))
    dtype = working_dtype(X.dtype)
    tiny = np.flatnonzero(norms < SMALLEST_NORM)
    if len(tiny):  # squares, or a factor in float32, would leave the range: a power of two first
        units = np.ones(len(norms))
        largest = np.abs(X[tiny]).max(axis=1)
        largest = largest if isinstance(X, np.ndarray) else largest.toarray().ravel()
        units[tiny] = [safe_scale(float(value)) for value in largest]
        X = _times(X, units, np.float64)
        norms[tiny] = np.sqrt(row_d2norms(X[tiny]))
    return _times(X, np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0), dtype)


def _times(X: Matrix, factors: NDArray[np.float64], dtype: Any) -> Matrix:
    """Rows times a factor each, computed and kept in a dtype."""
    if isinstance(X, np.ndarray):
        return (X.astype(dtype) * factors[:, None].astype(dtype)) if dtype != np.float64 else X * factors[:, None]
    data = X.data.astype(dtype) * np.repeat(factors, np.diff(X.indptr)).astype(dtype)
    return sp.csr_array((data, X.indices, X.indptr), shape=X.shape)
