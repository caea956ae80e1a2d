"""What became of clusters that are followed: births, deaths, splits and joins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["born", "died", "split", "joined", "renamed"]


@dataclass(frozen=True, slots=True)
class Event:
    """A change of clusters.

    Attributes
    ----------
    update : int
        Number of the update, from 0.
    event : "born", "died", "split", "joined" or "renamed"
    id : int
        The cluster that was born, died, came out of a split, was joined to another, or has this id since a merge.
    other : int or None
        The cluster that it was split from or joined to, or the id that it had in the second estimator of a merge.
    rows : float
        Rows of the update that are in the cluster; 0 where it is gone or renamed.
    gain : float
        How much lower the objective is for it, by Ward's formula; negative for joins and deaths.
    """

    update: int
    event: Kind
    id: int
    other: int | None
    rows: float
    gain: float


@dataclass(frozen=True, slots=True)
class UpdateRows:
    """Weights of the rows of one update by cluster.

    Attributes
    ----------
    update : int
        Its number, from 0.
    ids : int64 (k,)
    rows : float64 (k,)
    """

    update: int
    ids: NDArray[np.int64]
    rows: NDArray[np.float64]
