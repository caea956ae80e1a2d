"""What of a fit is worth keeping while it runs, and how it looks on disk.

A `CheckpointWriter` saves records now and then into a checkpoint and gives them back to the run that continues; without
a checkpoint it does nothing. The functions here turn what stages gather into named arrays and JSON values, bit by bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.columns import Occurring
from streamkm.cluster.profile import ARRAYS as PROFILE_ARRAYS
from streamkm.cluster.profile import Profile
from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.cluster.sampling.coreset_tree import CoresetTree
from streamkm.cluster.sampling.row_sample import Candidates, SampleCollector, SampleRule
from streamkm.cluster.seeding.draws import Drawn
from streamkm.cluster.totals import Totals
from streamkm.compute import Folded
from streamkm.core.matrix import pack_matrix, unpack_matrix
from streamkm.passes.checkpoint import Checkpoint, Throttle, records

Record: TypeAlias = tuple[dict[str, NDArray[Any]], dict[str, Any]]
BEGIN = "begin"  # the record that every run writes at once
PROCESS = "process"  # what the process held beside data that began the run
DRAWN_ARRAYS = ("places", "weights", "d2", "keys")  # of drawn rows, beside the rows
INTERVAL_S = 10.0  # between saves; runs that are shorter write nothing
SHARE = 0.05  # of the time, at most, that saving may take


class CheckpointWriter:
    """Saves what was done, not too often, and gives it back.

    Parameters
    ----------
    checkpoint : Checkpoint or None
        None: nothing is saved, nothing comes back.
    """

    def __init__(self, checkpoint: Checkpoint | None = None):
        self.checkpoint = checkpoint
        self._throttle = Throttle(INTERVAL_S, SHARE)
        self._worth_from = time.monotonic() + INTERVAL_S

    def same_seed(self, drawn: int) -> int:
        """The seed of the run that is continued, or what was drawn now."""
        if self.checkpoint is None:
            return drawn
        begun = self.checkpoint.load(BEGIN)
        if begun is not None:
            return int(begun[1]["seed"])
        self.checkpoint.save(BEGIN, {}, {"seed": drawn})
        return drawn

    def load(self, name: str) -> Record | None:
        """A record of the run that is continued, if it got so far."""
        return self.checkpoint.load(name) if self.checkpoint is not None else None

    def save_if_due(self, name: str, make: Callable[[], Record]) -> None:
        """Save a record that changes all the time, if the last save is long enough ago."""
        if self.checkpoint is not None:
            checkpoint = self.checkpoint
            self.when_due(lambda: checkpoint.save(name, *make()))

    def when_due(self, save: Callable[[], None]) -> None:
        """Call `save` if the last one is long enough ago."""
        self._throttle.save_if_due(save)

    def save(self, name: str, make: Callable[[], Record], *, always: bool = False) -> None:
        """Save a record that ends a stage, unless the run is young: doing it again would take no longer.

        Parameters
        ----------
        always : bool
            Of a young run too: what is saved next is of no use, or does harm, to a run that does this stage again.
        """
        if self.checkpoint is not None and (always or time.monotonic() >= self._worth_from):
            self.checkpoint.save(name, *make())


def is_worth_resuming(directory: str | os.PathLike[str]) -> bool:
    """Whether a run has left more than its beginning there; see `checkpoint.records` for errors."""
    return bool(records(directory) - {BEGIN, PROCESS})


@dataclass(slots=True)
class Gathered:
    """What the sketch pass has gathered so far, apart from blocks.

    Attributes
    ----------
    rule : SampleRule
    coreset_rule : CoresetRule or None
        Of the coreset of sketched rows, if there is to be one.
    collector : SampleCollector
    tree : CoresetTree or None
    counts : list of (n_read, n_valid, n_counted, width)
        For each chunk done.
    occurring : Occurring
        Features of wide sparse rows.
    """

    rule: SampleRule
    coreset_rule: CoresetRule | None = None
    collector: SampleCollector = field(init=False)
    tree: CoresetTree | None = field(init=False)
    counts: list[tuple[int, int, int, int]] = field(default_factory=list)
    occurring: Occurring = field(default_factory=Occurring)

    def __post_init__(self) -> None:
        self.collector = SampleCollector(self.rule.size)
        self.tree = None if self.coreset_rule is None else CoresetTree(self.coreset_rule)

    @property
    def n_read(self) -> int:
        """Rows read so far."""
        return sum(count[0] for count in self.counts)

    def pack(self) -> Record:
        """As a record."""
        lowest = self.collector.compact()
        arrays: dict[str, NDArray[Any]] = {"counts": np.array(self.counts, np.int64).reshape(-1, 4)}
        if lowest is not None:
            arrays |= {**pack_matrix("X", lowest.X), "keys": lowest.keys, "rows": lowest.rows}
        if self.occurring.bits is not None:
            arrays["occurring"] = self.occurring.bits
        nodes = []
        for number, ((level, index), part) in enumerate(() if self.tree is None else self.tree.nodes.items()):
            values = {"weights": part.weights, "places": part.places, "keys": part.keys}
            arrays |= pack_matrix(f"node{number}", part.X)
            arrays |= {f"node{number}.{name}": array for name, array in values.items()}
            limit = None if np.isinf(part.limit) else part.limit
            nodes.append([level, index, limit, part.depth, part.last_place, part.n_rows, part.total_weight])
        return arrays, {"nodes": nodes}

    def restore(self, record: Record | None) -> None:
        """Go on from a record."""
        if record is None:
            return
        arrays, meta = record
        self.counts = [(int(a), int(b), int(c), int(d)) for a, b, c, d in arrays["counts"]]
        self.occurring = Occurring(arrays.get("occurring"))
        if "keys" in arrays:
            self.collector.add(Candidates(unpack_matrix("X", arrays), arrays["keys"], arrays["rows"]), 0)
        if self.tree is not None:
            for number, (level, index, limit, *counted) in enumerate(meta["nodes"]):
                weights, places, keys = (arrays[f"node{number}.{name}"] for name in ("weights", "places", "keys"))
                known = np.inf if limit is None else float(limit)
                X = unpack_matrix(f"node{number}", arrays)
                self.tree.nodes[level, index] = Part(X, weights, places, keys, known, *counted)


@dataclass(frozen=True, slots=True)
class Passed:
    """What an assign pass gathers over rows: one addend of the reduction.

    Attributes
    ----------
    totals : Totals
    profile : Profile
    drawn : tuple of Drawn
        Rows drawn by their share of the objective, if they are wanted.
    """

    totals: Totals
    profile: Profile
    drawn: tuple[Drawn, ...] = ()


def pack_folded(folded: Folded[Passed]) -> Record:
    """How far an assign pass has come, as a record."""
    arrays: dict[str, NDArray[Any]] = {}
    levels = []
    for level, (count, states) in enumerate(folded.levels):
        described = []
        for i, state in enumerate(states):
            at = f"{level}.{i}"
            arrays[f"sums.{at}"], arrays[f"counts.{at}"] = state.totals.sums, state.totals.counts
            arrays |= {f"profile.{name}.{at}": getattr(state.profile, name) for name in PROFILE_ARRAYS}
            for j, drawn in enumerate(state.drawn):
                arrays |= pack_matrix(f"drawn.{at}.{j}", drawn.X)
                arrays |= {f"{name}.{at}.{j}": getattr(drawn, name) for name in DRAWN_ARRAYS}
            described.append([state.totals.d2, [drawn.limit for drawn in state.drawn]])
        levels.append([count, described])
    return arrays, {"n_items": folded.n_items, "levels": levels}


def unpack_folded(record: Record) -> Folded[Passed]:
    """The inverse of `pack_folded`."""
    arrays, meta = record
    levels = []
    for level, (count, described) in enumerate(meta["levels"]):
        states = []
        for i, (d2, limits) in enumerate(described):
            at = f"{level}.{i}"
            drawn = tuple(
                Drawn(
                    unpack_matrix(f"drawn.{at}.{j}", arrays),
                    limit=float(limit),
                    **{name: arrays[f"{name}.{at}.{j}"] for name in DRAWN_ARRAYS},
                )
                for j, limit in enumerate(limits)
            )
            totals = Totals(arrays[f"sums.{at}"], arrays[f"counts.{at}"], float(d2))
            profile = Profile(**{name: arrays[f"profile.{name}.{at}"] for name in PROFILE_ARRAYS})
            states.append(Passed(totals, profile, drawn))
        levels.append((int(count), tuple(states)))
    return Folded(int(meta["n_items"]), tuple(levels))


class KeptSums:
    """Sums over chunks of one pass, an array in each state, saved now and then.

    Parameters
    ----------
    writer : CheckpointWriter
    name : str
        Of the record.

    Attributes
    ----------
    begun : Folded or None
        What an earlier run has done of this pass.
    """

    def __init__(self, writer: CheckpointWriter, name: str):
        self._writer, self._name = writer, name
        self.begun: Folded[NDArray[Any]] | None = None
        record = writer.load(name)
        if record is not None:
            arrays, meta = record
            levels = [
                (int(count), tuple(arrays[f"{level}.{i}"] for i in range(n_states)))
                for level, (count, n_states) in enumerate(meta["levels"])
            ]
            self.begun = Folded(int(meta["n_items"]), tuple(levels))

    def save(self, folded: Callable[[], Folded[NDArray[Any]]]) -> None:
        """Save what is done, if it is time."""
        self._writer.save_if_due(self._name, lambda: self._pack(folded()))

    def _pack(self, folded: Folded[NDArray[Any]]) -> Record:
        arrays = {
            f"{level}.{i}": state for level, (_, states) in enumerate(folded.levels) for i, state in enumerate(states)
        }
        levels = [[count, len(states)] for count, states in folded.levels]
        return arrays, {"n_items": folded.n_items, "levels": levels}


class KeptLabels:
    """Labels and sums of one pass of assignments, saved now and then.

    Parameters
    ----------
    writer : CheckpointWriter
    name : str
        Of the record: one for each pass.
    n_rows : int

    Attributes
    ----------
    begun : Folded or None
        What an earlier run has done of this pass.
    """

    def __init__(self, writer: CheckpointWriter, name: str, n_rows: int):
        self._writer, self._name, self._n_rows = writer, name, n_rows
        self._n_written = 0
        record = writer.load(name)
        if writer.checkpoint is not None and not writer.checkpoint.has_labels(n_rows):
            record = None
        self.begun = None if record is None else unpack_folded(record)

    def labels(self, n_rows: int) -> NDArray[np.int32]:
        """Labels of the first rows, as far as the earlier run got."""
        self._n_written = n_rows
        if self._writer.checkpoint is None:
            raise ValueError("nothing is kept without a checkpoint")
        with self._writer.checkpoint.labels(self._n_rows) as file:
            return file.read(mapped=True)[:n_rows]

    def save(self, labels: NDArray[np.int32], bounds: NDArray[np.int64], folded: Callable[[], Folded[Passed]]) -> None:
        """Save what is done, if it is time: the labels that are new, then the sums with the number of chunks."""
        if self._writer.checkpoint is None:
            return
        checkpoint = self._writer.checkpoint

        def write() -> None:
            done = folded()
            stop = int(bounds[done.n_items])
            with checkpoint.labels(self._n_rows) as file:
                file.write(self._n_written, labels[self._n_written : stop])
                file.commit(self._name, *pack_folded(done))
            self._n_written = stop

        self._writer.when_due(write)
