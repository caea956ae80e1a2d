"""Updates of an `IncrementalKMeans`: two passes over new rows, and the facts of all rows afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.model import Model
from streamkm.cluster.rows import row_d2
from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.cluster.seeding.draws import Drawn, DrawRule
from streamkm.cluster.tracking.followed import NO_PLACES, ClusterState, Followed, Ground, idle_clusters, without
from streamkm.cluster.tracking.tracked import TrackedClusters
from streamkm.cluster.tracking.transition import UpdateRows
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine import is_on_cluster, local_executor
from streamkm.estimators.describe import feature_namer, in_units
from streamkm.estimators.input_rows import checkpoint_writer
from streamkm.estimators.labelling import Labelling
from streamkm.estimators.validation import Weights, centers_dtype, digest
from streamkm.fitting.streams.coreset_clusters import StreamSettings
from streamkm.fitting.streams.followed_stream import UNSEARCHED, events_of, moved
from streamkm.fitting.streams.stream import Stream
from streamkm.fitting.streams.waiting_rows import feed
from streamkm.metrics.cluster_details import Wording, largest
from streamkm.metrics.cluster_summary import Moved
from streamkm.metrics.drift import compare
from streamkm.metrics.drift_report import Drift, NewCluster
from streamkm.passes.assign import Assign, AssignResult, Decay, Observe, Observed, assign_pass
from streamkm.passes.labels import GatheredLabels, HeldLabels, check_seen, n_writes, write_labels
from streamkm.passes.pass_context import PassContext
from streamkm.sources.row_source import RowSource

MOST_FIGURES = 50  # updates whose figures are kept, for verdicts of drift
N_TRAITS = 3  # features of a cluster that are told, of those whose mean moved most


@contextmanager
def _opened(
    labelling: Labelling, stream: Stream, labels_to: Path | None, checkpoint: Any, kind: str
) -> Iterator[PassContext]:
    """The context of an update or a relabelling; a checkpoint saves its stages."""
    estimator, weights, source = labelling.estimator, labelling.weights, labelling.reader.source
    more = {"seed": estimator.seed_, "next row": stream.next_row, "factor": weights.factor, "kind": kind}
    if stream.followed is not None:
        known = stream.followed.clusters
        more["clusters"] = digest(np.hstack([known.centers, known.means, known.counts[:, None], known.reach[:, None]]))
    with (
        checkpoint_writer(estimator, source, checkpoint, None, weights.each, more) as writer,
        labelling.context(writer=writer) as context,
    ):
        if labels_to is not None:
            check_seen(context.executor, labels_to)
        yield context


def drift_of(estimator: Any, stream: Stream, observed: Observed) -> Drift:
    """Compare new rows with earlier ones, which the kept rows stand for, about the earlier centers."""
    followed, gathered = stream.followed, observed.gathered
    assert followed is not None
    assert gathered.profile is not None
    known, preparation = followed.clusters.widened(gathered.totals.sums.shape[1]), estimator.preparation_
    now = ClusterState.of(known, gathered.totals, gathered.profile.sums[:, 0], observed.histogram, observed.squares)
    wording, states = Wording(feature_namer(estimator), N_TRAITS), (followed.state(stream.rule), now)
    before, now = (replace(each, shown=in_units(preparation, each.means)) for each in states)
    return compare(before, now, observed.novel, followed.figures, wording)


def observe_rows(
    context: PassContext, labelling: Labelling, clusters: TrackedClusters, draws: DrawRule | None = None
) -> Observed:
    """Read rows once, about known centers; draw some by a rule, for a checkpoint to save."""
    with labelling.progress.stage("observe") as stage:
        model, record = _model_of(labelling.model, clusters), None if draws is None else "observe"
        observed = context.run(Observe(Assign(model, model.table(), draws), clusters.reach), stage, record=record)
        stage.rows = int(observed.chunk_rows.sum())
    return observed


def new_clusters(estimator: Any, clusters: TrackedClusters, ids: list[int]) -> tuple[NewCluster, ...]:
    """Traits of the clusters with these ids."""
    preparation, name, told = estimator.preparation_, feature_namer(estimator), []
    of_all = clusters.counts @ clusters.means / max(float(clusters.counts.sum()), 1e-300)
    for at in np.searchsorted(clusters.ids, ids).tolist():
        both = np.vstack([of_all, clusters.means[at]])
        numbers = largest(np.abs(both[1] - both[0]), N_TRAITS).tolist()
        before, now = in_units(preparation, both)
        traits = tuple(Moved(name(n), float(before[n]), float(now[n])) for n in numbers)
        told.append(NewCluster(int(clusters.ids[at]), traits))
    return tuple(told)


def update_rows(
    labelling: Labelling,
    stream: Stream,
    settings: StreamSettings,
    labels_to: Any,
    checkpoint: Any,
) -> tuple[Stream, NDArray[np.int32] | HeldLabels, dict[str, Any]]:
    """The stream after new rows, their labels (n,), and fields of `Update`; only a first update changes the stream."""
    source, first_new, rule = labelling.reader.source, stream.next_row, stream.rule
    estimator, weights = labelling.estimator, labelling.weights
    n_before, n_told = stream.n_rows, 0 if stream.followed is None else len(stream.followed.events)
    with _opened(labelling, stream, labels_to, checkpoint, "update") as context:
        observed, more, drift, earlier, ground, gone = None, None, None, None, None, np.empty(0, np.bool_)
        if stream.followed is None:
            earlier = stream.waiting()
            with labelling.progress.stage("sample") as stage:
                chunk_rows = feed(stream.add, labelling.reader, weights.each, weights.factor)
                stage.rows = int(chunk_rows.sum())
        else:
            known = stream.followed.clusters.widened(labelling.model.n_features)
            draws = _draw_rule(stream, known, source)
            observed = observe_rows(context, labelling, known, draws)
            chunk_rows = observed.chunk_rows
            more = _part_of(observed.gathered.drawn, draws, stream, weights, int(chunk_rows.sum()))
            drift = drift_of(estimator, stream, observed)
            if more is not None:
                more, drift, ground = _counted_part(labelling, known, more, observed, drift, rule)
            gone = idle_clusters(stream.followed, weights.factor * observed.gathered.totals.counts)
            if gone.any():
                stream = replace(stream, followed=without(stream.followed, gone))
        n_read = int(chunk_rows.sum())
        with labelling.progress.stage("follow"), local_executor(context.executor) as here:
            totals = None if observed is None or gone.any() or stream.is_waiting else observed.gathered.totals
            if totals and more and stream.followed and _goes_on(stream.followed, settings, drift, more, ground):
                step = moved(stream.followed, more, rule, totals.counts, totals.sums)
            else:
                step = stream.follow(here, more, settings, earlier, ground)
        stays = labels_to is not None or (is_on_cluster(estimator.executor) and checkpoint is None)
        clusters, assigned = _label(context, labelling, step.clusters, chunk_rows, rule, ground, labels_to, stays=stays)
    n_valid = stream.n_rows - n_before if observed is None else observed.n_valid
    near = np.empty(0) if observed is None else (observed.gathered.totals.counts - observed.novel)[~gone]
    was = stream.followed
    told = events_of(step, clusters, weights.factor * near, np.asarray(assigned.n_rows))
    rows = UpdateRows(clusters.n_updates - 1, clusters.ids, weights.factor * assigned.totals.counts)
    if was is None or drift is None:
        followed = Followed(clusters, step.part, NO_PLACES, tuple(told), (rows,)).named(None)
    else:
        followed = replace(
            was,
            clusters=clusters,
            part=step.part,
            events=(*was.events, *told),
            updates=(*was.updates, rows),
            figures=np.vstack([was.figures, drift.row])[-MOST_FIGURES:],
            gone=rule.fade(was.part.last_place, step.part.last_place) * was.gone,
        ).named(was)
    events = followed.events[n_told:]
    new = new_clusters(estimator, followed.clusters, [each.id for each in events if each.event in ("born", "split")])
    if drift is not None:
        rows_of = dict(zip(followed.clusters.ids.tolist(), np.asarray(assigned.n_rows).tolist(), strict=True))
        drift = drift.labelled(rows_of, {each.id: each.traits for each in new})
    stream.dtype = np.promote_types(stream.dtype, centers_dtype(source.dtype))
    after = stream.updated(followed, stream.n_rows + (0 if was is None else n_valid), first_new + n_read)
    return after, assigned.labels, {"drift": drift, "events": events, "new": new, "n_rows": n_valid}


def _counted_part(
    labelling: Labelling, known: TrackedClusters, part: Part, seen: Observed, drift: Drift, rule: CoresetRule
) -> tuple[Part, Drift, Ground]:
    """Drawn rows that count, the drift with the far ones, and the ground that tells them apart."""
    row_weight = labelling.weights.factor * float(seen.gathered.totals.counts.sum()) / max(seen.n_valid, 1)
    ground = Ground.of(known, part, row_weight)
    is_far = ground.is_far(part.X)
    if not is_far.any():
        return part, drift, replace(ground, limit=np.inf)
    far = np.flatnonzero(is_far)
    table = NearestCenters.build(known.centers, np.float64)
    labels = table.labels(part.X[far])
    most = int(row_d2(part.X[far], labels, table).argmax())
    apart = np.asarray(part.X[far[most : most + 1]].T @ np.ones(1)) - known.centers[labels[most]]
    n_far = float(part.weights[far] @ np.exp2((part.last_place - part.row_ids[far]) / rule.half_life)) / row_weight
    drift = drift.with_far(max(1, round(n_far)), feature_namer(labelling.estimator)(int(np.abs(apart).argmax())))
    return part.only(~is_far), drift, ground


def _goes_on(followed: Followed, settings: StreamSettings, drift: Any, more: Part, ground: Any) -> bool:
    """Whether new rows are so few and alike that no cluster needs a split or a join."""
    clusters, new = followed.clusters, more.total_weight
    calm = drift.verdict == "stable" and not len(ground.groups)
    fits = settings.n_clusters <= clusters.n_clusters <= settings.most
    return calm and fits and clusters.unsearched + new <= UNSEARCHED * (float(clusters.counts.sum()) + new)


def relabel_rows(
    labelling: Labelling, stream: Stream, labels_to: Path | None, checkpoint: Any
) -> tuple[Followed, NDArray[np.int32] | HeldLabels]:
    """Read all rows so far once more: label them by the centers, and count all but far ones anew, exactly."""
    followed = stream.followed
    if followed is None or stream.is_waiting:
        raise InvalidInputError("relabel counts all rows about the clusters that update has found; call update first")
    none = np.zeros(followed.clusters.n_clusters)
    centers = followed.clusters.centers
    empty = replace(followed.clusters, means=centers, counts=none, distances=none, within=0.0, variance=0.0)
    with _opened(labelling, stream, labels_to, checkpoint, "relabel") as context:
        known = [n_rows for _, n_rows, *_ in labelling.reader.items(context.executor, labelling.weights.each, None)]
        if None in known or labelling.reader.source.access.streams:
            chunk_rows = observe_rows(context, labelling, replace(empty, reach=none)).chunk_rows
        else:
            chunk_rows = np.array(known, np.int64)
        ground = Ground.of(followed.clusters, None)
        clusters, assigned = _label(
            context, labelling, empty, chunk_rows, stream.rule, ground, labels_to, stays=labels_to is not None
        )
    return replace(followed, clusters=clusters, gone=0.0, labelled_by=clusters).named(None), assigned.labels


def _label(
    context: PassContext,
    labelling: Labelling,
    clusters: TrackedClusters,
    chunk_rows: NDArray[np.int64],
    rule: CoresetRule,
    ground: Ground | None,
    labels_to: Path | None,
    *,
    stays: bool,
) -> tuple[TrackedClusters, AssignResult]:
    """Clusters with the labelled rows, without far ones; `stays`: whether workers hold the labels."""
    model, decay = _model_of(labelling.model, clusters), Decay(rule.half_life, int(chunk_rows.sum()) - 1)
    ground = None if ground is None or np.isinf(ground.limit) else replace(ground, centers=clusters.centers)
    sink = HeldLabels(chunk_rows, context.executor) if stays else GatheredLabels(chunk_rows, context.writer)
    with labelling.progress.stage("assign", len(chunk_rows)) as stage:
        pass_ = Assign(model, model.table(), decay=decay, ground=ground)
        assigned = assign_pass(context, pass_, chunk_rows, stage, sink=sink, record=None if stays else "assign")
    if labels_to is not None and isinstance(sink, HeldLabels):
        with labelling.progress.stage("labels", n_writes(sink)) as stage:
            write_labels(context.executor, sink, labels_to, stage)
    totals, factor = assigned.totals, labelling.weights.factor
    distances = np.zeros(clusters.n_clusters) if assigned.profile is None else assigned.profile.sums[:, 0]
    counted = clusters.with_rows(factor * totals.counts, factor * totals.sums, factor * totals.d2, factor * distances)
    return counted, assigned


def _draw_rule(stream: Stream, clusters: TrackedClusters, source: RowSource) -> DrawRule:
    """Draw as many new rows as the coreset has, by weight and by their share of the objective."""
    n_rows = float(source.estimated_rows or stream.rule.size)
    a_row = clusters.inertia / max(float(clusters.counts.sum()), 1e-300)
    # else each update would draw the rows with the same numbers
    own = np.random.SeedSequence([stream.rule.seed, stream.next_row])
    return DrawRule.of(stream.rule.size, int(own.generate_state(1, np.uint64)[0]), n_rows, a_row * n_rows)


def _part_of(drawn: Drawn | None, rule: DrawRule, stream: Stream, weights: Weights, n_read: int) -> Part | None:
    """Drawn rows, weighted to stand for all of an update."""
    if drawn is None or not drawn.n_rows:
        return None
    last, numbers = stream.next_row + n_read - 1, drawn.row_ids
    if numbers[-1] >= n_read:  # row ids that are no numbers of rows: these are spread evenly, in the rows' order
        numbers = np.arange(drawn.n_rows) * n_read // drawn.n_rows
    part = stream.rule.part(drawn.X, stream.next_row + numbers, weights.factor * rule.unbiased(drawn))
    part = part.faded(stream.rule.fade(part.last_place, last))
    return replace(part, last_place=last, n_rows=n_read, depth=1)


def _model_of(model: Model, clusters: TrackedClusters) -> Model:
    centers = clusters.centers
    return replace(model, centers=centers, n_features=centers.shape[1], ids=clusters.ids, laid_out=None)
