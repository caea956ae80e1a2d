"""What the passes of one run share, so that each of them takes it as one value.

Knows nothing of parameters, plans and stages of a fit: `fitting.context` adds those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.spill import Spill
from streamkm.compute import Executor
from streamkm.passes.reader import Walk, Weighed
from streamkm.passes.resume import CheckpointWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class PassContext:
    """What every pass of a run reads rows with.

    Attributes
    ----------
    executor : Executor
        Its calls read the rows.
    walk : Walk
    weights : float64 (n,) or (0,)
        Of the rows; (0,): each weighs 1.
    writer : CheckpointWriter
        Saves what passes have done so far; by default nothing.
    spill : Spill, optional
        Where sketched rows go that memory does not hold.
    """

    executor: Executor
    walk: Walk
    weights: NDArray[np.float64] = field(default_factory=lambda: NO_WEIGHTS)
    writer: CheckpointWriter = field(default_factory=CheckpointWriter)
    spill: Spill | None = None

    def items(self, chunk_rows: NDArray[np.int64] | None = None) -> Iterator[Weighed]:
        """The items that the executor's calls read, with their rows' weights; see `Walk.items`."""
        return self.walk.items(self.executor, self.weights, chunk_rows)

    def share(self, *values: Any) -> Any:
        """Bring the walk and some values, as one tuple, to where calls run; see `Executor.share`."""
        return self.executor.share((self.walk.for_calls(self.executor), *values))
