"""`StreamKMeans`: its parameters, its fit, and the attributes that a fit sets.

The work is in fitting. No logic in `__init__`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.memory import available_memory, is_given
from streamkm.core.progress import Progress
from streamkm.engine import is_on_cluster, local_threads, open_executor, under_limit
from streamkm.estimators.checkpoints import checkpoint_writer, limit_of_run
from streamkm.estimators.describe import DescribedKMeans
from streamkm.estimators.incremental import IncrementalKMeans, incremental_from
from streamkm.estimators.input_rows import open_rows
from streamkm.estimators.kmeans_fit import (
    cached_as_planned,
    compiling_for,
    fit_rows,
    plan_rows,
    rough_reader,
    rows_to_cluster,
    settings_of,
)
from streamkm.estimators.labelling import write_label_table
from streamkm.estimators.validation import ClusterMetric, check_parameters, check_weights, drawn_seed, is_sketch
from streamkm.fitting.benchmark import estimate_seconds, measure
from streamkm.passes.label_tables import SUFFIXES, TableLabels, check_table_place
from streamkm.passes.labels import check_labels_place, check_seen
from streamkm.passes.reader import OnInvalid, OnMissing
from streamkm.planning.forecast import Cluster, Forecast, HypotheticalSource, forecast
from streamkm.planning.plan import Plan
from streamkm.sketches import Sketch, SketchOptions, full_options
from streamkm.sketches.registry import sketch_class
from streamkm.sources.base import RowSource
from streamkm.sources.open import store_of


class StreamKMeans(DescribedKMeans):
    """K-means for data that need not fit in memory.

    Rows are read in chunks, twice: the first pass sketches them to few features and keeps a sample; k-means runs on
    the sketch; the second pass assigns every original row and gathers the exact objective.

    Parameters
    ----------
    n_clusters : int, default=8
        Number of clusters.
    sketch : str, Sketch or SketchOptions, default="auto"
        How features are shrunk: a name, a sketch such as ``CountSketch(2048)``, or `SketchOptions`, which also set the
        number of components, the rows that the sketch is found on, and where rows are assigned. Short forms of options
        are ``PCA(64, fit_on="all")`` and ``CountSketch.for_error(eps=0.1)``. "auto": not at all where features are few;
        CountSketch for sparse rows; principal directions for wide dense rows.
    init : {"k-means++", "k-means||", "random", "ls++"}, callable, or array-like or sparse (k, d), default="k-means++"
        "k-means++": greedy k-means++ on all rows that are held, or on rows drawn from all of them by their share of the
        objective, then split-and-merge search there. "k-means||": such rows, seeded by their weights, without a search.
        "ls++": the same, then local search that swaps centers for drawn rows (Lattanzi and Sohler, ICML 2019).
        "random": sampled rows. An array: these centers, without any search. A callable: what
        ``init(X, n_clusters, random_state=...)`` gives for sampled rows X; it is not saved with a model.
    n_init : int or "auto", default="auto"
        Starts, of which the best is kept; "auto": 10 for "random" and for a callable. Of up to 100,000 rows, where a
        start costs little, 5 to 20: no more once four in a row have not lowered the best by 0.03 %. Of more than
        20,000 narrow ones of them, 5 to 8 searches of several starts, each on rows that are drawn for it. Where epochs
        follow (see `max_iter`), 2 to 10 and 2 to 6, no more once one has not. Else, by what a start costs, 4 to 10 for
        up to 10 clusters, and 1 to 10 for more, no more once one has not lowered the best so. Each start of
        "k-means++" is recombined with the best before in its search.
    max_iter : int, default=100
        Lloyd steps at most, in each stage that iterates. From 64 clusters and 32 dense rows a cluster on, most are
        epochs of moving averages, which see every row once in small batches and end lower. They are left out with
        ``n_init=1``, a given or random `init`, ``tol=0``, fewer than 5 steps, and where rows are held on disk.
    tol : float, default=1e-4
        Lloyd stops when a step lowers the objective by no more than this share of it. 0: at the fixed point.
    metric : {"euclidean", "cosine", "spherical"}, default="euclidean"
        "cosine": rows are scaled to unit length as they are read; centers are their means. "spherical": the centers
        have unit length too. Each row is assigned to the center at the smallest angle, and `inertia_` is
        ``2 (n - sum of the cosines)``. Spherical k-means needs original rows and assigns them among the original
        features; it is not for streams. A center of zeros, of rows that are all zeros, stays.
    max_cluster_size : int or float, optional
        Rows that a cluster may have at most (their weight, where weights differ); a float: so many times the mean size
        of `n_clusters`. Clusters that are larger are split after the search, until none is: there are more than
        `n_clusters` then, each with a center, so that ``labels_ == predict(X)`` all the same. Every round reads the
        rows twice, and once where they are held in memory. `size_cap_` says what it took. For `fit` only.
    preprocess : list of {"standardize", "robust", "log1p", "total", "unit"}, or mapping of these to columns, optional
        What is done to rows as they are read, in this order, by every method that takes rows; nothing is copied.
        "standardize": mean 0 and standard deviation 1, by all valid rows, in a pass of its own. "robust": median 0 and
        quartiles 1 apart, by a sample of rows, which takes a pass too. "log1p": ``log(1 + x)``. "total": values of a
        row add up to 10,000, for counts. "unit": length 1. Features that are constant, or whose quartiles agree, are
        scaled by 1; every row counts once, whatever it weighs. Rows with values that a step has no use for are
        invalid: see `on_invalid`. A fit on sparse rows scales them and does not shift them, which leaves distances as
        they are and keeps zeros. Later rows are prepared as those of the fit, whatever their kind: dense rows are then
        scaled alone, and sparse rows are made dense, chunk by chunk, where the fit has shifted. `cluster_centers_`,
        `inertia_` and all distances are those of prepared rows; `original_centers` gives centers in the units of the
        data. A mapping has the columns of each step, by name or number, None for all; its order is that of the steps:
        ``{"log1p": ["fare"], "standardize": ["fare", "age"], "weight": {"age": 2.0}}``. The name of a category stands
        for all of its features. "weight" has a positive number for each column: distances count the squared
        differences of the column that many times.
    refine : int or "auto", default="auto"
        Further passes, each an exact Lloyd step on all original rows. "auto": none, unless rows drawn in the last pass
        say that more than 1 % of the objective can be gained; then clusters are looked for on these rows too, and one
        more pass assigns; twice at most, and never where `init` gives the centers or draws them at random. A number
        never looks further: it warns.
    coreset : {"auto", "sensitivity", "lightweight", "uniform"} or None, default="auto"
        What stands for the rows while they are clustered. "uniform": the row sample; "sensitivity" and "lightweight":
        weighted rows, drawn by importance, that also hold small clusters far away; None: all rows, sketched, which
        memory holds, or the disk. "auto": all rows if they fit and either are few or have few features, else
        sensitivity; of more wide dense rows than ten times the sample, and of sparse rows, the row sample, whose means
        are polished in the original space. Where the sketch is found on rows, None and coresets take one more pass;
        "auto" finds "pca" on a few rows read ahead.
    memory_limit : "auto", int, float, str or dict, default="auto"
        Resident memory that the process takes at most: bytes, text like "1 GiB", a share of the machine's or the
        container's memory like 0.5 or "50%"; "auto": 80 % of it. Sizes are chosen to keep it, by it, the data and what
        the process holds beside data, in steps of 64 MiB, which the plan tells as `process_memory`. A dict repeats a
        plan in another process: ``{"limit": "1 GiB", "process_memory": "256 MiB"}``, or text like "1 GiB, process
        256 MiB". What cannot be done within the limit is refused before the first read, and without one also what the
        machine has not free now. A line of text that is too long is refused where it is read, if no plan saw it. Dask
        workers are other processes, and so are those that compile kernels, of up to 320 MiB, for some seconds of the
        first fit after an installation. See `plan`.
    chunk_bytes : int or "auto", default="auto"
        Bytes of a chunk in memory, about. Results are bit-identical for equal values, whatever the executor.
    executor : "auto", int, or dask.distributed.Client, default="auto"
        "auto": the active Dask client if there is one, else threads; one thread in a task of a Dask worker. An int: so
        many threads.
    on_invalid : {"raise", "skip"}, default="raise"
        What becomes of rows with NaN or infinity: an error that names the row, or the label -1.
    on_missing : {"raise", "skip", "mean", "masked"}, default="raise"
        What becomes of NaN, masked values and nulls of tables. "raise": as `on_invalid` says. "skip": rows with NaN get
        the label -1, whatever `on_invalid` says of infinity. "mean": the mean of the feature's values, by all rows, in
        a pass of its own, stands for NaN, before the steps of `preprocess`, in later rows too; for dense rows, and 0
        for a feature without values. "masked": distances and means count the values that are there (k-POD, Chi, Chi
        and Baraniuk, 2016): a row goes to the center that is nearest among the features that it has, and `inertia_`
        is the sum of these squared distances. For dense rows, ``metric="euclidean"``, and without `preprocess`; a row
        without any value is invalid. A feature that no row of a cluster has takes the mean of all rows. With
        ``refine="auto"``, a pass follows, twice at most, if moving centers to the means gains more than 1 %.
    checkpoint : path, optional
        A directory, empty or new, for what was done so far, brought to the disk every few seconds. A fit that was
        killed and is called again with the same data and parameters goes on where it was, and gives the result that it
        would have given. The directory is removed when the fit is complete. An opened
        `streamkm.engine.checkpoint.Checkpoint` is left to its owner.
    progress : bool or "auto", default="auto"
        Bars, on stderr or below the cell of a notebook; "auto": in notebooks, and if stderr is a terminal. True: where
        stderr is no terminal, a line on it for each stage that is done, unless the log takes such lines.
    random_state : int, RandomState or None, default=None
        Seed of the sketch, the sample and the starts.

    Attributes
    ----------
    labels_ : int32 ndarray (n,)
        Cluster of each row; -1 for rows that were skipped. Equal to ``predict(X)``.
    dask_labels_ : int32 dask.array.Array (n,)
        `labels_` in blocks as high as those of the Dask array that was fitted, unknown heights too, to be used with it:
        ``X[kmeans.dask_labels_ == 3]``, ``frame.assign(cluster=kmeans.dask_labels_)``. For Dask input only.
    cluster_centers_ : ndarray (k, d), or (k, m) where `assign_space_` is "sketch"
        The centers that made the labels, rounded to float32 where the data are; `model_` keeps them in float64. Where
        they are assigned or written to, `predict` and the like go by them. Fewer than `n_clusters` if the data have
        fewer distinct rows.
    cluster_means_ : ndarray, same shape
        Exact means of the final clusters.
    counts_ : ndarray (k,)
        Rows of each cluster, or their total weight.
    inertia_ : float
        Exact sum of squared distances of the rows to the model's centers, weighted, in float64, in the space of the
        assignment.
    distortion_ : float or None
        ``(J' + c) / J``: J' the objective of the final clusters in the sketch, J that in the original space, and c what
        the sketch takes off the objective of every clustering alike, as definition 2 of Liu et al. has it: for "pca"
        and "svd" the squared lengths that the projection cuts off, from the mean of all rows or from the origin, for
        other sketches 0. Near 1 if m was large enough, even where a projection cuts off most of J. None where rows
        were assigned in the sketch, and for `PreconditionedSampling`, which keeps no lengths.
    expected_inertia_ : float or None
        What the sample promised for `inertia_`, and
    expected_inertia_error_ : float or None
        the standard error of that; 0 where the sample held all rows and each was looked at. An interval of twice the
        error to both sides is one of 95 %. Both are None for data that can be walked once only, where the memory limit
        leaves no room to draw rows, and where too few of the looked-at rows decide the sum, as in heavy tails: no
        interval would hold there (Cochran's rule, 25 squared skewnesses against the number of rows). The log says so.
    possible_gain_ : float or None
        Share of `inertia_` that one split and merge, or one step of Lloyd's algorithm, could gain: estimated from below
        by rows that the last pass drew by their share of it. 0 at a local optimum, which need not be the best. A
        warning where it is above 1 % and `refine` does not look further.
    size_cap_ : SizeCap or None
        Of a fit with `max_cluster_size`: `rows` that a cluster may have, `largest`, and what was there before clusters
        were split: `n_clusters_before`, `inertia_before`, `largest_before`. `inertia_` is lower, at the price of
        ``len(cluster_centers_) - n_clusters_before`` more clusters.
    feature_deviations_ : float64 ndarray (d,) or None
        Standard deviations of the features, by 2,000 sampled rows; None where rows were assigned in the sketch.
    preparation_ : Preparation or None
        What the steps of `preprocess` have found, or those of the sketch store that was fitted.
    missing_ : Missing or None
        How many values were missing, for "mean" and "masked"; None for others.
    profile_ : Profile or None
        How the rows of each cluster lie about its center, by the last pass: what `summary` says of distances,
        silhouettes and typical rows. None for rows that can be walked once only.
    feature_words_ : WordTable or None
        The words behind hashed features: counted by the pass that counts document frequencies, else in a look at some
        of the documents.
    assign_space_ : str
        "original" or "sketch".
    n_iter_ : int
        Steps of the last stage of Lloyd, with the epochs between them.
    converged_ : bool
        Whether that stage ended by `tol`, or by its schedule behind epochs, and not by `max_iter`.
    history_ : list of dict
        ``{"stage", "iteration", "inertia"}``. Each stage has its own rows and space: "epochs" and "lloyd" the rows that
        are clustered, sketched; "polish" the sampled original rows; "sphere" (centers of unit length) the rows
        clustered last; "refine" and "split" (of clusters above `max_cluster_size`) all original rows.
    stages_ : list of Stage
        Seconds, rows and bytes read of each stage, and the `inertias` of its epochs or steps, as in `history_`; of an
        epoch, the inertia is that of every batch about the centers that it met. "words" is a look at some documents,
        which is no pass.
    n_passes_ : int
        How often the data were read, to count document frequencies too.
    seed_ : int
        `random_state` if that is a number, else what was drawn from it: as `random_state` it gives the same fit again.
    fitted_on_ : dict
        What the rows were: ``name``, ``files``, ``stored_bytes``, ``dtype``, ``sparse``; and ``process_memory``, bytes
        that the process held beside data, as the plan took them.
    n_samples_, n_features_in_, n_components_ : int
        n, d and m.
    sketch_ : Sketch
        The map.
    plan_ : Plan
        What was decided before reading.
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
    ``fit_on="all"``; Laplacian scores "laplacian"; preconditioned sparsification a `PreconditionedSampling`. For
    hashed words (Senuma) rows come from `streamkm.FeatureHashing`, with "identity". `streamkm.sizing` gives the
    components by the name of a theorem.

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
        max_cluster_size: int | float | None = None,
        preprocess: Sequence[str] | Mapping[str, Any] | None = None,
        refine: int | str = "auto",
        coreset: str | None = "auto",
        memory_limit: int | float | str | Mapping[str, Any] = "auto",
        chunk_bytes: int | str = "auto",
        executor: Any = "auto",
        on_invalid: OnInvalid = "raise",
        on_missing: OnMissing = "raise",
        checkpoint: Any = None,
        progress: bool | str = "auto",
        random_state: Any = None,
    ):
        self.n_clusters = n_clusters
        self.sketch = sketch
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.metric = metric
        self.max_cluster_size = max_cluster_size
        self.preprocess = preprocess
        self.refine = refine
        self.coreset = coreset
        self.memory_limit = memory_limit
        self.chunk_bytes = chunk_bytes
        self.executor = executor
        self.on_invalid = on_invalid
        self.on_missing = on_missing
        self.checkpoint = checkpoint
        self.progress = progress
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        labels_to: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X : array-like or sparse matrix (n, d), path or glob, open dataset, Dask array, iterable of chunks, or RowSource
            Whatever `streamkm.open_source` accepts.
        y : ignored
            Present for scikit-learn's conventions.
        sample_weight : array-like (n,) or float, optional
            Weights of the rows, not negative; where all are alike, rows are clustered as without. Text and Dask arrays
            of unknown chunk sizes are read once more for weights that differ: rows must be counted to find theirs.
        labels_to : path, optional
            A Zarr array that is made for the labels, NAME.zarr, where all workers see it: they write it, and no label
            passes this process. `labels_` is that array then, ``labels_[:]`` gathers it; the last pass is begun anew
            by a fit that goes on from a checkpoint. Or NAME.csv or NAME.parquet: a table with distances, as
            `predict_to` writes it, in one more pass. On a cluster ``labels_[:]`` reads them from the table; else
            `labels_` is an array in memory. Whether all workers see and can write the place is checked before rows are
            read.

        Returns
        -------
        self

        Raises
        ------
        InvalidInputError, SourceError
            For data that cannot be read or are wrong; names the place.
        InvalidParameterError
            For a parameter out of range.
        MemoryLimitError
            If the work would not fit in memory, before anything is read.

        Notes
        -----
        Two passes over the data, `refine` more, one for ``fit_on="all"`` of a sketch, and one where a `coreset` of
        rows, or all of them, is sketched by what was found on rows. O(nnz) for the sketch, O(nnz * k) for each
        assignment; memory for n sketched rows, the sample and the centers.
        """
        check_parameters(self)
        source = open_rows(self, X, reset=True)
        stored = store_of(source)
        if stored is not None and stored.info.weighted and sample_weight is None:
            sample_weight = stored.weights()
        weights = check_weights(sample_weight)
        weights.check_rows(source.n_rows, source.name)
        place = table = None
        if labels_to is not None:
            if os.fspath(labels_to).endswith(SUFFIXES):
                table = check_table_place(labels_to, overwrite=False)
            else:
                place = check_labels_place(labels_to)
        if labels_to is not None and not source.replayable:
            raise InvalidInputError(f"{source.name} can be walked once only; leave labels_to out: labels are gathered")
        if self.max_cluster_size is not None and not source.replayable:
            raise InvalidInputError(
                f"{source.name} can be walked once only, and max_cluster_size needs further passes; leave it out, or "
                f"pass a list of chunks, or a function that returns a fresh iterator"
            )
        target = place or table
        if target is not None:
            with open_executor(self.executor, 1) as workers:
                check_seen(workers, target)
        gathers = target is None or not is_on_cluster(self.executor)
        total_weight = float(weights.each.sum()) if len(weights.each) else None
        n_threads, spare_bytes = local_threads(self.executor), 0 if is_given(self.memory_limit) else available_memory()
        with compiling_for(source, n_threads, spare_bytes, Progress(self.progress)):  # the head of text is parsed
            limit = limit_of_run(self, self.checkpoint)
            plan = self.plan_for(source, total_weight=total_weight, gathers_labels=gathers, memory_limit=limit)
        with checkpoint_writer(self, source, plan, weights.each) as writer:
            source, spare_bytes = cached_as_planned(self, source, plan), plan.limit_bytes - plan.peak_bytes
            progress = Progress(self.progress)
            with compiling_for(rows_to_cluster(self, source), plan.n_threads, spare_bytes, progress):
                fit_rows(self, source, plan, weights, writer, progress, place if gathers else target)
            if table is not None:
                written = write_label_table(self, source, table)
                self.stages_ += [written.stage] if written.stage else []
                self.n_passes_ += 1
                if not gathers:
                    self.labels_ = TableLabels(table, written.n_rows, written.n_skipped)
        return self

    def incremental(self, *, half_life: float | None = None, first_row: int = 0) -> IncrementalKMeans:
        """Make an estimator that takes more rows from here on; the rows of the fit are not read again.

        A fit keeps no original rows. So the exact means of its clusters stand for them, each by the weight of its
        cluster: sums and counts are carried exactly, distances within the clusters are not.

        Parameters
        ----------
        half_life : float, optional
            Rows after which a row counts half.
        first_row : int, default=0
            Number of the first row, for streams that are merged later.

        Returns
        -------
        IncrementalKMeans
            With the parameters of this estimator that it has, and what `preprocess` has found. Clusters keep their
            numbers as far as they stay where they are.

        Raises
        ------
        NotFittedError
        InvalidInputError
            For clusters that are known in the sketch alone, and after `load`, which knows no means.
        InvalidParameterError
            For fits with ``metric="spherical"`` or `max_cluster_size`, and parameters out of range.
        """
        check_is_fitted(self, "model_")
        return incremental_from(self, half_life=half_life, first_row=first_row)

    def plan(self, X: Any, n_rows: int | None = None, *, gathers_labels: bool = True) -> Plan:
        """Say what `fit` would do with X, or with `n_rows` rows of its kind: sketch, passes, bytes, memory.

        Reads no rows.

        Parameters
        ----------
        X : as for `fit`
        n_rows : int, optional
            In place of those that X has.
        gathers_labels : bool, default=True
            Whether this process gets the labels of all rows: not with `labels_to` on a cluster.

        Raises
        ------
        InvalidInputError, InvalidParameterError, SourceError, MemoryLimitError
            As `fit` would before its first read.
        """
        check_parameters(self)
        with under_limit(self.memory_limit):  # the head of text is parsed
            source = open_rows(self, X, reset=None)
            planned = source if n_rows is None else HypotheticalSource(source, n_rows)
            return self.plan_for(planned, gathers_labels=gathers_labels)

    def estimate_seconds(self, X: Any, n_rows: int | None = None) -> float:
        """Say how long `fit` may take with X, or `n_rows` rows of its kind, about, after reading a few chunks of X.

        Raises
        ------
        InvalidInputError, InvalidParameterError, SourceError, MemoryLimitError
            As `plan`, and for rows that can only be read in order.
        """
        with under_limit(self.memory_limit):
            source = open_rows(self, X, reset=None)
            plan = self.plan_for(source if n_rows is None else HypotheticalSource(source, n_rows))
            settings = settings_of(self, drawn_seed(self.random_state))
            return estimate_seconds(rough_reader(self, source, plan), plan, settings, local_threads(self.executor))

    def forecast(self, X: Any, cluster: Cluster, n_rows: int | None = None) -> Forecast:
        """Say what `fit` would take on a cluster, on more rows of the kind of X's, after reading a few chunks of X.

        Parameters
        ----------
        X : path or glob, open dataset or ChunkedSource
            Which workers can read; a sample of the data is enough.
        cluster : Cluster
            Of `streamkm.planning.forecast`; the cost model is written down in `streamkm.planning.forecast.cost_model`.
        n_rows : int, optional
            In place of those that X has.

        Returns
        -------
        Forecast
            Time, tasks, bytes and memory, stage by stage.

        Raises
        ------
        InvalidInputError, InvalidParameterError, SourceError, MemoryLimitError
            As `estimate_seconds`, but for memory: other machines are planned, and what the client needs is said. For
            rows that only this process has.
        """
        check_parameters(self)
        source = open_rows(self, X, reset=None)
        if source.in_process:
            raise InvalidInputError(f"{source.name} lies in this process, where workers cannot read; give a file")
        planned = source if n_rows is None else HypotheticalSource(source, n_rows)
        # as a client plans that has the labels written where rows are read: those that it gathers come on top
        plan = self.plan_for(planned, n_threads=1, gathers_labels=False, refuses=False)
        rates = measure(rough_reader(self, source, plan), plan, settings_of(self, drawn_seed(self.random_state)))
        return forecast(plan, rates, cluster)

    def plan_for(
        self,
        source: RowSource,
        *,
        total_weight: float | None = None,
        n_threads: int | None = None,
        gathers_labels: bool = True,
        refuses: bool = True,
        memory_limit: Any = None,
    ) -> Plan:
        """As `plan`, for a source that is open, rows with weights of this sum, and so many threads of this process.

        Below another `memory_limit` if one is given; see `checkpoints.limit_of_run`.
        """
        return plan_rows(
            self,
            source,
            total_weight=total_weight,
            n_threads=n_threads,
            gathers_labels=gathers_labels,
            refuses=refuses,
            memory_limit=memory_limit,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        sketch = full_options("sketch", self.sketch).sketch
        asked: Any = sketch if is_sketch(sketch) else sketch_class(str(sketch))
        tags.input_tags.sparse = asked.takes_sparse
        return tags

    def __getattr__(self, name: str) -> Any:
        if name in ("partial_fit", "merge"):
            raise AttributeError(f"StreamKMeans has no {name}; IncrementalKMeans has: incremental() makes it of a fit")
        return object.__getattribute__(self, name)
