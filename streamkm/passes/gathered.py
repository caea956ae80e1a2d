"""Results of the first pass beside sketched rows: a row sample, a coreset, and the features that occur."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.columns import Occurring
from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.cluster.sampling.coreset_tree import CoresetTree
from streamkm.cluster.sampling.row_sample import Candidates, SampleCollector, SampleRule


@dataclass(frozen=True, slots=True)
class SavedRows:
    """`Gathered` in a checkpoint; `nodes` are those of the coreset tree, by level and index."""

    counts: NDArray[np.int64]
    candidates: Candidates | None
    occurring: NDArray[np.uint8] | None
    nodes: tuple[tuple[int, int, Part], ...]


@dataclass(slots=True)
class Gathered:
    """Results of the sketch pass so far, without the sketched rows.

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

    def saved(self) -> SavedRows:
        """The record for a checkpoint."""
        counts = np.array(self.counts, np.int64).reshape(-1, 4)
        nodes = () if self.tree is None else tuple((*at, part) for at, part in self.tree.nodes.items())
        return SavedRows(counts, self.collector.compact(), self.occurring.bits, nodes)

    def restore(self, saved: SavedRows) -> None:
        """Continue from the record of a checkpoint."""
        self.counts = [(int(a), int(b), int(c), int(d)) for a, b, c, d in saved.counts]
        self.occurring = Occurring(saved.occurring)
        if saved.candidates is not None:
            self.collector.add(saved.candidates, 0)
        if self.tree is not None:
            self.tree.nodes.update({(level, index): part for level, index, part in saved.nodes})
