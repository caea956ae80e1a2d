"""`StreamKMeans`: its parameters, its fit, and the attributes that a fit sets; `fitting` does the work."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from streamkm.cluster.model import Metric
from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, StreamkmWarning
from streamkm.core.progress import Progress
from streamkm.engine import is_on_cluster, open_executor, under_limit
from streamkm.engine.checkpoint import Checkpoint, CheckpointWriter
from streamkm.estimators.base_estimator import set_parameters
from streamkm.estimators.describe import DescribedKMeans
from streamkm.estimators.incremental import IncrementalKMeans, incremental_from
from streamkm.estimators.input_rows import (
    checkpoint_writer,
    limit_of_run,
    open_rows,
    open_weighted,
    preparation_for,
    read_invalid,
)
from streamkm.estimators.labelling import label_places, resources_of, set_fitted, write_label_table
from streamkm.estimators.validation import (
    ClusterMetric,
    Weights,
    check_parameters,
    drawn_seed,
    parameters_of,
    random_streams,
    searching,
)
from streamkm.fitting.context import FitContext, Settings, check_clusters
from streamkm.fitting.kmeans import run_fit
from streamkm.passes.labels import check_seen
from streamkm.passes.pass_context import PassContext
from streamkm.passes.prepare import find_preparation, planned_rows
from streamkm.passes.reader import Invalid, RowReader
from streamkm.planning.fit_plan import plan_fit
from streamkm.planning.memory_budget import planned_line_limit
from streamkm.planning.plan import Plan
from streamkm.sketches import sketch_class
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.options import SketchOptions, full_options
from streamkm.sources.open import store_of
from streamkm.sources.prepared import PreparedRows, cached_rows
from streamkm.sources.row_source import RowSource


class StreamKMeans(DescribedKMeans):
    """K-means for data that need not fit in memory.

    Rows are read in chunks, twice: the first pass sketches them to few features and keeps a sample; k-means runs on the
    sketch; the second pass assigns every original row and gathers the exact objective.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    sketch : str, Sketch or SketchOptions, default="auto"
        Reduction of the features: a name, a sketch such as ``CountSketch(2048)`` or ``PCA(64, fit_on="all")``, or
        options such as ``SketchOptions("countsketch", eps=0.1)``. Options also set the number of components, the rows
        that the sketch is found on, and the space of the assignment. "auto": no sketch for few features, CountSketch
        for sparse rows, principal directions for wide dense rows.
    init : {"k-means++", "k-means||", "random", "ls++"}, callable, or array-like or sparse (k, d), default="k-means++"
        "k-means++": greedy k-means++, then a search by splits and merges, on the rows in memory or on rows drawn by
        their share of the objective. "k-means||": rows drawn in that way, seeded by their weights, without the search.
        "ls++": the same, then local search that swaps centers for drawn rows (Lattanzi and Sohler, ICML 2019).
        "random": sampled rows. An array: these centers, without a search. A callable is called as
        ``init(X, n_clusters, random_state=...)`` on sampled rows; it is not saved with the model.
    n_init : int or "auto", default="auto"
        Number of starts; the best one is kept, and each start of "k-means++" is recombined with the best one before it.
        "auto" stops when further starts hardly lower the objective:

        - 10 starts for "random" and for a callable
        - 5 to 20 for at most 100,000 rows, if a start is cheap, until four in a row lower the best objective by less
          than 0.03 %; with more than 20,000 narrow rows, 5 to 8 searches on rows drawn for each
        - 2 to 10 and 2 to 6 in these two cases if epochs follow (see `max_iter`)
        - otherwise 4 to 10 for up to 10 clusters and 1 to 10 for more, by the cost of a start
    max_iter : int, default=100
        Largest number of Lloyd steps in each stage. With 64 clusters or more and at least 32 dense rows a cluster, most
        steps are epochs of moving averages, which end lower: every row is seen once, in small batches. There are no
        epochs with ``n_init=1``, a given or random `init`, ``tol=0``, fewer than 5 steps, or rows held on disk.
    tol : float, default=1e-4
        Lloyd's algorithm stops when a step lowers the objective by at most this share. 0 runs it to the fixed point.
    metric : {"euclidean", "cosine", "spherical"}, default="euclidean"
        "cosine": rows are scaled to unit length while they are read, and centers are their means. "spherical": centers
        have unit length too; each original row is assigned to the center at the smallest angle, and `inertia_` is
        ``2 (n - sum of the cosines)``. A center of zero rows stays zero. "spherical" is not for streams.
    preprocess : "table", list of {"standardize", "robust", "log1p", "total", "unit"}, or mapping, optional
        Steps that prepare rows while they are read, in this order, in all methods, without a copy of the data.

        - "standardize": mean 0 and standard deviation 1 over all valid rows; takes one pass
        - "table": for dense rows of numbers and one-hot categories; by a sample of rows, in one pass. Numbers are
          clipped beyond the 0.5 % tails of their column by the distance of these, skewed non-negative columns become
          log(1 + x), and all get mean 0 and standard deviation 1. Two categories are at distance 1. Constant columns,
          counters and columns that identify rows are left out; `summary` tells which.
        - "robust": median 0 and quartiles 1 apart, from a sample of rows; takes one pass
        - "log1p": ``log(1 + x)``
        - "total": the values of a row add up to 10,000, for counts
        - "unit": rows have length 1

        A mapping names the columns of each step, by name or number, or None for all, in the order of the steps:
        ``{"log1p": ["fare"], "standardize": ["fare", "age"]}``. The name of a category stands for all of its features.

        Features that are constant but for rounding are scaled by 1. Weights of rows do not count here. Values that a
        step cannot use make the row invalid: see `invalid`. Sparse rows are scaled and not shifted, which leaves
        distances and zeros as they are. Later rows are prepared as those of the fit: sparse rows become dense chunk by
        chunk if the fit shifted dense rows; dense rows are scaled alone if it did not. `cluster_centers_`, `inertia_`
        and distances are in prepared units; `original_centers` gives centers in the units of the data.
    refine : int or "auto", default="auto"
        Further passes, each an exact Lloyd step on all original rows. "auto": if rows drawn by the last pass show that
        more than 1 % of the objective can be gained, clusters are searched on these rows too, and one more pass
        assigns; at most twice, and never with given or random centers. With a number, a possible gain is a warning.
    coreset : {"auto", "sensitivity", "uniform"} or None, default="auto"
        The rows that are clustered. "uniform": the row sample. "sensitivity": weighted rows drawn by
        importance, which include small clusters far away. None: all rows, sketched, in memory or on disk. "auto": all
        rows if they fit in memory and are few or narrow, else "sensitivity"; for sparse rows, and for more wide dense
        rows than ten times the sample, the row sample, with means polished in the original space. If the sketch is
        found on rows, None and coresets take one more pass; "auto" finds "pca" on rows that are read ahead.
    cluster_size : tuple of 2 or 3, optional
        Floor and cap of the sizes of clusters, either None: numbers of rows, or floats as multiples of n / k. There are
        exactly k clusters then, and every size is within both; weights count where there are weights, as far as single
        rows allow. Each center has a price (`model_.prices`), and a row goes to the center with the least sum of
        squared distance and price (Aurenhammer, Hoffmann and Aronov, Algorithmica 20, 1998); this takes up to two more
        passes, and more where over 65,536 rows have to move singly. What prices leave outside is moved row by row, the
        cheapest rows first; `size_balance_` tells how many, and `predict`, which knows prices alone, differs from
        `labels_` for these rows. A third value "soft" moves none. Labels are gathered in this process. Not for rows
        that can be read only once.
    memory_limit : "auto", int, float, str or dict, default="auto"
        Largest resident memory of this process: bytes, text like "1 GiB", or a share of the machine's or container's
        memory like 0.5 or "50%". "auto": 80 % of it. The fit is planned to stay within it, by the data and by what the
        process already holds (`process_memory` of the plan, in steps of 32 MiB); a dict repeats a plan in another
        process: ``{"limit": "1 GiB", "process_memory": "256 MiB"}``, or "1 GiB, process 256 MiB". A fit that does not
        fit is refused before the first read; without a limit, also if the machine has too little free memory. A line of
        text that is too long is refused when it is read, if no plan saw it. The process that compiles kernels is not
        counted (up to 320 MiB, for seconds, in the first fit of an installation). See `plan`.

        On a Dask cluster, the limit is the client's, which holds the row sample, a coreset, centers and labels. Workers
        hold the sketched rows, below 70 % of the smallest worker's memory limit when the fit is planned; if these are
        too many, the fit takes a coreset of them. Otherwise labels do not depend on the number of workers.
    chunk_bytes : int or "auto", default="auto"
        Approximate size of a chunk in memory. Equal values give bit-identical results for any executor.
    executor : "auto", int, or dask.distributed.Client, default="auto"
        "auto": the active Dask client, else threads; one thread in a task of a Dask worker. An int: number of threads.
    invalid : {"raise", "skip", "mean"}, default="raise"
        Treatment of rows with NaN or infinity. Masked values of NumPy arrays and nulls of tables are NaN; a missing
        category has a zero in each of its features.

        - "raise": an error names the row.
        - "skip": these rows get the label -1.
        - "mean": the feature's mean replaces NaN before other steps of `preprocess`, in later rows too; takes one pass.
          A feature without values is filled with 0. In sparse rows only stored NaN is missing. Infinity is an error.
    progress : bool or "auto", default="auto"
        Progress bars on stderr, or below the cell of a notebook. "auto": in notebooks, and if stderr is a terminal.
        True without a terminal: a line on stderr for each finished stage, unless the log has these lines.
    random_state : int, RandomState or None, default=None
        Seed of the sketch, the sample and the starts.

    Attributes
    ----------
    labels_ : int32 ndarray (n,)
        Cluster of each row, equal to ``predict(X)``; -1 for skipped rows. On a Dask cluster, labels of data that
        workers read stay on them until `labels_` is asked for or the estimator is pickled, which must be before the
        client is closed; above 100,000,000 rows with a warning. Labels of a lost worker are made again from the data. A
        fit with a `checkpoint` gathers them as they are made.
    dask_labels_ : int32 dask.array.Array (n,)
        `labels_` in the blocks of the fitted Dask array, also of unknown heights: ``X[kmeans.dask_labels_ == 3]``,
        ``frame.assign(cluster=kmeans.dask_labels_)``. Other data that are fitted on a Dask cluster have a block for
        each chunk. The client of the fit computes with labels on workers, which are not gathered.
    cluster_centers_ : ndarray (k, d), or (k, m) where `assign_space_` is "sketch"
        The centers that the labels are for, rounded to float32 for float32 data unless that would move the objective by
        more than 1e-6 of it; `model_` keeps them in float64. Methods use new centers after an assignment to this
        attribute. There are fewer than `n_clusters` if the data have fewer distinct rows.
    cluster_means_, counts_ : ndarray of this shape, and ndarray (k,)
        Exact means of the final clusters, and the rows of each or their total weight.
    size_balance_ : dict
        With `cluster_size`: "n_moved", rows that go to another cluster than prices say; "inertia_before" and
        "inertia_after" them; "smallest" and "largest" size, both also "before" prices, by some of the rows; "variation"
        (standard deviation over mean) and "largest_over_mean".
    inertia_ : float
        Exact weighted sum of squared distances of rows to the model's centers, in the assignment's space and float64.
    distortion_ : float or None
        ``(J' + c) / J``, with J' the objective of the final clusters in the sketch, J that in the original space, and c
        the constant of definition 2 of Liu et al.: for "pca" and "svd" the sum of squared lengths that the projection
        cuts off, else 0. A value near 1 says that m was large enough. None if rows were assigned in the sketch, and for
        `PreconditionedSampling`, which keeps no lengths.
    expected_inertia_, expected_inertia_error_ : float or None
        Estimate of `inertia_` from the sample, and its standard error; 0 if the sample held all rows and each was used.
        Twice the error to both sides is a 95 % interval. None for data that can be read only once, if memory has no
        room for drawn rows, and if a few rows decide the sum (heavy tails, by Cochran's rule: 25 squared skewnesses
        against the number of rows), which the log says.
    possible_gain_ : float or None
        Share of `inertia_` that one split and merge, or one Lloyd step, could gain, estimated from below, from rows
        that the last pass drew by their share of the objective. 0 at a local optimum, which need not be the best one.
        Above 1 % there is a warning if `refine` does not look further.
    feature_deviations_ : float64 ndarray (d,) or None
        Standard deviations of the features, by 2,000 sampled rows; None where rows were assigned in the sketch.
    preparation_, missing_ : Preparation or None, Missing or None
        Findings of `preprocess` or of the fitted sketch store; how many values were missing, for "mean".
    profile_ : Profile or None
        Distances, silhouettes and typical rows of each cluster, for `summary`; None if rows can be read only once.
    feature_words_ : WordTable or None
        The words behind hashed features, from the pass that counts document frequencies or from some of the documents.
    assign_space_ : {"original", "sketch"}
    n_iter_, converged_ : int, bool
        Steps of the last stage of Lloyd with its epochs, and whether `tol`, or its schedule behind epochs, ended it.
    history_ : list of dict
        ``{"stage", "iteration", "inertia"}``. Rows and space depend on the stage: "epochs" and "lloyd" the clustered
        rows, sketched; "polish" the sampled original rows; "sphere" (unit centers) the rows clustered last; "refine"
        all original rows.
    stages_ : list of Stage
        Seconds, rows and bytes read of each stage, and the `inertias` of its epochs or steps, as in `history_`; an
        epoch's adds up batches about the centers that each met. "words" is a look at some documents, which is no pass.
    n_passes_, seed_ : int
        Passes over the data, with the one that counts document frequencies; `random_state` if that is a number, else
        the drawn one, which gives the same fit again.
    fitted_on_ : dict
        ``name``, ``files``, ``stored_bytes``, ``dtype`` and ``sparse`` of the rows; and ``process_memory``, bytes that
        the process held beside data, as the plan took them.
    tfidf_ : TfIdf or None
        The document frequencies that rows, and later documents, are weighted by.
    n_samples_, n_features_in_, n_components_ : int, namely n, d and m
    sketch_, plan_ : Sketch, Plan
        The map, and what was decided before reading.
    sketch_sample_ : ndarray or csr_array (at most 5000, m), and `sample_labels_` : int32
        Sketched rows of the sample with their clusters, for looking at.

    See Also
    --------
    SketchOptions : What can be said of the sketch.
    IncrementalKMeans : For rows that keep coming.
    sklearn.cluster.KMeans : For data in memory.

    Notes
    -----
    Methods of the papers, which take the labels of the sketch where the defaults assign the rows themselves:
    ``sketch=SketchOptions(name, m, assign_space="sketch"), refine=0``. Sparse embedding (Liu et al.) is "countsketch";
    random signs (Boutsidis et al.) "signs"; draws of features by leverage "leverage"; singular vectors "svd" with
    ``fit_on="all"``; preconditioned sparsification a `PreconditionedSampling`. For hashed words (Senuma) rows come from
    `streamkm.FeatureHashing`, with "identity". `streamkm.sizing` gives the components by a theorem.

    References
    ----------
    Liu, Shen and Tsang, "Sparse embedded k-means clustering", NIPS 2017; Boutsidis, Zouzias, Mahoney and Drineas,
    "Randomized dimensionality reduction for k-means clustering", IEEE Trans. Inf. Theory 61 (2015).

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm import StreamKMeans
    >>> X = np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 0.0], [10.0, 2.0], [10.0, 4.0], [10.0, 0.0]])
    >>> kmeans = StreamKMeans(n_clusters=2, random_state=0).fit(X)
    >>> sorted(kmeans.cluster_centers_.tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    >>> kmeans.inertia_
    16.0
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        sketch: str | Sketch | SketchOptions = "auto",
        init: str | ArrayLike | Callable[..., Any] = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-4,
        metric: ClusterMetric = "euclidean",
        preprocess: Sequence[str] | Mapping[str, Any] | None = None,
        refine: int | str = "auto",
        coreset: str | None = "auto",
        cluster_size: tuple[Any, ...] | None = None,
        memory_limit: int | float | str | Mapping[str, Any] = "auto",
        chunk_bytes: int | str = "auto",
        executor: Any = "auto",
        invalid: Invalid = "raise",
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
        labels_to: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X : array-like or sparse matrix (n, d), path or glob, open dataset, Dask array, iterable of chunks, or RowSource
            Whatever `streamkm.open_source` accepts.
        y : ignored
        sample_weight : array-like (n,) or float, optional
            Weights of the rows, not negative; equal weights count as none. For weights that differ, text and Dask
            arrays of unknown chunk sizes are read once more, to count their rows.
        labels_to : path, optional
            NAME.zarr: a Zarr array of the labels that all workers see and write; no label passes this process.
            `labels_` is that array then, which ``labels_[:]`` gathers; a fit that goes on from a checkpoint begins the
            last pass anew. NAME.csv or NAME.parquet: a table with distances, as `predict_to` writes it, in one more
            pass. Whether the place can be written to is checked before rows are read.
        checkpoint : path, optional
            An empty or new directory, for the state of the fit every few seconds. A killed fit that is called again
            with the same data, parameters and weights continues from there, with the same result. The directory is
            removed when the fit is complete. An open `streamkm.engine.checkpoint.Checkpoint` is left to its owner.

        Raises
        ------
        InvalidInputError, SourceError, InvalidParameterError
            For data that cannot be read or are wrong, with their place, and parameters out of range.
        MemoryLimitError
            If the work would not fit in memory, before anything is read.
        CheckpointError, InUseError
            If the checkpoint is of another fit, or another process has it.

        Notes
        -----
        Two passes over the data, `refine` more, one for ``fit_on="all"`` of a sketch, and one where a `coreset` of
        rows, or all of them, is sketched by what was found on rows. O(nnz) for the sketch, O(nnz * k) for each
        assignment; memory for n sketched rows, the sample and the centers.
        """
        check_parameters(self)
        source, weights = open_weighted(self, X, sample_weight, reset=True)
        place, table = label_places(labels_to)
        if labels_to is not None and not source.access.replayable:
            why = "can be read only once, so labels cannot be written during the fit"
            raise InvalidInputError(f"{source.name} {why}. Leave out labels_to and save labels_ afterwards")
        if place is not None:
            with open_executor(self.executor, 1) as workers:
                check_seen(workers, place)
        gathered = checkpoint is not None or self.cluster_size is not None
        stay = place is None and labels_stay(self.executor, source, has_checkpoint=gathered)
        gathers = not stay and place is None
        total_weight = float(weights.each.sum()) if len(weights.each) else None
        limit = limit_of_run(self, checkpoint)
        with under_limit(self.memory_limit), ExitStack() as stack:
            told = {"total_weight": total_weight, "row_weight": weights.factor, "memory_limit": limit}
            plan = self.plan_for(source, gathers_labels=gathers, **told)
            writer = stack.enter_context(checkpoint_writer(self, source, checkpoint, plan, weights.each))
            chunk_bytes = rows_to_cluster(self, source).original_bytes(plan.chunk_bytes)
            source = cached_rows(planned_line_limit(source, self.memory_limit, plan), chunk_bytes, plan.cached_bytes)
            self._run(source, plan, weights, writer, labels_to=place, labels_stay=stay)
            if table is not None:
                written = write_label_table(self, source, table)
                self.stages_ += [written.stage] if written.stage else []
                self.n_passes_ += 1
        return self

    def _run(self, source: RowSource, plan: Plan, weights: Weights, writer: CheckpointWriter, **labels: Any) -> None:
        """Fit rows, and set what `fit` sets; `labels`: the context's settings of where labels go."""
        preparation, progress = preparation_for(self, source), Progress(self.progress)
        if preparation is not None and preparation.finding:
            reader = _reader(self, source, plan, "euclidean")
            with open_executor(self.executor, plan.n_threads) as workers:
                context = PassContext(executor=workers, reader=reader, writer=writer)
                preparation = find_preparation(context, preparation, plan.sample_rows, progress)
        source = source if preparation is None else PreparedRows(source, preparation)
        stored = store_of(source)
        metric: Metric = "cosine" if self.metric == "spherical" else self.metric
        if stored is not None:
            from streamkm.stores.planned import metric_on_store, model_of_store, sketch_of_store

            metric = metric_on_store(stored, metric)
            if self.metric == "spherical" and not sketch_of_store(stored).is_identity:
                wrong = f'{stored.path} holds sketched rows, and metric="spherical" is for original ones'
                raise InvalidParameterError(f'{wrong}; fit the data, or a store with sketch="identity"')
        seed = writer.same_seed(drawn_seed(self.random_state))
        with FitContext.opened(
            self.executor,
            reader=_reader(self, source, plan, metric),
            plan=plan,
            settings=settings_of(self, seed, weights.factor),
            weights=weights.each,
            writer=writer,
            progress=progress,
        ) as context:
            fitted = run_fit(replace(context, **labels))
        # a store's rows are sketched: the model that is kept sketches original rows first
        model = replace(fitted.model, preparation=preparation)
        if stored is not None:
            model = replace(model_of_store(stored, fitted.model.centers), prices=fitted.model.prices)
        set_fitted(self, fitted, model, context, weights, seed)
        self.preparation_ = model.preparation
        self.feature_deviations_ = fitted.deviations
        missing = self.missing_
        if missing is not None and missing.most == 1:
            text = f"feature {missing.feature} has no value in any row and is filled with 0; leave it out"
            warnings.warn(text, StreamkmWarning, stacklevel=3)

    def incremental(self, *, half_life: float | None = None, first_row: int = 0) -> IncrementalKMeans:
        """Make an estimator that takes more rows from here on; the rows of the fit are not read again.

        A fit keeps no original rows. The exact means of its clusters stand for them, by the weight of each cluster:
        sums and counts are carried exactly, distances within the clusters are not.

        Parameters
        ----------
        half_life : float, optional, and first_row : int, default=0
            As for `IncrementalKMeans`.

        Returns
        -------
        IncrementalKMeans
            With this estimator's parameters as far as it has them, and what `preprocess` has found. It takes later
            tables, files, AnnData objects and documents like `predict`. Clusters that stay keep their numbers.

        Raises
        ------
        NotFittedError
        InvalidInputError
            For clusters that are known in the sketch alone, and after `load`, which knows no means.
        InvalidParameterError
            For fits with ``metric="spherical"``, and parameters out of range.
        """
        check_is_fitted(self, "model_")
        return incremental_from(self, half_life=half_life, first_row=first_row)

    def plan(self, X: Any) -> Plan:
        """Say what `fit` would do with X: sketch, passes, bytes, memory. Reads no rows.

        Parameters
        ----------
        X : as for `fit`

        Raises
        ------
        InvalidInputError, InvalidParameterError, SourceError, MemoryLimitError
            As `fit` would before its first read.
        """
        check_parameters(self)
        source = open_rows(self, X, reset=None)
        return self.plan_for(source, gathers_labels=not labels_stay(self.executor, source))

    def plan_for(
        self,
        source: RowSource,
        *,
        total_weight: float | None = None,
        gathers_labels: bool = True,
        memory_limit: Any = None,
        row_weight: float = 1.0,
    ) -> Plan:
        """Plan a fit of an open source with weights of this sum, below another memory limit if one is given."""
        given = parameters_of(self)
        if source.n_rows is not None:
            check_clusters(given.n_clusters, source.n_rows)
            if given.cluster_size is not None and total_weight is None:
                settings_of(self, 0, row_weight).size_bounds(source.n_rows, NO_WEIGHTS)
        rows = rows_to_cluster(self, source)
        options = replace(given.sketch, assign_space="original") if given.metric == "spherical" else given.sketch
        asked = {name: getattr(given, name) for name in ("n_clusters", "refine", "coreset", "cluster_size")}
        resources = resources_of(given, memory_limit, gathers_labels=gathers_labels)
        return plan_fit(rows, resources, options=options, weighted=total_weight is not None, **asked)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        sketch = full_options("sketch", self.sketch).sketch
        asked: Any = sketch if isinstance(sketch, Sketch) else sketch_class(str(sketch))
        tags.input_tags.sparse = asked.takes_sparse
        return tags


def rows_to_cluster(estimator: Any, source: RowSource) -> RowSource:
    """The prepared rows to cluster; see `planned_rows`."""
    preparation = preparation_for(estimator, source)
    return source if preparation is None else planned_rows(source, preparation)


def labels_stay(executor: Any, source: RowSource, *, has_checkpoint: bool = False) -> bool:
    """Whether unwritten labels stay on workers, which can make them again if no checkpoint saves them."""
    by_workers = source.access.replayable and not source.access.in_process and not source.access.streams
    return is_on_cluster(executor) and by_workers and not has_checkpoint


def settings_of(estimator: Any, seed: int, row_weight: float = 1.0) -> Settings:
    """Make the settings of a fit with this seed."""
    given = parameters_of(estimator)
    sketch = None if isinstance(given.sketch.sketch, str) else given.sketch.sketch
    return Settings(
        **searching(given),
        refine=given.refine,
        seeds=random_streams(seed),
        sketch=sketch,
        spherical=given.metric == "spherical",
        row_weight=row_weight,
        cluster_size=given.cluster_size and tuple(given.cluster_size),
    )


def _reader(estimator: Any, source: RowSource, plan: Plan, metric: Metric) -> RowReader:
    """Make the reader of the passes of a fit."""
    return RowReader(source, plan.chunk_bytes, metric, read_invalid(estimator), may_index=True)
