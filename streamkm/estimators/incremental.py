"""`IncrementalKMeans`: clusters of rows that keep coming, each read once, in constant memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from streamkm.cluster.model import Metric, Model
from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.cluster.tracking.tracked import TrackedClusters, origins_of
from streamkm.cluster.tracking.transition import Event, UpdateRows
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.estimators.base_estimator import set_parameters
from streamkm.estimators.describe import DescribedKMeans
from streamkm.estimators.input_rows import described, open_weighted, preparation_for, read_invalid
from streamkm.estimators.labelling import (
    Labelling,
    known_labels,
    label_places,
    rounded_centers,
    set_labels,
    write_label_table,
)
from streamkm.estimators.updating import drift_of, observe_rows, relabel_rows, update_rows
from streamkm.estimators.validation import (
    Weights,
    centers_dtype,
    check_stream_parameters,
    cluster_range,
    drawn_seed,
    parameters_of,
    searching,
)
from streamkm.fitting.streams.coreset_clusters import StreamSettings, cluster_coreset
from streamkm.fitting.streams.stream import Stream, stream_size
from streamkm.fitting.streams.waiting_rows import feed
from streamkm.metrics.drift_report import Drift, Update
from streamkm.passes.labels import check_labels_place, count_skipped, open_labels
from streamkm.passes.reader import Invalid, RowReader
from streamkm.passes.sizes import UpdateSizes
from streamkm.preparation import Preparation
from streamkm.preparation.preparation import FILL
from streamkm.reports.report import check_matplotlib
from streamkm.sketches.base_sketch import IdentitySketch
from streamkm.sources.chunks import decoded_row_bytes
from streamkm.sources.prepared import PreparedRows
from streamkm.sources.row_source import RowSource

CHUNK_BYTES = 16 << 20
_OF_CLUSTERS = ("cluster_centers_", "cluster_means_", "cluster_ids_", "counts_", "changed_share_", "model_")
_OF_SEARCH = ("inertia_", "inertia_error_", "n_iter_", "converged_", "assign_space_", "sketch_")
_KEPT = ("stream_", "n_features_in_", "feature_names_in_", "fitted_on_", "tfidf_", "seed_", "preparation_")


class IncrementalKMeans(DescribedKMeans):
    """K-means for rows that keep coming, in constant memory, with centers at any moment.

    The estimator keeps a weighted coreset of the rows. The first call of `predict`, `cluster_centers_` and the like
    finds centers in it. The result does not depend on the size of chunks, and sorted rows do not mislead it.

    Parameters
    ----------
    n_clusters : int or (int, int), default=8
        k. A pair is the fewest and the most: `update` then splits a cluster where that lowers the objective by a share
        of `tol` and its halves lie apart, and joins two where that costs less than half as much.
    init, n_init, max_iter, tol
        How centers are found in the coreset; as for `StreamKMeans`.
    metric : {"euclidean", "cosine"}, default="euclidean"
        As for `StreamKMeans`.
    preprocess : list of {"log1p", "total", "unit"}, or mapping of these to columns, optional
        Steps that prepare rows, as for `StreamKMeans`. Others need statistics of all rows: fit some rows with
        "standardize" or "robust", and continue with `StreamKMeans.incremental`.
    half_life : float, optional
        Number of later rows after which a row counts half, for streams that drift. None: all rows count alike.
    first_row : int, default=0
        Number of the first row, for streams that are merged later; see `merge`.
    memory_limit : "auto", int, float, str or dict, default="auto"
        Limit of methods that read rows, such as `predict`; as for `StreamKMeans`.
    chunk_bytes : int or "auto", default="auto"
        Approximate bytes of a chunk in memory; "auto": 16 MiB. The result does not depend on it.
    executor : "auto", int, or dask.distributed.Client, default="auto"
        As for `StreamKMeans`; but this process takes the rows of a stream, and its threads find centers.
    invalid : {"raise", "skip", "mean"}, default="raise"
        As for `StreamKMeans`. "mean" needs the means of a fit: continue it with `StreamKMeans.incremental`.
    progress : bool or "auto", default="auto"
        Bars of `predict` and the like.
    random_state : int, RandomState or None, default=None
        Seed of the coreset and the starts.

    Attributes
    ----------
    cluster_centers_ : ndarray (k, d)
        Fewer than `n_clusters` while there are fewer distinct rows. float32 while all rows are, unless rounding would
        move the objective by more than 1e-6 of it. `predict` uses assigned or changed centers until more rows come.
    counts_ : ndarray (k,)
        Weight of each cluster, by the coreset, as of the newest row with a half-life; their sum is exact. Rows of
        clusters that died are in none, until `relabel`.
    inertia_, inertia_error_ : float
        Weighted sum of squared distances of all rows to their centers, estimated by the coreset until `update`, and its
        standard error: 0 where exact, as after updates without splits; NaN before the first update.
    cluster_ids_ : int64 ndarray (k,)
        Ids of the clusters, ascending, which `labels_`, `predict` and tables of labels hold. An id is given once, and
        stays with its cluster from update to update.
    cluster_means_ : float64 ndarray (k, d)
        After an update: exact means of all rows that were counted in each cluster.
    changed_share_ : float
        After an update: estimated share of rows, by those kept, whose nearest center is a new one. 0 after `relabel`.
    lineage_ : list of Event
        Births, deaths, splits and joins of clusters so far.
    labels_ : int32 ndarray (n,)
        Labels of the rows of the last call, found on first access. These rows are kept until then, or until the next
        call, and are not pickled. Rows of an iterator are not kept, and have no labels.
    n_samples_seen_, n_steps_ : int
        Valid rows so far, with those of the fit that the stream continues; calls of `partial_fit` that took them.
    stream_ : Stream
        The state, of `stream_.n_bytes`; `stream_.coreset()` are weighted rows that stand for all.
    n_iter_, converged_ : int, bool
        Steps of Lloyd's algorithm on the coreset, and whether they ended by `tol`.
    seed_, preparation_ : int, Preparation or None
        `random_state` if that is a number, else what was drawn from it; what `preprocess` does to rows.
    fitted_on_ : dict, and `tfidf_` : TfIdf or None
        Facts and document frequencies of the first rows, or of the fit; as for `StreamKMeans`.

    See Also
    --------
    StreamKMeans : Two passes over rows that can be read again, with exact results.
    sklearn.cluster.MiniBatchKMeans : Moves its centers with each batch, so that sorted rows mislead it.

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm import IncrementalKMeans
    >>> kmeans = IncrementalKMeans(n_clusters=2, random_state=0)
    >>> for day in ([[1.0, 2.0], [1.0, 4.0], [1.0, 0.0]], [[10.0, 2.0], [10.0, 4.0], [10.0, 0.0]]):
    ...     kmeans = kmeans.partial_fit(np.array(day))
    >>> sorted(kmeans.cluster_centers_.tolist())
    [[1.0, 2.0], [10.0, 2.0]]
    """

    _last_rows: RowSource | None = None

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        init: str | ArrayLike | Callable[..., Any] = "k-means++",
        n_init: int | str = "auto",
        max_iter: int = 100,
        tol: float = 1e-4,
        metric: Metric = "euclidean",
        preprocess: Sequence[str] | Mapping[str, Any] | None = None,
        half_life: float | None = None,
        first_row: int = 0,
        memory_limit: int | float | str | Mapping[str, Any] = "auto",
        chunk_bytes: int | str = "auto",
        executor: Any = "auto",
        invalid: Invalid = "raise",
        progress: bool | str = "auto",
        random_state: Any = None,
    ):
        set_parameters(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Forget all earlier rows, take the rows of X, and label them by one more pass.

        Parameters
        ----------
        X : as for `StreamKMeans.fit`
            An iterator is read once, and gets no labels.
        y, sample_weight : as for `StreamKMeans.fit`

        Raises
        ------
        InvalidInputError, InvalidParameterError, SourceError
            As `partial_fit`.
        """
        check_stream_parameters(self)
        before = {name: self.__dict__.pop(name) for name in list(vars(self)) if name.endswith("_")}
        try:
            opened = self._opened(X, sample_weight)
        except BaseException:  # an interruption, too: the state of before stays
            self.__dict__.update(before)
            raise
        self._take_rows(*opened)
        if self._last_rows is not None:
            _ = self.labels_
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Take more rows; one pass over them.

        Clusters of a fit that the stream began with keep their numbers as far as they stay where they are.

        Parameters
        ----------
        X : as for `StreamKMeans.fit`
            One row or more; the first call may have fewer rows than there are clusters. Later tables, files and AnnData
            objects are read like the first: columns by name, with its categories, dates and genes.
        y, sample_weight : as for `StreamKMeans.fit`

        Raises
        ------
        InvalidInputError, SourceError, InvalidParameterError
            For parameters out of range, and rows that are unreadable, wrong, or unlike those before; those in front of
            them have been taken.
        """
        check_stream_parameters(self)
        self._take_rows(*self._opened(X, sample_weight))
        return self

    def update(
        self,
        X: Any,
        y: Any = None,
        sample_weight: ArrayLike | None = None,
        *,
        labels_to: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        relabel_above: float = 0.01,
    ) -> Update:
        """Take more rows, follow the clusters, and tell what changed; two passes over the new rows alone.

        The first pass draws rows about the present centers. Then clusters move, are split where that lowers the
        objective by more than the cheapest join costs, and keep their ids. The second pass labels the new rows and
        gathers exact sums.

        Parameters
        ----------
        X : as for `partial_fit`
            Data that can be read twice.
        y, sample_weight : as for `StreamKMeans.fit`
        labels_to : path, optional
            NAME.zarr: where workers write the ids of the new rows; `labels_` then reads them. NAME.csv or NAME.parquet:
            a table, as `predict_to` writes it; one more pass.
        checkpoint : path, optional
            Directory that keeps what an interrupted update has done; the same call goes on from there.
        relabel_above : float, default=0.01
            The update says that old rows should be labelled anew where `changed_share_` is above it.

        Returns
        -------
        Update
            What the new rows say of the clusters, and what became of these. It prints as a table.

        Raises
        ------
        InvalidInputError, SourceError, InvalidParameterError
            As `partial_fit`; but after an error, the estimator is as it was, except in its first update.

        Notes
        -----
        Far rows lie beyond 10 times the largest distance within which 99 % of the rows of a cluster lie. They get the
        label of the nearest center, but centers and `inertia_` leave them out, and `Update.drift` tells their number
        and a feature to look at. They count if they lie close together and are at least 0.2 % of the new rows and 8, as
        a new group, or if all far rows are a tenth of the new rows.

        Old rows stay in their clusters: their sums are kept, so `inertia_` of all rows is exact without reading them.
        After a split, the part of the old rows that went is an estimate, and `inertia_error_` its standard error. O(nnz
        k) time for the new rows, and as much for each of some steps on the coreset.
        """
        check_stream_parameters(self)
        place, table = label_places(labels_to)
        source, rows, weights = self._opened(X, sample_weight, ids=table is not None)
        if not source.access.replayable:
            remedy = "pass a list of chunks or a function that returns a fresh iterator, or call partial_fit"
            raise InvalidInputError(f"{source.name} can be read only once, and update reads rows twice; {remedy}")
        stream = self._stream_for(rows)
        labelling = self._labelling(source, rows, stream, weights, follows=True)
        begun = time.perf_counter()
        after, labels, told = update_rows(labelling, stream, self._settings(stream), place, checkpoint)
        self._follow(after, vars(self).get("n_steps_", 0) + 1)
        set_labels(self, labels if place is None else open_labels(place))
        if table is not None:
            write_label_table(self, source, table)
        fewest, most = cluster_range(self.n_clusters)
        return Update(
            **told,
            inertia=self.inertia_,
            inertia_error=self.inertia_error_,
            changed_share=self.changed_share_,
            relabel=self.changed_share_ > relabel_above,
            seconds=time.perf_counter() - begun,
            fixed_k=most if fewest == most else 0,
        )

    def drift(self, X: Any, sample_weight: ArrayLike | None = None) -> Drift:
        """Compare rows with those that the clusters were found on; one pass, and nothing is changed.

        The `Drift` has a verdict, "stable", "shifted" or "fit again", and figures for all rows and each cluster.

        Parameters
        ----------
        X : as for `partial_fit`
        sample_weight : array-like (n,) or float, optional

        Raises
        ------
        InvalidInputError
            Before the first update, and for rows unlike those before.
        """
        check_is_fitted(self, "stream_")
        source, rows, weights = self._opened(X, sample_weight)
        followed = self.stream_.followed
        if followed is None:
            raise InvalidInputError("drift compares rows with those that an update has counted; call update first")
        labelling = self._labelling(source, rows, self.stream_, weights)
        clusters = followed.clusters.widened(labelling.model.n_features)
        with labelling.context() as context:
            return drift_of(self, self.stream_, observe_rows(context, labelling, clusters))

    def relabel(
        self,
        X: Any,
        sample_weight: ArrayLike | None = None,
        *,
        labels_to: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Any:
        """Label all rows counted so far anew, in one pass; what is told of them is exact again.

        Rows far from all clusters, as `update` tells them, are labelled and not counted.

        Parameters
        ----------
        X : as for `partial_fit`
            All rows so far, in the order in which they came.
        sample_weight : array-like (n,) or float, optional
            As they had.
        labels_to, checkpoint : path, optional
            As for `update`; labels only as NAME.zarr.

        Returns
        -------
        int32 ndarray (n,), or zarr.Array

        Raises
        ------
        InvalidInputError
            Before the first update, after rows that `partial_fit` took, and for another number of rows.
        """
        check_is_fitted(self, "stream_")
        place = None if labels_to is None else check_labels_place(labels_to)
        (source, rows, weights), stream = self._opened(X, sample_weight), self.stream_
        labelling = self._labelling(source, rows, stream, weights)
        followed, labels = relabel_rows(labelling, stream, place, checkpoint)
        found: Any = labels if place is None else open_labels(place)
        n_rows = len(found) - count_skipped(found)
        if n_rows != stream.n_rows:
            raise InvalidInputError(f"{source.name} has {n_rows:,} valid rows; {stream.n_rows:,} were counted so far")
        self._follow(stream.updated(followed, stream.n_rows, stream.next_row), self.n_steps_)
        self.labels_ = found
        return found

    @property
    def updates_(self) -> list[UpdateRows]:
        """Rows of each update by cluster, weighted as of its newest row, in order."""
        return list(getattr(self.stream_.followed, "updates", ()))

    @property
    def lineage_(self) -> list[Event]:
        """Births, deaths, splits and joins of clusters, in order."""
        return list(getattr(self.stream_.followed, "events", ()))

    def plot_updates(self) -> Any:
        """Draw the shares of clusters in the rows of each update, with births, deaths, splits and joins.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks show it; ``figure.savefig("updates.png")`` writes it. Only the largest clusters have own bands.

        Raises
        ------
        NotFittedError, InvalidInputError, MissingDependencyError
            Before the first rows; before the second update; without matplotlib.
        """
        check_matplotlib()
        from streamkm.reports.figures import plot_river

        check_is_fitted(self, "stream_")
        return plot_river(self.updates_, self.lineage_)

    def merge(self, other: Self) -> Self:
        """Take the rows that another estimator has taken elsewhere, by `partial_fit` or `update`.

        Both need the same parameters and an integer `random_state`. Give the second `first_row`, so that its rows are
        numbered behind those of the first: without updates, the result is then that of one stream of all rows. Each
        estimator brings all rows that it has counted: those of a model that both were loaded from count twice.

        Clusters that both have from one saved model, or one fit, are one: their rows add up exactly, and the center is
        that of this estimator. Other clusters of the second get new ids, which "renamed" in `lineage_` tells. If only
        one has called `update`, the rows of the other wait for the next update.

        Raises
        ------
        NotFittedError, InvalidInputError, InvalidParameterError
            If either has no rows, rows differ in width or kind, or coreset parameters, `metric` or `half_life` differ.
        """
        check_is_fitted(self, "stream_")
        check_is_fitted(other, "stream_")
        for name in ("metric", "half_life", "n_features_in_"):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                raise InvalidParameterError(f"{name}={there!r} of the other, {here!r} here; needed: the same")
        self._follow(self.stream_.merged(other.stream_), self.n_steps_ + other.n_steps_)
        return self

    def _opened(self, X: Any, sample_weight: Any, *, ids: bool = False) -> tuple[RowSource, RowSource, Weights]:
        """Open X like the rows before, which the first rows define; return it as read, as prepared, and the weights."""
        first = "stream_" not in vars(self)
        source, weights = open_weighted(self, X, sample_weight, reset=first, ids=ids)
        if first:
            self.seed_ = drawn_seed(self.random_state)
            self.preparation_ = vars(self).get("preparation_") or self._preparation(source)  # a fit may have found it
            self.fitted_on_, self.tfidf_ = described(source), source.tfidf
        return source, source if self.preparation_ is None else PreparedRows(source, self.preparation_), weights

    def _take_rows(self, source: RowSource, rows: RowSource, weights: Weights) -> None:
        """Take rows, as they are read and prepared, into the stream."""
        stream = self._stream_for(rows)
        size = CHUNK_BYTES if self.chunk_bytes == "auto" else int(self.chunk_bytes)
        reader = RowReader(rows, size, self.metric, read_invalid(self))
        n_rows = int(feed(stream.add, reader, weights.each, weights.factor).sum())
        weights.check_rows(n_rows, source.name)
        stream.dtype = np.promote_types(stream.dtype, centers_dtype(rows.dtype))
        self._follow(stream, vars(self).get("n_steps_", 0) + 1)
        self._last_rows = source if source.access.replayable else None

    def _preparation(self, source: RowSource) -> Preparation | None:
        """The steps of `preprocess`, which need no look at all rows."""
        wanted = preparation_for(self, source)
        for step in () if wanted is None else wanted.finding:
            what = 'invalid="mean"' if step == FILL else f"the step {step!r}"
            remedy = "fit StreamKMeans on some rows and go on by its incremental(), which keeps what was found"
            raise InvalidInputError(f"{what} must see all rows before the first; {remedy}")
        return wanted

    def _stream_for(self, rows: RowSource) -> Stream:
        """The stream that takes prepared rows; a stream that only has an origin is made anew for rows of their kind."""
        stream = vars(self).get("stream_")
        if stream is not None and not stream.is_origin:
            return stream
        made = self._new_stream(rows.dtype, None if rows.is_sparse else rows.n_features)
        if stream is not None:
            made.begin(stream.followed.clusters, stream.n_rows, dtype=rows.dtype, sparse=rows.is_sparse)
            made.dtype = stream.dtype
        return made

    def _new_stream(self, dtype: Any, width: int | None) -> Stream:
        """An empty stream for dense rows of a width, or for sparse ones."""
        row_bytes = 1024 if width is None else np.result_type(dtype, np.float32).itemsize * width
        seed = int(check_random_state(self.seed_).randint(0, 2**63 - 1, dtype=np.int64))
        most = cluster_range(self.n_clusters)[1]
        half_life = np.inf if self.half_life is None else float(self.half_life)
        return Stream(CoresetRule(stream_size(most, row_bytes), most, seed, half_life=half_life), int(self.first_row))

    def _follow(self, stream: Stream, n_steps: int) -> None:
        """Set attributes that are known at once; forget those found before."""
        for name in [name for name in vars(self) if name.endswith("_") and name not in _KEPT]:
            delattr(self, name)
        self._narrow, self._label_blocks, self._last_rows, self._held_labels = {}, None, None, None
        self.stream_, self.n_samples_seen_, self.n_steps_ = stream, stream.n_rows, n_steps
        self.n_features_in_ = stream.n_features

    def _settings(self, stream: Stream) -> StreamSettings:
        """Settings of updates, and of the first search for clusters in a coreset."""
        fewest, most = cluster_range(self.n_clusters)
        own = {"n_clusters": fewest, "most": most, "seeds": np.random.SeedSequence(stream.rule.seed)}
        return StreamSettings(**searching(parameters_of(self)) | own)

    def _labelling(
        self, source: RowSource, rows: RowSource, stream: Stream, weights: Weights, *, follows: bool = False
    ) -> Labelling:
        """Passes over prepared `rows` of `source`, within the memory limit."""
        most, width = cluster_range(self.n_clusters)[1], max(stream.n_features, rows.n_features or 1)
        if stream.followed is not None:
            most = max(most, stream.followed.clusters.n_clusters)
        row_bytes = decoded_row_bytes(rows) if rows.is_sparse else np.result_type(rows.dtype, "f4").itemsize * width
        coreset_bytes = stream.rule.size * row_bytes if follows else 0
        sizes = UpdateSizes(n_clusters=most, n_features=width, coreset_bytes=coreset_bytes, held_bytes=stream.n_bytes)
        centers = np.broadcast_to(0.0, (most, width))  # takes no memory; each pass has those that it needs
        model = Model(centers, width, self.metric, "original", IdentitySketch(width), preparation=self.preparation_)
        return Labelling(self, source, model=model, update=sizes, weights=weights)

    def _find_clusters(self) -> dict[str, Any]:
        """Find centers in the coreset, and set all attributes that follow from them."""
        stream, settings, width = self.stream_, self._settings(self.stream_), self.stream_.n_features
        clusters: Any
        if stream.followed is not None:
            clusters = stream.known_clusters(settings, self.executor)
            counts, means, ids, error = clusters.counts, clusters.means, clusters.ids, clusters.error
            found = {"changed_share_": stream.followed.changed_share(), "cluster_means_": means}
        else:
            clusters, counts = cluster_coreset(stream.coreset(), settings, self.executor)
            means, ids, error = clusters.centers, np.arange(len(clusters.centers)), np.nan
            found = {"n_iter_": clusters.n_iter, "converged_": clusters.converged}
        centers, inertia, steps = clusters.centers, clusters.inertia, self.preparation_
        model = Model(centers, width, self.metric, "original", IdentitySketch(width), preparation=steps, ids=ids)
        rounded = rounded_centers(centers, counts, inertia, means, stream.dtype)
        found |= {"cluster_centers_": rounded, "cluster_ids_": ids, "counts_": counts, "inertia_": inertia}
        return found | {"inertia_error_": error, "model_": model, "assign_space_": model.space, "sketch_": model.sketch}

    def __getattr__(self, name: str) -> Any:
        """Find centers in the stream, and labels of the last rows, when they are first asked for."""
        if name == "labels_" and self._last_rows is not None:
            self.labels_, self._last_rows = self.predict(self._last_rows), None
        elif name in (*_OF_CLUSTERS, *_OF_SEARCH) and "stream_" in vars(self):
            for found, value in self._find_clusters().items():
                if found not in vars(self):  # centers may have been assigned
                    setattr(self, found, value)
        return object.__getattribute__(self, name)


_GO_ON = ("preparation_", "feature_names_in_", "fitted_on_", "tfidf_")
# mean distances of rows to their center within which nearly all lie, for clusters of a fit, which keeps no rows
REACH_OF_A_FIT = 2.0


def unfitted_incremental(fit: Any, *, half_life: float | None, first_row: int = 0) -> IncrementalKMeans:
    """Give a new estimator the parameters of a `StreamKMeans`, fitted or not; refuse those that streams do not take."""
    shared = IncrementalKMeans().get_params(deep=False)
    options = {name: value for name, value in vars(parameters_of(fit)).items() if name in shared}
    made = IncrementalKMeans(**options, half_life=half_life, first_row=first_row)
    check_stream_parameters(made)
    return made


def incremental_from(fitted: Any, *, half_life: float | None, first_row: int) -> IncrementalKMeans:
    """Continue a fitted `StreamKMeans`; see `StreamKMeans.incremental`."""
    if fitted.assign_space_ != "original" or not hasattr(fitted, "cluster_means_"):
        raise InvalidInputError(
            f"this {type(fitted).__name__} was loaded, or knows its clusters in the space of the sketch alone, and a "
            'stream needs the means of its clusters; call fit, with SketchOptions(assign_space="original"), or '
            "partial_fit of a new IncrementalKMeans"
        )
    made, known = unfitted_incremental(fitted, half_life=half_life, first_row=first_row), vars(fitted)
    made.seed_ = drawn_seed(made.random_state)
    made.__dict__.update({name: known[name] for name in _GO_ON if name in known})
    means, counts = fitted.cluster_means_, np.asarray(fitted.counts_, np.float64)
    n_rows = fitted.n_samples_ - count_skipped(known_labels(fitted))
    centers = fitted.model_.wide_centers()
    moved = means - centers
    distances, reach = _distances(fitted, counts)
    clusters = TrackedClusters(
        ids=np.arange(len(counts)),
        centers=centers,
        means=means,
        counts=counts,
        distances=distances,
        reach=reach,
        within=max(0.0, fitted.inertia_ - float(counts @ np.einsum("ij,ij->i", moved, moved))),
        variance=0.0,
        unsearched=0.0,
        origins=origins_of(centers),
        n_updates=1,
    )
    dtype, sparse = np.dtype(fitted.fitted_on_["dtype"]), fitted.fitted_on_["sparse"]
    stream = made._new_stream(dtype, None if sparse else means.shape[1])
    stream.begin(clusters, n_rows, dtype=dtype, sparse=sparse)
    stream.dtype = centers_dtype(dtype)
    made._follow(stream, 0)
    return made


def _distances(fitted: Any, counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums of distances of rows to their centers (k,), and a bound for nearly all distances in each cluster (k,)."""
    profile = fitted.profile_
    if profile is None:  # of rows that can be read only once
        return np.zeros(len(counts)), np.zeros(len(counts))
    sums: NDArray[np.float64] = profile.sums[:, 0]
    typical = np.divide(sums, counts, out=np.zeros(len(counts)), where=counts > 0)
    farthest = np.sqrt(np.abs(profile.far_d2[:, -1]))  # of as many rows as are kept; infinite where there are fewer
    return sums, np.minimum(REACH_OF_A_FIT * typical, farthest)
