"""Options of a sketch, a kernel, and kernel features, as they are given; estimators check them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from streamkm.sketches.base_sketch import Sketch


@dataclass(frozen=True)
class SketchOptions:
    """The parameter `sketch` of `StreamKMeans` in full. The estimator checks the values.

    Parameters
    ----------
    sketch : str or Sketch, default="auto"
        The map that shrinks features. "auto": none for few features; CountSketch for sparse rows; for wide dense rows
        principal directions ("pca": Lloyd then runs along them, see `coreset` of `StreamKMeans`). By name, for any
        rows: "countsketch", "signs", "gaussian", "sparse", "hadamard" and "identity"; found on rows (see `fit_on`):
        "pca", "svd" and "leverage". Or a sketch, such as ``CountSketch(2048, nnz_per_feature=4)`` or
        ``PreconditionedSampling(0.1, d, 0)``; one without a seed gets it from the estimator's `random_state`.
    n_components : int or "auto", default="auto"
        m. "auto": 2,048 for sparse rows (they stay sparse, so it costs nothing); 256 for dense ones; for "pca" 48, and
        96 for more than 128 clusters. Rows that are known to have no more features than that stay as they are.
    eps : float, optional
        Error, in place of `n_components`: a theorem gives the components that keep the objective of every clustering
        within 1 +- eps, for all but a share `delta` of seeds (definition 2 of Liu et al.); `plan` names it. If that
        takes as many components as there are features, rows are not sketched. eps is not the loss of the clusters
        found: the best ones in the sketch cost up to 1 + 2 eps / (1 - eps) times the least, so that a loss needs ``eps
        = loss / (2 + loss)``, and four times the components. Two kinds promise less: "leverage" that the best
        clustering of the sketch costs at most 3 + eps times the least; "svd" and "pca" that objectives are within 1 +
        eps up to a constant that all clusterings share, for exact directions of all rows (``fit_on="all"``; those of a
        sample come near). None: the sizes that serve in practice.
    delta : float, default=0.1
        See `eps`. Components of "countsketch" grow with 1 / delta and the square of k.
    fit_on : {"sample", "all"}, default="sample"
        Rows on which a sketch that depends on the data is found. "sample": the row sample of the first pass. "all": all
        rows, in one more pass: exact but for rounding up to 2,048 features, by sums of d x d numbers; above, a
        randomized range finder with sums of d x 1.5 m.
    assign_space : {"auto", "original", "sketch"}, default="auto"
        Space in which rows are assigned. "auto": the original features, unless k centers of d features would fill a
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
        See `SketchOptions`.

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
        other rows with those n afterwards. A callable maps rows (v, d) and landmarks (c, d) to values (v, c); such a
        model cannot be saved, and its fit takes no `checkpoint`.
    gamma_factor : float, default=1.0
        Factor of the gamma that a fit finds; see `gamma` there. More makes clusters more local.
    degree : int, default=3
        Degree of "polynomial".
    coef0 : float, default=1.0
        Constant of "polynomial" and "sigmoid".

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
        Landmarks of "nystroem": sampled rows; rows of high ridge leverage, or of high leverage in the leading `rank`
        directions; or means of a short k-means.
    landmark_rank : int, optional
        Rank to which the pseudo-inverse of the landmarks' kernel matrix is cut, p in Wang et al.'s algorithm 2. None:
        the rank that float32 values determine.
    method : str, default="nystroem"
        See `StreamKernelKMeans`. "gaussian", "signs", "srht" and "countsketch" have a matrix to be cut, too.

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
"""Classes of parameters of estimators in full; each has a field of the parameter's name."""


def full_options(parameter: str, value: Any) -> Any:
    """Expand a parameter to its full options, with Python's numbers for NumPy's."""
    options = value if isinstance(value, OPTIONS[parameter]) else OPTIONS[parameter](**{parameter: value})
    numbers = {name: number.item() for name, number in vars(options).items() if isinstance(number, np.generic)}
    return replace(options, **numbers)
