"""What a fit is asked for of a sketch, of a kernel, and of the features that are made of it.

Values as they are given; estimators check them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from streamkm.sketches.base import Sketch


@dataclass(frozen=True)
class SketchOptions:
    """The parameter `sketch` of `StreamKMeans` in full. The estimator checks the values.

    Parameters
    ----------
    sketch : str or Sketch, default="auto"
        How features are shrunk. "auto": not at all where they are few; CountSketch for sparse rows; for wide dense rows
        principal directions ("pca": Lloyd then runs along them, see `coreset` of `StreamKMeans`). By name:
        "countsketch", "signs", "gaussian", "sparse", "hadamard" and "identity", which any rows can be given to; "pca",
        "svd" and "leverage", which are found on rows: see `fit_on`. Or a sketch, such as
        ``CountSketch(2048, nnz_per_feature=4)`` or ``PreconditionedSampling(0.1, d, 0)``. A sketch without a seed gets
        one from the estimator's `random_state`.
    n_components : int or "auto", default="auto"
        m. "auto": 2,048 for sparse rows (they stay sparse, so it costs nothing); 256 for dense ones; for "pca" 48, and
        96 for more than 128 clusters. Rows that are known to have no more features than that stay as they are.
    eps : float, optional
        In place of `n_components`: so many components that a theorem keeps the objective of every clustering within
        1 +- eps, for all but a share `delta` of seeds (definition 2 of Liu et al.); `plan` names it. Where that takes
        as many components as there are features, rows are taken as they are. It is not the loss of the clusters that
        are found: those that are best in the sketch cost up to 1 + 2 eps / (1 - eps) times the least, so that a loss
        needs ``eps = loss / (2 + loss)``, and four times the components. Two
        sketches promise less: "leverage" that the best clustering of the sketch costs at most 3 + eps times the least;
        "svd" and "pca" that objectives are within 1 + eps up to a constant that all clusterings share, for directions
        of all rows, exact ones (``fit_on="all"``; those of a sample come near). None: the sizes that serve in practice.
    delta : float, default=0.1
        See `eps`. Components of "countsketch" grow with 1 / delta and the square of k.
    fit_on : {"sample", "all"}, default="sample"
        What a sketch that depends on the data is found on. "sample": the row sample, which the first pass keeps anyway.
        "all": all rows, in one more pass: sums of d x d numbers up to 2,048 features,
        exact but for rounding; above, of d x 1.5 m by a randomized range finder.
    assign_space : {"auto", "original", "sketch"}, default="auto"
        Where rows are assigned. "auto": among the original features, unless k centers of d features would fill a
        quarter of the memory.

    See Also
    --------
    PCA : The same for principal directions.

    Examples
    --------
    >>> from streamkm import SketchOptions, StreamKMeans
    >>> kmeans = StreamKMeans(50, sketch=SketchOptions("countsketch", 512, assign_space="sketch"))
    >>> kmeans.sketch.n_components
    512
    """

    sketch: str | Sketch = "auto"
    n_components: int | str = "auto"
    _: KW_ONLY
    eps: float | None = None
    delta: float = 0.1
    fit_on: str = "sample"
    assign_space: Literal["auto", "original", "sketch"] = "auto"


@dataclass(frozen=True)
class PCA(SketchOptions):
    """Principal directions: ``SketchOptions("pca", n_components, ...)``.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Directions: 48, and 96 for more than 128 clusters.
    eps, delta, fit_on, assign_space
        As of `SketchOptions`.

    Examples
    --------
    >>> from streamkm import PCA, StreamKMeans
    >>> StreamKMeans(50, sketch=PCA(64, fit_on="all")).sketch.sketch
    'pca'
    """

    sketch: str = field(default="pca", init=False, repr=False)


@dataclass(frozen=True)
class KernelOptions:
    """The parameter `kernel` of `StreamKernelKMeans` in full. The estimator checks the values.

    Parameters
    ----------
    kernel : str or callable, default="rbf"
        "rbf", "laplacian", "linear", "polynomial" or "poly", "cosine", "sigmoid", "chi2": functions of two rows as in
        `sklearn.metrics.pairwise`. "precomputed": X holds kernel values, of the n rows with each other in a fit, of
        other rows with those n afterwards. A callable takes rows (v, d) and landmarks (c, d) and gives values (v, c);
        such a model cannot be saved.
    gamma_factor : float, default=1.0
        What the gamma that a fit finds is multiplied by; see `gamma` there. More makes clusters more local.
    degree : int, default=3
        Of "polynomial".
    coef0 : float, default=1.0
        Of "polynomial" and "sigmoid".

    Examples
    --------
    >>> from streamkm import KernelOptions, StreamKernelKMeans
    >>> kmeans = StreamKernelKMeans(50, kernel=KernelOptions("polynomial", degree=2))
    >>> kmeans.kernel.coef0
    1.0
    """

    kernel: str | Callable[..., Any] = "rbf"
    _: KW_ONLY
    gamma_factor: float = 1.0
    degree: int = 3
    coef0: float = 1.0


@dataclass(frozen=True)
class Nystroem:
    """The parameter `method` of `StreamKernelKMeans` in full. The estimator checks the values.

    Parameters
    ----------
    landmarks : {"uniform", "leverage", "rank-leverage", "kmeans"}, default="uniform"
        Which rows are landmarks of "nystroem": sampled ones; those of high ridge leverage, or of high leverage in the
        leading directions, as many as `rank`; or means of a short k-means.
    landmark_rank : int, optional
        Rank that the pseudo-inverse of the landmarks' kernel matrix is cut to, p in Wang et al.'s algorithm 2. None:
        what float32 values determine.
    method : str, default="nystroem"
        As of `StreamKernelKMeans`. "gaussian", "signs", "srht" and "countsketch" have a matrix to be cut, too.

    Examples
    --------
    >>> from streamkm import Nystroem, StreamKernelKMeans
    >>> kmeans = StreamKernelKMeans(50, method=Nystroem(landmarks="leverage", landmark_rank=200))
    >>> kmeans.method.method
    'nystroem'
    """

    landmarks: str = "uniform"
    landmark_rank: int | None = None
    _: KW_ONLY
    method: str = "nystroem"


OPTIONS: dict[str, type[Any]] = {"sketch": SketchOptions, "kernel": KernelOptions, "method": Nystroem}
"""What parameters of estimators are in full; each has a field of the parameter's name."""


def full_options(parameter: str, value: Any) -> Any:
    """What is given as a parameter, in full, NumPy's numbers as Python's."""
    options = value if isinstance(value, OPTIONS[parameter]) else OPTIONS[parameter](**{parameter: value})
    numbers = {name: number.item() for name, number in vars(options).items() if isinstance(number, np.generic)}
    return replace(options, **numbers)
