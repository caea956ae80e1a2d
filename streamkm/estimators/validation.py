"""Parameters and arguments of the estimators: what they may be, and what to say of anything else.

Knows no estimator.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from streamkm.cluster.model import Metric
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.seeding.init import check_centers
from streamkm.core.exceptions import IgnoredStartsWarning, InvalidInputError, InvalidParameterError
from streamkm.core.matrix import check_unmasked
from streamkm.preparation import check_preprocess
from streamkm.sketches import OPTIONS, KernelOptions, Nystroem, Sketch, SketchOptions, full_options
from streamkm.sketches.registry import sketch_names
from streamkm.sources.dense import is_bfloat16
from streamkm.sources.open import is_collection

OF_THIS_RUN = ("executor", "random_state")  # and of this machine; may be no JSON values
ClusterMetric = Literal[Metric, "spherical"]
STARTS = ("k-means++", "k-means||", "random", "ls++")
CHOICES = {
    "fit_on": ("sample", "all"),
    "assign_space": ("auto", "original", "sketch"),
    "metric": get_args(ClusterMetric),
    "invalid": ("raise", "skip", "mean"),
    "coreset": ("auto", "sensitivity", "lightweight", "uniform", None),
}


def check_parameters(estimator: Any) -> None:
    """Refuse parameters of an estimator that are out of range, saying what is needed."""
    check_shared(estimator, estimator.n_clusters)
    check_integer("refine", estimator.refine, 0, or_auto=True)
    for name in ("metric", "invalid", "coreset"):
        check_choice(name, getattr(estimator, name), CHOICES[name])
    check_sketch(full_options("sketch", estimator.sketch), spherical=estimator.metric == "spherical")
    check_preprocess(estimator.preprocess)


def check_shared(estimator: Any, n_clusters: Any) -> None:
    """Refuse parameters that every estimator has and that are out of range."""
    check_integer("n_clusters", n_clusters, 1)
    check_integer("max_iter", estimator.max_iter, 1)
    for name in ("n_init", "chunk_bytes"):
        check_integer(name, getattr(estimator, name), 1, or_auto=True)
    if not 0 <= as_number(estimator.tol) < np.inf:
        raise InvalidParameterError(f"tol={estimator.tol!r}; needed: a number from 0")
    if not isinstance(estimator.progress, bool | np.bool_) and estimator.progress != "auto":
        raise InvalidParameterError(f'progress={estimator.progress!r}; needed: True, False or "auto"')
    check_init(estimator.init, n_clusters, estimator.n_init)


def cluster_range(n_clusters: Any) -> tuple[int, int]:
    """The fewest and the most clusters of a stream: a pair, or twice the same number.

    Raises InvalidParameterError.
    """
    if not isinstance(n_clusters, tuple | list):
        check_integer("n_clusters", n_clusters, 1)
        return int(n_clusters), int(n_clusters)
    if len(n_clusters) != 2 or not all(isinstance(each, Integral) for each in n_clusters):
        raise InvalidParameterError(f"n_clusters={n_clusters!r}; needed: a number, or the fewest and the most")
    fewest, most = (int(each) for each in n_clusters)
    if not 1 <= fewest <= most:
        raise InvalidParameterError(f"n_clusters={n_clusters!r}; needed: 1 <= fewest <= most")
    return fewest, most


def check_stream_parameters(estimator: Any) -> None:
    """Refuse parameters of an estimator of streams that are out of range, saying what is needed."""
    check_shared(estimator, cluster_range(estimator.n_clusters)[0])
    check_integer("first_row", estimator.first_row, 0)
    if estimator.half_life is not None and not as_number(estimator.half_life) > 0:
        raise InvalidParameterError(f"half_life={estimator.half_life!r}; needed: a positive number of rows, or None")
    if estimator.metric not in ("euclidean", "cosine"):
        raise InvalidParameterError(f"metric={estimator.metric!r}; needed: 'euclidean' or 'cosine'")
    check_choice("invalid", estimator.invalid, CHOICES["invalid"])
    check_preprocess(estimator.preprocess)


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Refuse what is none of the choices of a parameter."""
    if value not in choices:
        raise InvalidParameterError(f"{name}={value!r}; needed: one of {', '.join(map(repr, choices))}")


