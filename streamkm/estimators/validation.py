"""Checks of the parameters and arguments of estimators, with the messages for wrong ones; knows no estimator."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Collection, Iterable
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
from streamkm.sketches import sketch_names
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.options import OPTIONS, KernelOptions, Nystroem, SketchOptions, full_options
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
    "coreset": ("auto", "sensitivity", "uniform", None),
}
Rule = tuple[Callable[[Any], Any], str]  # whether a value will do, and what is needed


def integer(smallest: int, *, or_auto: bool = False) -> Rule:
    """The rule of a whole number, or of "auto" if allowed."""

    def allowed(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, Integral):
            return or_auto and isinstance(value, str) and value == "auto"
        return int(value) >= smallest

    return allowed, f"an integer from {smallest}" + (' or "auto"' if or_auto else "")


def number(allowed: Callable[[float], bool], needed: str, *, optional: bool = False) -> Rule:
    """The rule of a real number, or of None if allowed."""
    return lambda value: optional if value is None else allowed(as_number(value)), needed


def one_of(choices: Collection[Any]) -> Rule:
    """The rule of a choice."""
    return lambda value: value in choices, f"one of {', '.join(map(repr, choices))}"


RULES: dict[str, Rule] = {
    **{name: integer(1) for name in ("n_clusters", "max_iter", "degree")},
    **{name: integer(1, or_auto=True) for name in ("n_init", "chunk_bytes", "n_components", "n_landmarks", "rank")},
    **{name: one_of(choices) for name, choices in CHOICES.items()},
    "refine": integer(0, or_auto=True),
    "first_row": integer(0),
    "cluster_size": (lambda value: value is None or _is_size(*value), 'a floor and a cap of sizes, and perhaps "soft"'),
    "landmark_rank": (lambda value: value is None or integer(1)[0](value), integer(1)[1]),
    "tol": number(lambda value: 0 <= value < np.inf, "a number from 0"),
    "gamma_factor": number(lambda value: 0 < value < np.inf, "a number above 0"),
    "half_life": number(lambda value: value > 0, "a positive number of rows, or None", optional=True),
    "eps": number(lambda value: 0 < value < 1, "a number between 0 and 1", optional=True),
    "delta": number(lambda value: 0 < value < 1, "a number between 0 and 1"),
    "progress": (lambda value: isinstance(value, bool | np.bool_) or value == "auto", 'True, False or "auto"'),
}


def _is_size(floor: Any = "", cap: Any = "", how: Any = "soft") -> bool:
    """Whether these are bounds of sizes: None, numbers of rows, or floats in means."""
    return all(each is None or as_number(each) >= 0 for each in (floor, cap)) and how == "soft"


def check_value(name: str, value: Any, rule: Rule, beside: str = "") -> None:
    """Refuse a value that a rule does not allow, with the values that are needed."""
    allowed, needed = rule
    if not allowed(value):
        raise InvalidParameterError(f"{name}={value!r}{beside}; needed: {needed}")


def check_values(estimator: Any, **own: Rule) -> None:
    """Refuse parameters of an estimator, and their options, that are out of range; `own`: its rules beside `RULES`."""
    known, needed = one_of(("auto", *sketch_names()))  # others may join their table at any time
    needed += ", a sketch such as CountSketch(2048, nnz_per_feature=8), or SketchOptions"
    sketch = (lambda value: known(value) if isinstance(value, str) else isinstance(value, Sketch)), needed
    rules = RULES | {"sketch": sketch} | own
    for name, given in vars(estimator).items():
        full = full_options(name, given) if name in OPTIONS else None
        each = {name: given} if full is None else {field.name: getattr(full, field.name) for field in fields(full)}
        for key, value in each.items():
            if key in rules:
                check_value(key, value, rules[key])
    check_init(estimator.init, cluster_range(estimator.n_clusters)[0], estimator.n_init)
    check_preprocess(vars(estimator).get("preprocess"))


def check_parameters(estimator: Any) -> None:
    """Refuse parameters of a `StreamKMeans` that are out of range."""
    check_values(estimator)
    if estimator.metric == "spherical" and full_options("sketch", estimator.sketch).assign_space == "sketch":
        raise InvalidParameterError('metric="spherical" needs original rows: SketchOptions(assign_space="original")')


def cluster_range(n_clusters: Any) -> tuple[int, int]:
    """The fewest and the most clusters of a stream: a pair, or twice the same number."""
    pair = tuple(n_clusters) if isinstance(n_clusters, tuple | list) else (n_clusters, n_clusters)
    if len(pair) != 2 or not all(map(integer(1)[0], pair)) or pair[0] > pair[1]:
        needed = "an integer from 1, or a pair of them, the fewest and the most"
        raise InvalidParameterError(f"n_clusters={n_clusters!r}; needed: {needed}")
    return int(pair[0]), int(pair[1])


def check_stream_parameters(estimator: Any) -> None:
    """Refuse parameters of an `IncrementalKMeans` that are out of range."""
    check_values(estimator, n_clusters=(cluster_range, ""), metric=one_of(get_args(Metric)))


def check_init(init: Any, n_clusters: int, n_init: Any = "auto") -> None:
    """Refuse unknown starts and other numbers of centers than k; warn if `n_init` has no effect."""
    if isinstance(init, str):
        allowed, needed = one_of(STARTS)
        check_value("init", init, (allowed, f"{needed}, a function, or an array of centers"))
    elif not callable(init):
        check_centers(given_start(init), n_clusters)
        if n_init not in ("auto", 1):
            text = f"n_init={n_init} is ignored: with explicit initial centers there is a single start"
            warnings.warn(text, IgnoredStartsWarning, stacklevel=5)


def given_start(init: Any) -> Any:
    """`init` for fits: a name or a function unchanged, any centers as float64 (k, d)."""
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
    """SHA-256 of an array."""
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def as_number(value: Any) -> float:
    """A number of Python or NumPy as a float; NaN for anything else."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool | np.bool_) else np.nan


