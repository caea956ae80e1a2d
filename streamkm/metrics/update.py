"""How new rows differ from those of before, as values that print well.

Nothing is computed here: `drift` does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["stable", "shifted", "fit again"]
Reason = Literal["share", "mean", "novel"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure of change, beside the one that rows without change would give.

    Attributes
    ----------
    value : float
        The population stability index, or a share of rows.
    by_chance : float
        Its expectation without change.
    p_value : float
        Probability of so large a change by chance.
    """

    value: float
    by_chance: float
    p_value: float

    def exceeds(self, limit: float, level: float) -> bool:
        """Whether it is more than `limit` above chance, and more than chance explains at this level."""
        return self.p_value < level and self.value - self.by_chance >= limit


@dataclass(frozen=True, slots=True)
class Moved:
    """A feature whose mean moved in a cluster.

    Attributes
    ----------
    feature : str
        Its name, its word, or its number.
    before, now : float
        Means of the rows before, and of new rows.
    """

    feature: str
    before: float
    now: float


@dataclass(frozen=True, slots=True)
class ClusterDrift:
    """One cluster, before and now.

    Attributes
    ----------
    id : int
    rows_before, rows : float
        Or their weights.
    share_before, share : float
        Of all rows before, and of all new rows.
    shift : float
        Of its mean, in mean distances of the rows before; NaN where these tell no spread, or there are no new rows.
    moved : tuple of Moved
        Features that moved most, first.
    distance_before, distance : float
        Mean distance to the center; NaN where there are no rows.
    novel : float
        New rows beyond its reach.
    reasons : tuple of {"share", "mean", "novel"}
        What shifted; empty for a cluster that did not.
    """

    id: int
    rows_before: float
    rows: float
    share_before: float
    share: float
    shift: float
    moved: tuple[Moved, ...]
    distance_before: float
    distance: float
    novel: float
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """How new rows differ from those of before.

    Attributes
    ----------
    verdict : {"stable", "shifted", "fit again"}
    clusters : tuple of ClusterDrift
        The one with the most new rows first.
    shares, distances : Evidence
        Population stability indices of clusters' shares and of distances over reach.
    novelty : Evidence
        Share of new rows beyond the reach of their clusters.
    n_before, n_now : float
        Effective numbers of rows.
    by_words : bool
        Whether features are words.
    """

    verdict: Verdict
    clusters: tuple[ClusterDrift, ...]
    shares: Evidence
    distances: Evidence
    novelty: Evidence
    n_before: float
    n_now: float
    by_words: bool = False

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self) -> str:
        """The verdict in one sentence, with the numbers that decided."""
        figures = (
            f"PSI of shares {self.shares.value:.3f} ({self.shares.by_chance:.3f} by chance), "
            f"PSI of distances {self.distances.value:.3f} ({self.distances.by_chance:.3f}), "
            f"novel rows {self.novelty.value:.1%} ({self.novelty.by_chance:.1%})"
        )
        named = "; ".join(_cluster_text(each) for each in self.clusters if each.reasons)
        return f"{self.verdict.capitalize()}: {figures}{'; ' * bool(named)}{named}."

    def shifted(self) -> tuple[int, ...]:
        """The ids of the clusters that shifted, the one with the most new rows first."""
        return tuple(each.id for each in self.clusters if each.reasons)


def _cluster_text(cluster: ClusterDrift) -> str:
    """What shifted in a cluster, for people."""
    texts = {
        "share": f"share {cluster.share_before:.1%} to {cluster.share:.1%}",
        "mean": f"mean moved by {cluster.shift:.2g} of the mean distance",
        "novel": f"{cluster.novel:,.6g} novel rows",
    }
    return f"cluster {cluster.id} ({', '.join(texts[reason] for reason in cluster.reasons)})"
