"""Estimators for endless streams: `partial_fit` and `merge`, as a part that `StreamKMeans` inherits.

The state is a `stream.Stream`; what is fitted follows from it when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from streamkm.cluster.model import Model
from streamkm.cluster.sampling.coreset import CoresetRule
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.estimators.validation import (
    centers_dtype,
    check_parameters,
    check_weights,
    drawn_seed,
    given_start,
    parameters_of,
)
from streamkm.fitting.streams.coreset_centers import StreamSettings
from streamkm.fitting.streams.feed import feed
from streamkm.fitting.streams.stream import Stream, stream_size
from streamkm.passes.labels import count_skipped
from streamkm.passes.reader import RowReader
from streamkm.preparation import STEPS, Preparation, check_steps
from streamkm.preparation.preparation import FOUND
from streamkm.sketches import IdentitySketch, Sketch
from streamkm.sources.base import RowSource
from streamkm.sources.prepared import prepared

CHUNK_BYTES = 16 << 20
LAZY = ("cluster_centers_", "counts_", "inertia_", "n_iter_", "converged_", "model_", "assign_space_", "sketch_")
_OF_INPUT = ("n_features_in_", "feature_names_in_", "seed_", "preparation_")


class Incremental:
    """Adds `partial_fit` and `merge` to an estimator of clusters."""

    stream_: Stream
    n_samples_seen_: int
    seed_: int
    spherical: bool
    max_cluster_size: int | float | None
    sketch_: Sketch
    preparation_: Preparation | None
    n_steps_: int
    labels_: Any
    cluster_means_: NDArray[np.float64]
    _narrow: Mapping[str, NDArray[Any]]
    _last_rows: RowSource | None
    _label_blocks: tuple[tuple[int, ...], bool] | None

    def partial_fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Take more rows of a stream; memory stays flat, however many there are.

        A weighted coreset of the rows is kept. Centers are found in it when they are first asked for: `predict`,
        `cluster_centers_`, `inertia_` (an estimate, as `counts_`) and the like. After a `fit`, its clusters are where
        the stream begins: their means, each by its weight, stand for the rows of the fit, and clusters keep their
        numbers as far as they stay where they are.

        Parameters
        ----------
        X : as for `fit`
            From 1 row up. The first may have fewer rows than there are clusters.
        y : ignored
        sample_weight : array-like (n,) or float, optional

        Returns
        -------
        self
            `n_samples_seen_` says how many valid rows were taken in all, those of a fit included, and `n_steps_` how
            many calls took them. `labels_` are those of the rows of the last call, found when they are first asked for:
            the rows are kept until then, or until the next call, but not pickled, and those of an iterator are not.

        Raises
        ------
        InvalidInputError, SourceError
            For rows that cannot be read, are wrong, or unlike those before; those in front of them have been taken.
            After a fit whose clusters are known in the sketch alone, and after `load` of a fit, which keeps no means.
        """
        check_parameters(self)
        for name in ("spherical", "max_cluster_size"):
            if getattr(self, name):
                raise InvalidParameterError(
                    f"{name}={getattr(self, name)} is for fit: partial_fit keeps n_clusters means of rows; leave it out"
                )
        streaming, fitted = "stream_" in vars(self), "model_" in vars(self)
        self.preparation_ = self._preparation()
        source, weights = self._open(X, reset=not (streaming or fitted)), check_weights(sample_weight)
        rows = source if self.preparation_ is None else prepared(source, self.preparation_)
        stream = self.stream_ if streaming else self._new_stream(rows)
        if fitted and not streaming:
            self._begin(stream, rows)
        size = CHUNK_BYTES if self.chunk_bytes == "auto" else int(self.chunk_bytes)
        weights.check_rows(source.n_rows, source.name)
        n_rows = feed(stream, RowReader(rows, size, self.metric, self.on_invalid), weights.each, weights.factor)
        weights.check_rows(n_rows, source.name)
        stream.dtype = np.promote_types(stream.dtype, centers_dtype(rows.dtype))
        n_steps = vars(self).get("n_steps_", 0) + 1
        self._follow(stream)
        self.n_steps_, self._last_rows = n_steps, source if source.replayable else None
        return self

    def _preparation(self) -> Preparation | None:
        """How rows of a stream are prepared: as the fit before found, or by steps that need no look at all rows."""
        known: Preparation | None = vars(self).get("preparation_")
        steps = check_steps(parameters_of(self).steps)
        if known is not None and known.steps == steps:
            return known
        preparation = Preparation(steps)
        for step in steps:
            if step in FOUND:
                raise InvalidInputError(
                    f"the step {step!r} must see all rows before the first is used, and a stream does not end; call "
                    "fit on some rows first, and what it finds is kept, or take steps that look at one row: "
                    f"{', '.join(step for step in STEPS if step not in FOUND)}"
                )
        return preparation if steps else None

    def merge(self, other: Self) -> Self:
        """Take the rows that another estimator has taken, by `partial_fit`, elsewhere.

        Both need the same parameters and an integer `random_state`. Give the second `first_row`, so that its rows are
        numbered behind those of the first: the result is then that of one stream of all rows.

        Raises
        ------
        NotFittedError
            If either has taken no rows.
        InvalidParameterError
            If they differ in what decides about the coreset.
        """
        check_is_fitted(self, "stream_")
        check_is_fitted(other, "stream_")
        if self.stream_.n_features != other.stream_.n_features:
            raise InvalidInputError(
                f"the other has rows of {other.stream_.n_features:,} features, this one of {self.stream_.n_features:,}"
            )
        n_steps = self.n_steps_ + other.n_steps_
        self._follow(self.stream_.merged(other.stream_))
        self.n_steps_, self._last_rows = n_steps, None
        return self

    def _begin(self, stream: Stream, rows: RowSource) -> None:
        """Let a stream of prepared rows begin with the clusters of the fit that this estimator holds."""
        known = vars(self)
        if not hasattr(self, "cluster_means_"):
            raise InvalidInputError(
                f"this {type(self).__name__} was loaded, and does not know the means of its clusters; call fit, "
                "or partial_fit of a new estimator"
            )
        if known["assign_space_"] != "original":
            raise InvalidInputError(
                "the clusters of the fit are known in the space of the sketch alone, where no stream goes on; fit with "
                'assign_space="original", or call partial_fit of a new estimator'
            )
        n_valid = known["n_samples_"] - count_skipped(known["labels_"])
        dtype = np.result_type(rows.dtype, np.float32)
        stream.begin(self.cluster_means_, known["counts_"], n_valid, dtype=dtype, sparse=rows.is_sparse)
        stream.dtype = centers_dtype(np.asarray(self.cluster_centers_).dtype)

    def _follow(self, stream: Stream) -> None:
        """Set what is known at once; forget what was found before."""
        kept = ("stream_", *_OF_INPUT)
        for name in [name for name in vars(self) if name.endswith("_") and name not in kept]:
            delattr(self, name)
        self._narrow = {}
        self._label_blocks = None
        self.stream_, self.n_samples_seen_ = stream, stream.n_rows
        self.n_features_in_ = stream.n_features

    def _new_stream(self, rows: RowSource) -> Stream:
        given = parameters_of(self)
        itemsize = np.result_type(rows.dtype, np.float32).itemsize
        row_bytes = 1024 if rows.is_sparse or rows.n_features is None else itemsize * rows.n_features
        self.seed_ = drawn_seed(given.random_state)
        seed = int(check_random_state(self.seed_).randint(0, 2**63 - 1, dtype=np.int64))
        half_life = np.inf if given.half_life is None else float(given.half_life)
        size = stream_size(given.n_clusters, row_bytes)
        rule = CoresetRule(size, given.n_clusters, seed, half_life=half_life)
        return Stream(rule, first_row=given.first_row)

    def __getstate__(self) -> Any:
        """All but the rows of the last call, which may be many."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_last_rows"}

    def __getattr__(self, name: str) -> Any:
        """Find centers in the stream, and labels of the last rows, when they are first asked for."""
        if name == "labels_" and vars(self).get("_last_rows") is not None:
            self.labels_ = self.predict(self._last_rows)
            del self._last_rows
            return self.labels_
        if name not in LAZY or "stream_" not in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        estimator, stream = vars(self), self.stream_
        given = parameters_of(self)
        init = given_start(given.init)
        settings = StreamSettings(
            n_clusters=given.n_clusters,
            init=init,
            n_init=given.n_init,
            max_iter=given.max_iter,
            tol=given.tol,
            seeds=np.random.SeedSequence(stream.rule.seed),
        )
        found = stream.clusters(settings, given.executor)
        sketch = IdentitySketch(stream.n_features)
        values = {
            "cluster_centers_": found.centers.astype(stream.dtype, copy=False),
            "counts_": found.counts,
            "inertia_": found.inertia,
            "n_iter_": found.n_iter,
            "converged_": found.converged,
            "assign_space_": "original",
            "sketch_": sketch,
            "model_": Model(
                found.centers, stream.n_features, given.metric, "original", sketch, preparation=self.preparation_
            ),
        }
        for attribute, value in values.items():
            if attribute not in estimator:  # centers may have been assigned
                setattr(self, attribute, value)
        return values[name]
