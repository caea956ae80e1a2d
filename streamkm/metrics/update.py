"""What an update of clusters by new rows brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Update:
    """Placeholder until merged."""

    drift: Any
    events: tuple[Any, ...]
    n_rows: int
    inertia: float
    inertia_error: float
    changed_share_bound: float
    relabel: bool
    seconds: float
