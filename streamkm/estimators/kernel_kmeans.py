"""`StreamKernelKMeans`: its parameters, its fit, and the attributes that only kernel fits set."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from streamkm.cluster.seeding.init import FEW_CLUSTERS, Starts
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.core.progress import Progress
from streamkm.engine import under_limit
from streamkm.engine.checkpoint import Checkpoint, CheckpointWriter
from streamkm.estimators.base_estimator import set_parameters
from streamkm.estimators.describe import DescribedKMeans
from streamkm.estimators.input_rows import checkpoint_writer, limit_of_run, open_rows, open_weighted
from streamkm.estimators.labelling import resources_of, set_fitted
from streamkm.estimators.validation import (
    Weights,
    check_value,
    check_values,
    drawn_seed,
    number,
    one_of,
    parameters_of,
    random_streams,
    searching,
)
from streamkm.fitting.context import FitContext, KernelRule, check_clusters
from streamkm.fitting.kernel.kernel_fit import KernelSettings, run_kernel_fit
from streamkm.fitting.kernel.landmarks import MapRule
from streamkm.passes.reader import RowReader
from streamkm.planning.fit_plan import plan_request
from streamkm.planning.memory_budget import planned_line_limit
from streamkm.planning.plan import Plan
from streamkm.planning.sketch_choice import (
    LANDMARKS,
    METHODS,
    KernelSizes,
    kernel_request,
    kernel_sizes,
    neighbor_landmarks,
)
from streamkm.sketches.kernel_columns import Kernel, KernelFunction
from streamkm.sketches.options import KernelOptions, Nystroem, full_options
from streamkm.sources.open import store_of
from streamkm.sources.prepared import cached_rows
from streamkm.sources.row_source import RowSource

STARTS = Starts(least=10, most=30)  # for few clusters
ALIASES = {"poly": "polynomial"}  # as scikit-learn's other estimators call it


OWN_RULES = {
    "eps": number(lambda value: 0 < value < np.inf, "a number above 0", optional=True),
    "method": one_of(tuple(METHODS)),
    "landmarks": one_of(LANDMARKS),
    "invalid": one_of(("raise", "skip")),
    "gamma": (
        lambda value: not isinstance(value, str) or value in ("auto", "neighbors"),
        'a finite number above 0, "auto", "neighbors", or None',
    ),
}


def check_kernel_parameters(estimator: Any) -> None:
    """Refuse parameters of a kernel estimator that are out of range, saying what is needed."""
    check_values(estimator, **OWN_RULES)
    kernel, method = full_options("kernel", estimator.kernel), full_options("method", estimator.method)
    gamma = estimator.gamma
    if gamma == "neighbors" and (kernel.kernel, method.method, method.landmarks) != ("rbf", "nystroem", "uniform"):
        wrong = f'gamma="neighbors" with kernel={kernel.kernel!r} and {method}'
        raise InvalidParameterError(f'{wrong}; needed: "rbf" and "nystroem", uniform')
    width = 1.0 if gamma is None or isinstance(gamma, str) else gamma
    Kernel(ALIASES.get(kernel.kernel, kernel.kernel), width, int(kernel.degree), float(kernel.coef0))
    if kernel.kernel == "precomputed":
        for name, known in (("method", ("nystroem", "two-step")), ("landmarks", ("uniform",))):
            check_value(name, getattr(method, name), one_of(known), ' with kernel="precomputed"')


class StreamKernelKMeans(DescribedKMeans):
    """Kernel k-means for data that need not fit in memory.

    The kernel matrix is never formed. Each chunk of rows becomes kernel values against landmarks, these values become
    few features, and k-means runs on the features. A fit reads the rows twice, or four times with ``fit_on="all"``. Up
    to two more passes follow if the sample missed clusters.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    kernel : str, callable or KernelOptions, default="rbf"
        "rbf", "laplacian", "linear", "polynomial", "cosine", "sigmoid", "chi2", "precomputed", or a function of rows
        and landmarks. `KernelOptions` describes each, and has `gamma_factor`, `degree` and `coef0`.
    gamma : float, "auto", "neighbors" or None, default="auto"
        Of the kernel. None: `gamma_factor` over twice the mean squared distance of sampled rows for "rbf", over the
        mean distance for "laplacian" and "chi2", over the mean squared norm for "polynomial" and "sigmoid"; a row of
        weight w counts as w rows. "neighbors": `gamma_factor` over the square of the median distance to the 7th
        neighbour among sampled rows (Zelnik-Manor and Perona), for "rbf" and "nystroem"; features are then the leading
        k directions of the landmarks' normalized cut, which separate rings and moons. "auto": None's width, unless the
        sampled rows form clusters at the width of neighbours that are clearly apart (a simplified silhouette above 0.95
        among the features, and above that of None's). It compares if `kernel`, `gamma_factor`, `method`, `n_landmarks`,
        `rank`, `eps`, `fit_on` and `init` are defaults and k is at most 100; the log tells both.
    gamma_factor : float, default=1.0
        Factor of the gamma that a fit finds, times that of `KernelOptions`. More makes clusters more local.
    method : str or Nystroem, default="nystroem"
        "nystroem": rank-restricted Nystroem features; `Nystroem` says which rows are landmarks. "two-step": k-means on
        the landmarks alone, whatever `rank`. "fourier", "orthogonal-fourier": random Fourier features ("rbf" only) cut
        to `rank`. "gaussian", "signs", "srht", "countsketch": Nystroem features of randomized sketches of all kernel
        columns (Wang et al.), O(n^2), for data in memory.

        Yin et al.'s features are values against drawn rows, without the root of the rows' own matrix and without a
        rank: "sampled-columns" (their Nystroem), as they are; "sub-gaussian", few of them added up with one random sign
        a row of the sketch, as printed, which gets worse with more landmarks than sqrt(n); "sub-gaussian-entries", with
        a sign an entry, which gets better; "ros", rotated by a randomized Hadamard matrix, which changes no distance.
    n_landmarks : int or "auto", default="auto"
        Landmarks, random features or columns of the sketch. "auto": 8 times `rank` or the root of n, the larger, up to
        2,048, but at least twice the rank; for Yin et al.'s features the root of n. For "ros" the next power of 2.
    rank : int or "auto", default="auto"
        Features that the truncated SVD keeps. "auto": k / eps; without `eps`, sqrt(k c) for c landmarks that were
        given, else 10 k up to 256. `plan` says which.
    eps : float, optional
        Share by which the best objective of `rank` features may be larger: k / eps of them keep it, where landmarks are
        enough. "auto" takes as many as theory asks for, up to 2,048 or twice the rank. If that is too few, the plan
        says what holds, and `fit` warns of landmarks left to "auto". None: `rank` decides.
    fit_on : {"sample", "all"}, default="sample"
        Rows that the truncated SVD and Lloyd see. "all": all rows, as in Wang et al.'s algorithms 2 and 3, for two
        passes more (one more for Yin et al.'s features). "sample": the row sample, 5,000 of its rows or 6 a landmark
        for the SVD; other rows only join the nearest center.
    init : {"k-means++", "random", "ls++"}, callable, or array-like or sparse (k, d), default="k-means++"
        As for `StreamKMeans`. An array: rows among the original features.
    n_init : int or "auto", default="auto"
        Starts on the sample; the best is kept. "auto": 10 for up to 10 clusters and for "random". With "k-means++" up
        to 30, until four in a row have not lowered the best by 0.03 %. For more: as for `StreamKMeans`.
    max_iter : int, default=100
    tol : float, default=1e-6
        As for `StreamKMeans`. `tol` is lower: steps on few features are cheap, and many steps that gain little may
        precede a gain of some tenths of a percent.
    refine : int or "auto", default="auto"
        As for `StreamKMeans`, in the space of the features. "two-step" never searches further.
    memory_limit : "auto", int, float, str or dict, default="auto"
    chunk_bytes : int or "auto", default="auto"
    executor : "auto", int or Dask client, default="auto"
    invalid : {"raise", "skip"}, default="raise"
    progress : bool or "auto", default="auto"
    random_state : int, RandomState or None, default=None
        As for `StreamKMeans`.

    Attributes
    ----------
    labels_ : int32 (n,)
    cluster_centers_ : ndarray (k, m)
        Among the features; float32 for float32 data, unless rounding moves the objective by more than 1e-6 of it.
    inertia_ : float
        Sum of squared distances to the centers in the space of the features, in float64.
    trace_residual_ : float or None
        The trace of the kernel matrix minus that of the features' inner products; None if unknown. The exact kernel
        objective lies between O and O plus this number, where O is the objective of the clusters at their means among
        the features: `inertia_` less the sum of `counts_` times the squared distances of `cluster_centers_` from
        `cluster_means_`. This sum is nearly 0 if Lloyd's algorithm saw all rows, small if it saw a sample, and large
        for "two-step", whose centers are those of the landmarks.
    expected_inertia_, expected_inertia_error_, possible_gain_ : float or None
        As for `StreamKMeans`, in the space of the features; None for "two-step".
    cluster_means_, counts_ : means and sizes of the final clusters
    kernel_ : Kernel
        With the gamma that was used.
    sketch_, n_components_ : KernelMap or FourierMap, int
        The map to features, and their number m, at most `rank`.
    n_passes_, n_iter_, converged_, history_, stages_, plan_ : as for `StreamKMeans`
    profile_, n_samples_, n_features_in_, seed_, fitted_on_, model_ : as for `StreamKMeans`
    sketch_sample_, sample_labels_ : features of sampled rows, and their clusters

    See Also
    --------
    KernelOptions, Nystroem : All options of the kernel and of the method.
    sklearn.kernel_approximation.Nystroem : For data in memory.

    Notes
    -----
    Settings of the papers. Wang et al., as their published script has them for MNIST8M: ``StreamKernelKMeans(10,
    kernel=KernelOptions(gamma_factor=2), method=Nystroem(landmark_rank=200), n_landmarks=400, rank=20, fit_on="all")``;
    what they compare with: "fourier" and "two-step". Yin et al.: ``method="sub-gaussian"``, "ros" or "sampled-columns"
    with ``init="ls++", fit_on="all"``. None of them looks further: ``refine=0``.

    References
    ----------
    Wang, Gittens and Mahoney, "Scalable kernel k-means clustering with Nystroem approximation: relative-error bounds",
    JMLR 20 (2019), algorithms 2 and 3; Yin, Liu, Wang and Meng, "Randomized sketches for clustering: fast and optimal
    kernel k-means", NeurIPS 2022, examples 1 to 3.

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
    >>> turn = np.linspace(0, 2 * np.pi, 100, endpoint=False)
    >>> ring = np.column_stack([np.cos(turn), np.sin(turn)])
    >>> X = np.concatenate([0.1 * ring, 3 * ring])
    >>> labels = StreamKernelKMeans(2, gamma=0.1, random_state=0).fit_predict(X)
    >>> sorted(len(set(labels[part])) for part in (slice(100), slice(100, 200)))
    [1, 1]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        kernel: str | KernelFunction | KernelOptions = "rbf",
        gamma: float | str | None = "auto",
        gamma_factor: float = 1.0,
        method: str | Nystroem = "nystroem",
        n_landmarks: int | str = "auto",
        rank: int | str = "auto",
        eps: float | None = None,
        fit_on: str = "sample",
        init: str | ArrayLike | Callable[..., Any] = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-6,
        refine: int | str = "auto",
        memory_limit: int | float | str | Mapping[str, Any] = "auto",
        chunk_bytes: int | str = "auto",
        executor: Any = "auto",
        invalid: Literal["raise", "skip"] = "raise",
        progress: bool | str = "auto",
        random_state: Any = None,
    ):
        set_parameters(self, locals())

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X, y, sample_weight, checkpoint : as for `StreamKMeans.fit`, which raises the same errors

        Notes
        -----
        With c landmarks and m features: O(n (d c + c m + m k)) for each time that features are made, O(c^3) for the
        landmarks; memory for the row sample and its features, c^2 numbers a few times, and with ``fit_on="all"`` n m
        numbers, of which a temporary file takes what memory has no room for.
        """
        check_kernel_parameters(self)
        with under_limit(self.memory_limit):
            source, weights = open_weighted(self, X, sample_weight, reset=True)
            limit = limit_of_run(self, checkpoint)
            plan = self.plan_for(source, weighted=len(weights.each) > 0, memory_limit=limit)
            with checkpoint_writer(self, source, checkpoint, plan, weights.each) as writer:
                bounded = planned_line_limit(source, self.memory_limit, plan)
                self._run(cached_rows(bounded, plan.chunk_bytes, plan.cached_bytes), plan, weights, writer)
        return self

    def _run(self, source: RowSource, plan: Plan, weights: Weights, writer: CheckpointWriter) -> None:
        """Fit, and set what `fit` sets."""
        seed = writer.same_seed(drawn_seed(self.random_state))
        sizes, settings = self._chosen(source, seed)
        if sizes.short and self.n_landmarks == "auto":  # of a number that was given, the plan tells
            warnings.warn(f"{sizes.short}; pass more n_landmarks or a larger eps", StreamkmWarning, stacklevel=3)
        with FitContext.opened(
            self.executor,
            reader=RowReader(source, plan.chunk_bytes, "euclidean", self.invalid, may_index=True),
            plan=plan,
            settings=settings,
            weights=weights.each,
            writer=writer,
            progress=Progress(self.progress),
        ) as context:
            fit, self.kernel_, residual = run_kernel_fit(context)
        set_fitted(self, fit, fit.model, context, weights, seed)
        self.trace_residual_ = None if residual is None else weights.factor * residual

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float32"]  # of the features
        tags.input_tags.pairwise = full_options("kernel", self.kernel).kernel == "precomputed"
        return tags

    def plan(self, X: Any) -> Plan:
        """Say what `fit` would do with X: passes, bytes, memory. Reads no rows; raises as `fit` would."""
        check_kernel_parameters(self)
        return self.plan_for(open_rows(self, X, reset=None))

    def plan_for(self, source: RowSource, *, weighted: bool = False, memory_limit: Any = None) -> Plan:
        """Plan a fit of an open source, below another memory limit if one is given."""
        if store_of(source) is not None:
            raise InvalidInputError(f"{source.name} is a sketch store; kernels need original rows: pass its data")
        given = parameters_of(self)
        if source.n_rows is not None:
            check_clusters(given.n_clusters, source.n_rows)
        sizes, _ = self._chosen(source, 0)
        return plan_request(kernel_request(source, given, sizes, weighted=weighted), resources_of(given, memory_limit))

    def _chosen(self, source: RowSource, seed: int) -> tuple[KernelSizes, KernelSettings]:
        """The sizes of a fit, and its settings with this seed."""
        given = parameters_of(self)
        search, kernel, method, near = searching(given), given.kernel, given.method, given.gamma == "neighbors"
        rank = given.n_clusters if near and given.rank == "auto" else given.rank
        near_landmarks = neighbor_landmarks(given)
        wanted = (given.n_clusters, near_landmarks if near else given.n_landmarks, rank, given.eps)
        sizes = kernel_sizes(*wanted, source.estimated_rows, method=method.method)
        how = method.landmarks if method.method == "nystroem" else "uniform"
        by_search = given.n_init == "auto" and isinstance(given.init, str) and given.init == "k-means++"
        searched = by_search and given.n_clusters <= FEW_CLUSTERS  # features are few: starts cost little
        width = (given.gamma, given.gamma_factor * kernel.gamma_factor)
        settings = KernelSettings(
            **search | {"n_init": STARTS if searched else given.n_init},
            refine=given.refine,
            seeds=random_streams(seed),
            kernel=KernelRule(ALIASES.get(kernel.kernel, kernel.kernel), *width, kernel.degree, float(kernel.coef0)),
            map=MapRule(method.method, how, sizes.n_landmarks, sizes.rank, method.landmark_rank, near_landmarks),
        )
        return sizes, settings
