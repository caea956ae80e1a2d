"""What `StreamKMeans.fit` would do, and how long it would take, before anything is read: plans and forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from streamkm.cluster.size_cap import most_clusters
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine import is_alone, is_on_cluster, local_threads, under_limit
from streamkm.estimators.base import BaseKMeans
from streamkm.estimators.input_rows import open_rows
from streamkm.estimators.validation import ClusterMetric, check_parameters, drawn_seed, parameters_of, row_metric
from streamkm.fitting.benchmark import estimate_seconds, measure, roughly_prepared
from streamkm.fitting.centers import check_clusters
from streamkm.fitting.settings import Settings
from streamkm.passes.prepare import check_replayable
from streamkm.planning.fit_plan import plan_fit
from streamkm.planning.forecast import Cluster, Forecast, HypotheticalSource, forecast
from streamkm.planning.line_room import planned_line_room
from streamkm.planning.plan import Plan
from streamkm.planning.row_bytes import STORED_ENTRY_BYTES, is_dense
from streamkm.preparation import Preparation, check_steps
from streamkm.sources.base import RowSource
from streamkm.sources.cached import cached_rows
from streamkm.sources.open import store_of
from streamkm.sources.prepared import prepared


class Planned(BaseKMeans):
    """Adds `plan`, `estimate_seconds` and `forecast` to an estimator, and what its parameters mean for a fit."""

    metric: ClusterMetric
    preprocess: Sequence[str] | None

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
            source, n_threads = open_rows(self, X, reset=None), local_threads(self.executor)
            plan = self.plan_for(source if n_rows is None else HypotheticalSource(source, n_rows))
            rows = roughly_prepared(source, check_steps(self.preprocess), plan.chunk_bytes, self.on_invalid)
            return estimate_seconds(
                self._fit_reader(rows, plan, row_metric(self.metric)),
                plan,
                self._settings(drawn_seed(self.random_state)),
                n_threads,
            )

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
        settings = self._settings(drawn_seed(self.random_state))
        rows = roughly_prepared(source, check_steps(self.preprocess), plan.chunk_bytes, self.on_invalid)
        rates = measure(self._fit_reader(rows, plan, row_metric(self.metric)), plan, settings)
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
        given = parameters_of(self)
        if source.n_rows is not None:
            check_clusters(given.n_clusters, source.n_rows)
        counts = {given.n_clusters}
        if given.max_cluster_size is not None:
            n_rows = total_weight or source.estimated_rows
            counts.add(most_clusters(given.max_cluster_size, n_rows, given.n_clusters))
        rows = self._planned_rows(source)
        planned = partial(
            plan_fit,
            rows,
            sketch=replace(given.sketch, assign_space="original") if given.metric == "spherical" else given.sketch,
            refine=given.refine,
            coreset=given.coreset,
            chunk_bytes=given.chunk_bytes,
            memory_limit=given.memory_limit if memory_limit is None else memory_limit,
            n_threads=n_threads or local_threads(given.executor),
            weighted=total_weight is not None,
            gathers_labels=gathers_labels,
            caches_rows=refuses and is_alone(given.executor),
            refuses=refuses,
            on_cluster=refuses and is_on_cluster(given.executor),
        )
        # splits leave more clusters than are looked for: these are planned first, as a refusal names their limit
        plan = max(
            (planned(n_clusters=count) for count in sorted(counts, reverse=True)),
            key=lambda plan: plan.threadless_bytes,
        )
        stored = None
        if plan.memory_model is not None and not is_dense(rows, given.sketch.sketch, plan.sketch, plan.n_components):
            stored = plan.memory_model.rows.block_row_bytes / (STORED_ENTRY_BYTES * plan.n_components)
        return plan.with_epochs(self._settings(0), stored=stored)

    def _planned_rows(self, source: RowSource) -> RowSource:
        """The rows that will be clustered, as far as they can be described before steps have found what they need.

        Raises
        ------
        InvalidInputError
            For rows that no step can be done to: of sketch stores, and some that can be walked once only.
        """
        steps = check_steps(self.preprocess)
        if not steps:
            return source
        if store_of(source) is not None:
            raise InvalidInputError(
                f"the rows of {source.name} are sketched already, and preprocess={list(steps)!r} is for original rows; "
                "leave preprocess out"
            )
        preparation = Preparation(steps)
        check_replayable(source, preparation)
        return prepared(source, preparation)

    def _cached_rows(self, source: RowSource, plan: Plan) -> RowSource:
        """The rows as they are read, cached in memory by the first pass where the plan has room for them."""
        chunk_bytes = self._planned_rows(source).original_bytes(plan.chunk_bytes)
        given = parameters_of(self)
        bounded = planned_line_room(source, given.memory_limit, plan, on_cluster=is_on_cluster(given.executor))
        return cached_rows(bounded, chunk_bytes, plan.cached_bytes)

    def _settings(self, seed: int) -> Settings:
        init, seeds = self._given(seed)
        given = parameters_of(self)
        sketch = None if isinstance(given.sketch.sketch, str) else given.sketch.sketch
        return Settings(
            n_clusters=given.n_clusters,
            init=init,
            n_init=given.n_init,
            max_iter=given.max_iter,
            tol=given.tol,
            refine=given.refine,
            seeds=seeds,
            sketch=sketch,
            spherical=given.metric == "spherical",
            max_cluster_size=given.max_cluster_size,
        )