def parameters_of(estimator: Any) -> Any:
    """Parameters of an estimator as attributes: options in full, NumPy's numbers as Python's, for files and plans."""
    # not get_params, which leaves out those that a subclass sets itself and does not take
    values = {name: value.item() if isinstance(value, np.generic) else value for name, value in vars(estimator).items()}
    return SimpleNamespace(**values | {name: full_options(name, values[name]) for name in OPTIONS if name in values})


def searching(given: Any) -> dict[str, Any]:
    """Settings of the search for centers, for every fit."""
    named = {name: getattr(given, name) for name in ("n_clusters", "n_init", "max_iter", "tol")}
    return {**named, "init": given_start(given.init)}


@dataclass(frozen=True, slots=True)
class Weights:
    """Checked sample weights; equal weights give the same bits as no weights."""

    each: NDArray[np.float64]  # (n,); empty where all rows weigh alike
    factor: float = 1.0  # what every row weighs then, by which counts and objective are multiplied; else 1
    n_given: int | None = None  # how many weights were given; None for a number, or nothing

    def check_rows(self, n_rows: int | None, name: str) -> None:
        """Refuse another number of weights than of rows, if both are known."""
        if None not in (self.n_given, n_rows) and self.n_given != n_rows:
            raise InvalidInputError(f"sample_weight has {self.n_given:,} values; {name} has {n_rows:,} rows")


def check_weights(sample_weight: ArrayLike | None) -> Weights:
    """Check a `sample_weight`: None, one number for all rows, or one for each."""
    if sample_weight is None:
        return Weights(NO_WEIGHTS)
    check_unmasked(sample_weight, "sample_weight", "pass sample_weight.filled(0) to give such rows no weight")
    weights = np.asarray(sample_weight, np.float64)
    if weights.ndim > 1:
        raise InvalidInputError(f"sample_weight has shape {weights.shape}; needed: (n_samples,), or a number")
    n_given = len(weights) if weights.ndim else None
    weights = np.atleast_1d(weights)
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(wrong.argmax())
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
    """The seed of a `random_state`: itself if it is a number, else the next number drawn from it."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(0, 2**32, dtype=np.uint32))


def random_streams(seed: int) -> np.random.SeedSequence:
    """The source of a fit's named random streams."""
    entropy = check_random_state(seed).randint(0, 2**32, 4, dtype=np.uint32)
    return np.random.SeedSequence([int(word) for word in entropy])


def is_in_memory(X: Any) -> bool:
    """Whether scikit-learn can validate X (NumPy, SciPy, pandas, nested lists); other data are opened."""
    if is_collection(X) or is_bfloat16(X):
        return False
    if isinstance(X, np.ndarray) or sp.issparse(X) or hasattr(X, "iloc"):
        return True
    if not isinstance(X, list | tuple):
        return not hasattr(X, "shape") and hasattr(X, "__array__")
    return not X or not (isinstance(X[0], str | os.PathLike) or hasattr(X[0], "shape"))


def joined(parts: Iterable[NDArray[Any]], empty: NDArray[Any], n_rows: int | None) -> NDArray[Any]:
    """Joined parts, or `empty` for none; not held twice if the number of rows is known."""
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


def plain(value: Any) -> Any:
    """A JSON value: sketches as facts that identify them, functions as names, infinity and NaN as null."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    elif isinstance(value, SketchOptions | KernelOptions | Nystroem):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, Sketch):
        value = {**value.to_dict(), **{name: digest(array) for name, array in value.arrays().items()}}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