def check_sketch(options: SketchOptions, *, spherical: bool) -> None:
    """Refuse options of a sketch that are out of range, and rows assigned in it for centers on the sphere."""
    known = ("auto", *sketch_names())
    named = isinstance(options.sketch, str) and options.sketch in known
    if not named and not is_sketch(options.sketch):
        raise InvalidParameterError(
            f"sketch={options.sketch!r}; needed: one of {', '.join(map(repr, known))}, a sketch such as "
            "CountSketch(2048, nnz_per_feature=8), or SketchOptions"
        )
    check_integer("n_components", options.n_components, 1, or_auto=True)
    for name, value in (("eps", options.eps), ("delta", options.delta)):
        if not (value is None and name == "eps") and not 0 < as_number(value) < 1:
            raise InvalidParameterError(f"{name}={value!r}; needed: a number between 0 and 1")
    for name in ("fit_on", "assign_space"):
        check_choice(name, getattr(options, name), CHOICES[name])
    if spherical and options.assign_space == "sketch":
        raise InvalidParameterError(
            'metric="spherical" keeps centers of original features at unit length; pass '
            'SketchOptions(assign_space="original")'
        )


def row_metric(metric: ClusterMetric) -> Metric:
    """The metric that rows are read for: they have unit length in spherical k-means too."""
    return "cosine" if metric == "spherical" else metric


def check_init(init: Any, n_clusters: int, n_init: Any = "auto") -> None:
    """Refuse what is no way to start, or no k centers; warn where there is only one way to start."""
    if isinstance(init, str):
        if init not in STARTS:
            names = ", ".join(map(repr, STARTS))
            raise InvalidParameterError(f"init={init!r}; needed: one of {names}, a function, or an array of centers")
    elif not callable(init):
        check_centers(given_start(init), n_clusters)
        if n_init not in ("auto", 1):
            warnings.warn(
                f"n_init={n_init} is ignored: with explicit initial centers there is a single start",
                IgnoredStartsWarning,
                stacklevel=5,
            )


def given_start(init: Any) -> Any:
    """`init` as fits take it: a name or a function as it is, centers of any kind as float64 (k, d).

    Raises InvalidParameterError for what is no array of real numbers.
    """
    if isinstance(init, str) or callable(init):
        return init
    check_unmasked(init, "init", "pass centers whose values are all known")
    try:
        centers = init.toarray() if sp.issparse(init) else np.asarray(init)
        if centers.dtype.kind == "c":
            raise TypeError("complex numbers")
        return np.array(centers, np.float64, order="C")
    except (TypeError, ValueError) as error:
        raise InvalidParameterError(f"init cannot be made centers of real numbers: {error}") from error


def digest(values: NDArray[Any]) -> str:
    """What tells one array from another."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def as_number(value: Any) -> float:
    """A number of Python's or NumPy's as a float; NaN for anything else."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool | np.bool_) else np.nan


def parameters_of(estimator: Any) -> Any:
    """The parameters of an estimator as attributes, NumPy's numbers as Python's, which files and plans can hold.

    Options in full. Those that a subclass sets itself and does not take too, which `get_params` leaves out.
    """
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in vars(estimator).items()}
    return SimpleNamespace(**values | {name: full_options(name, values[name]) for name in OPTIONS if name in values})


def check_integer(name: str, value: object, smallest: int, *, or_auto: bool = False) -> None:
    """Refuse what is no integer from `smallest`, nor "auto" where that may be."""
    if or_auto and isinstance(value, str) and value == "auto":
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < smallest:
        needed = f"an integer from {smallest}" + (' or "auto"' if or_auto else "")
        raise InvalidParameterError(f"{name}={value!r}; needed: {needed}")


