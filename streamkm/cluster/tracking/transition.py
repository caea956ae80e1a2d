"""Clusters before and after an update: identities by shared rows, costs of joins, and events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["born", "died", "split", "joined", "renamed"]


@dataclass(frozen=True, slots=True)
class Event:
    """A change of clusters."""

    update: int  # number of the update, from 0
    event: Kind  # "born", "died", "split", "joined" or "renamed"
    id: int  # the cluster that was born, died, came out of a split, was joined to another, or has this id since a merge
    # the cluster that it was split from or joined to, or the id that it had in the second estimator of a merge
    other: int | None
    rows: float  # rows of the update that are in the cluster; 0 where it is gone or renamed
    gain: float  # how much lower the objective is for it, by Ward's formula; negative for joins and deaths


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """Weights of the rows of one update by cluster."""

    update: int  # its number, from 0
    ids: NDArray[np.int64]  # (k,)
    rows: NDArray[np.float64]  # (k,)


JOINED_AT_ONCE = 1000


def joined_means(
    means: NDArray[np.float64], counts: NDArray[np.float64], others: NDArray[np.float64], added: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Join sets of rows pair by pair: their weights (k,), means (k, d), and the costs of the joins (k,).

    References: Ward, "Hierarchical grouping to optimize an objective function", JASA 58 (1963): the cost is ``n m / (n
    + m) ||a - b||^2``.
    """
    together = counts + added
    share = np.divide(added, together, out=np.zeros(len(counts)), where=together > 0)
    apart = others - means
    joined = means + share[:, None] * apart
    return together, joined, share * counts * np.einsum("ij,ij->i", apart, apart)


def join_cost(one: NDArray[np.float64], n_one: float, other: NDArray[np.float64], n_other: float) -> float:
    """Cost of joining two sets of rows, by their means (d,) and weights; see `joined_means`."""
    _, _, cost = joined_means(one[None], np.array([n_one]), other[None], np.array([n_other]))
    return float(cost[0])


def join_costs(means: NDArray[np.float64], counts: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Least cost of joining each cluster to another (k,), and the partner (k,), by Ward's formula.

    O(k^2 d) time, O(k^2) memory a block of 1,000 clusters.
    """
    k = len(counts)
    costs, nearest = np.full(k, np.inf), np.zeros(k, np.intp)
    center = counts @ means / max(counts.sum(), 1e-300)
    moved = means - center
    norms = np.einsum("ij,ij->i", moved, moved)
    for start in range(0, k, JOINED_AT_ONCE):
        rows = slice(start, min(start + JOINED_AT_ONCE, k))
        d2 = np.maximum(norms[rows, None] + norms - 2 * moved[rows] @ moved.T, 0.0)
        share = counts[rows, None] * counts / np.maximum(counts[rows, None] + counts, 1e-300)
        cost = share * d2
        cost[np.arange(cost.shape[0]), np.arange(start, start + cost.shape[0])] = np.inf
        nearest[rows] = cost.argmin(axis=1)
        costs[rows] = cost.min(axis=1)
    return costs, nearest


CHILD_SHARE = 0.25
"""Least share of a cluster's rows that its heir takes over."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The relation of clusters before an update to those after it."""

    heirs: NDArray[np.int64]  # (k before,): the cluster after the update that has the id of each, or -1
    # (k before,): the cluster after the update that the rows of each are counted in: the heir, or the one that it was
    # joined to
    taken_by: NDArray[np.int64]
    # (k after,): the cluster that a new one was split from; -1: none, as of clusters that have an old id or were born
    parents: NDArray[np.int64]

    @property
    def is_new(self) -> NDArray[np.bool_]:
        """Clusters (k after,) that get a new id."""
        new = np.ones(len(self.parents), np.bool_)
        new[self.heirs[self.heirs >= 0]] = False
        return new


def find_transition(
    before: NDArray[np.int32],
    after: NDArray[np.int32],
    weights: NDArray[np.float64],
    is_old: NDArray[np.bool_],
    is_novel: NDArray[np.bool_],
    nearest: NDArray[np.int32],
    n_after: int,
) -> Transition:
    """Identify clusters across an update by the rows they share.

    A cluster was born if most of its rows lie farther out than rows did before. Any other that takes over a quarter of
    an old cluster's old rows may be its heir. Pairs with the largest common weight are decided first, so that the
    larger part of a split and the larger one of a join keep their ids. Others were split from the cluster that had most
    of their rows.

    `before`, `after`: int32 (s,), labels by old and new centers. `weights`: float64 (s,). `is_old`: bool (s,), rows
    from before the update. `is_novel`: bool (s,), rows farther from the old centers than rows were. `nearest`: int32 (k
    before,), the new cluster of each old mean, used for clusters without old rows here.

    References: Spiliopoulou, Ntoutsi, Theodoridis and Schult, "MONIC: modeling and monitoring cluster transitions", KDD
    2006: ids follow the weight of the rows that two clusters share.
    """
    k = len(nearest)
    cells, cell = np.unique(before.astype(np.int64) * n_after + after, return_inverse=True)
    one, other = np.divmod(cells, n_after)  # pairs of clusters that share rows
    everyone = np.asarray(np.bincount(cell, weights, minlength=len(cells)), np.float64)
    old = np.asarray(np.bincount(cell, weights * is_old, minlength=len(cells)), np.float64)
    totals = np.bincount(one, old, minlength=k)
    shares = np.divide(old, totals[one], out=np.zeros(len(cells)), where=totals[one] > 0)
    held = np.bincount(after, weights, minlength=n_after)
    born = 2 * np.bincount(after, weights * is_novel, minlength=n_after) > held
    lone = np.flatnonzero(totals == 0)
    one, other = np.concatenate([one, lone]), np.concatenate([other, nearest[lone]])
    everyone, shares = np.concatenate([everyone, np.zeros(len(lone))]), np.concatenate([shares, np.ones(len(lone))])
    heirs, taken = np.full(k, -1, np.int64), np.zeros(n_after, np.bool_)
    candidates = np.flatnonzero((shares >= CHILD_SHARE) & ~born[other])
    for pair in candidates[np.lexsort((other[candidates], one[candidates], -everyone[candidates]))].tolist():
        if heirs[one[pair]] < 0 and not taken[other[pair]]:
            heirs[one[pair]], taken[other[pair]] = other[pair], True
    most = np.full(k, -1, np.int64)
    order = np.lexsort((other, shares, one))
    most[one[order]] = other[order]  # the last of each, which is the largest
    parents = np.full(n_after, -1, np.int64)
    order = np.lexsort((one, everyone, other))
    parents[other[order]] = one[order]
    parents[taken | born | (held == 0)] = -1
    # what was split from a cluster that is gone has no parent with an id
    parents[(parents >= 0) & (heirs[parents] < 0)] = -1
    return Transition(heirs, np.where(heirs >= 0, heirs, most), parents)


def family(transition: Transition, one: int) -> NDArray[np.int64]:
    """The heir of an old cluster, then those split from it."""
    return np.concatenate([transition.heirs[one : one + 1], np.flatnonzero(transition.parents == one)])
