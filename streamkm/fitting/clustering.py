"""The result of a search for centers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.columns import Columns
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.model import Metric, Model, Space
from streamkm.cluster.normalization import Normalization
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.cluster.sampling.row_sample import Sample, first_rows
from streamkm.core.matrix import rows_between
from streamkm.engine import Executor
from streamkm.sketches import Sketch

FAR_ROWS = 100  # that tell whether centers are far
FAR_SHARE = 0.01  # of squared norms that squared distances are, where centers are far


@dataclass(frozen=True, slots=True)
class Clustering:
    """What clustering found, before any row is assigned."""

    result: LloydResult  # of the stage that ended the iterations; its centers are in `space`
    space: Space  # "original" or "sketch", where rows will be assigned
    sketch: Sketch
    history: tuple[dict[str, Any], ...]
    look: SampleView
    n_features: int
    chunk_rows: NDArray[np.int64]  # (chunks,)
    columns: Columns | None = None  # the features that centers have, where they are few of all

    def model(self, metric: Metric) -> Model:
        """What assigns rows."""
        model = Model(self.result.centers, self.n_features, metric, self.space, self.sketch, columns=self.columns)
        X, frame = rows_between(self.look.sample.X, 0, FAR_ROWS), self.look.frame
        if self.space == "sketch" or isinstance(X, np.ndarray) or not X.shape[0] or len(frame.origin):
            return model
        X = model.place(frame.original_rows(X))
        return replace(model, far=_are_far(X, model.centers))


@dataclass(frozen=True, slots=True)
class SampleView:
    """The first sampled rows, in original features and sketched: kept to be looked at when the labels are known."""

    sample: Sample  # of the same rows, in a
    sketched: Block
    frame: Normalization
    whole: Sample | None = None  # all sampled rows, in the frame, where there may be another round and these are more

    @classmethod
    def of(
        cls, here: Executor, sample: Sample, sketched: Block, frame: Normalization, *, n_rows: int, keeps_sample: bool
    ) -> SampleView:
        """Copies, unless these are all rows: views would keep the whole sample, which is kept only if asked for."""
        if n_rows >= len(sample.rows):
            return cls(sample, sketched, frame)
        original, rows = here.each("polish", first_rows, [sample.X, sketched.X], n_rows)
        few = Sample(original, sample.rows[:n_rows].copy(), sample.weights[:n_rows].copy(), False)
        block = Block(rows, sketched.d2norms[:n_rows].copy(), sketched.weights[:n_rows].copy())
        return cls(few, block, frame, sample if keeps_sample else None)

    def originals(self) -> Sample:
        """The sampled rows as the data have them."""
        return replace(self.sample, X=self.frame.original_rows(self.sample.X))


def _are_far(X: Any, centers: NDArray[np.float64]) -> bool:
    """Whether CSR rows lie farther from their centers than `FAR_SHARE` says, about. O(k * d)."""
    columns = np.unique(X.indices)
    overlaps = X[:, columns].astype(np.float64) @ np.ascontiguousarray(centers[:, columns].T)
    norms = row_d2norms(X)
    d2 = norms[:, None] - 2 * overlaps + np.einsum("ij,ij->i", centers, centers)
    return float(np.maximum(d2.min(axis=1), 0).sum()) > FAR_SHARE * float(norms.sum())