@dataclass(frozen=True, slots=True)
class Weights:
    """Sample weights, told apart: rows that weigh alike are clustered as rows without weights are, to the bit."""

    each: NDArray[np.float64]  # (n,); empty where all rows weigh alike
    factor: float = 1.0  # what every row weighs then, by which counts and objective are multiplied; else 1
    n_given: int | None = None  # how many weights were given; None for a number, or nothing

    def check_rows(self, n_rows: int | None, name: str) -> None:
        """Refuse another number of weights than of rows, where both are known."""
        if None not in (self.n_given, n_rows) and self.n_given != n_rows:
            raise InvalidInputError(f"sample_weight has {self.n_given:,} values; {name} has {n_rows:,} rows")


def check_weights(sample_weight: ArrayLike | None) -> Weights:
    """What is given as `sample_weight`: nothing, one number for all rows, or one for each."""
    if sample_weight is None:
        return Weights(NO_WEIGHTS)
    check_unmasked(sample_weight, "sample_weight", "pass sample_weight.filled(0) to give such rows no weight")
    weights = np.asarray(sample_weight, np.float64)
    if weights.ndim > 1:
        raise InvalidInputError(f"sample_weight has shape {weights.shape}; needed: (n_samples,), or a number")
    n_given = len(weights) if weights.ndim else None
    weights = np.atleast_1d(weights)
    if not np.isfinite(weights).all() or (weights < 0).any():
        row = int(np.argmin(np.isfinite(weights) & (weights >= 0)))
        which = "sample_weight" if n_given is None else f"sample_weight[{row}]"
        raise InvalidInputError(f"{which} is {weights[row]}; needed: finite and not negative")
    if not weights.any():
        raise InvalidInputError("every sample_weight is zero; at least one row must have a positive weight")
    if (weights == weights[0]).all():
        return Weights(NO_WEIGHTS, float(weights[0]), n_given)
    return Weights(weights, n_given=n_given)


def centers_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of `cluster_centers_` for rows of a dtype, as scikit-learn's: float32 where they are, else float64."""
    return np.dtype(np.float32 if dtype == np.float32 else np.float64)


def drawn_seed(random_state: Any) -> int:
    """The seed that a `random_state` gives: itself if it is a number, else the next that is drawn from it."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(0, 2**32, dtype=np.uint32))


def random_streams(seed: int) -> np.random.SeedSequence:
    """The source of a fit's named random streams."""
    entropy = check_random_state(seed).randint(0, 2**32, 4, dtype=np.uint32)
    return np.random.SeedSequence([int(word) for word in entropy])


def is_in_memory(X: Any) -> bool:
    """Whether X is data that scikit-learn validates (NumPy, SciPy, pandas, nested lists), not something to open."""
    if is_collection(X) or is_bfloat16(X):
        return False
    if isinstance(X, np.ndarray) or sp.issparse(X) or hasattr(X, "iloc"):
        return True
    if not isinstance(X, list | tuple):
        return not hasattr(X, "shape") and hasattr(X, "__array__")
    return not X or not (isinstance(X[0], str | os.PathLike) or hasattr(X[0], "shape"))


def joined(parts: Iterable[NDArray[Any]], empty: NDArray[Any], n_rows: int | None) -> NDArray[Any]:
    """The parts one behind the other, `empty` where there are none; not held twice where their rows are known."""
    if n_rows is None:
        gathered = list(parts)
        return np.concatenate(gathered) if gathered else empty
    out, done = empty, 0
    for part in parts:
        if not done:
            out = np.empty((n_rows, *part.shape[1:]), part.dtype)
        out[done : done + len(part)] = part
        done += len(part)
    return out[:done]


def is_sketch(value: Any) -> bool:
    """Whether a value is a sketch, made already."""
    return isinstance(value, Sketch) and not isinstance(value, type)


def plain_list(value: Any) -> Any:
    """An array as a list of Python's values; a NumPy scalar as Python's; others as they are."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def plain(value: Any) -> Any:
    """A value as JSON has it: a sketch as what tells it from others, a function as its name."""
    if isinstance(value, SketchOptions | KernelOptions | Nystroem):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if is_sketch(value):
        return {**value.to_dict(), **{name: digest(array) for name, array in value.arrays().items()}}
    if callable(value):
        named = value if hasattr(value, "__qualname__") else type(value)
        return f"{named.__module__}.{named.__qualname__}"
    return value.item() if isinstance(value, np.generic) else value
