"""What a search for centers leaves, and how a checkpoint holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.columns import Columns
from streamkm.cluster.frame import Frame
from streamkm.cluster.lloyd import LloydResult
from streamkm.cluster.model import Metric, Model, Space
from streamkm.cluster.rows import Block, row_d2norms
from streamkm.cluster.sampling.row_sample import Sample, first_rows
from streamkm.compute import Executor
from streamkm.core.matrix import pack_matrix, rows_between, unpack_matrix
from streamkm.passes.kept_steps import pack_lloyd, unpack_lloyd
from streamkm.passes.resume import Record
from streamkm.sketches import Sketch, sketch_from_dict

SKETCH_PREFIX = "sketch."
FAR_ROWS = 100  # that tell whether centers are far
FAR_SHARE = 0.01  # of squared norms that squared distances are, where centers are far


@dataclass(frozen=True, slots=True)
class Found:
    """What clustering found, before any row is assigned.

    Attributes
    ----------
    result : LloydResult
        Of the stage that ended the iterations; its centers are in `space`.
    space : "original" or "sketch"
        Where rows will be assigned.
    sketch : Sketch
    history : tuple of dict
    look : Look
    n_features : int
    chunk_rows : int64 (chunks,)
    columns : Columns or None
        The features that centers have, where they are few of all.
    """

    result: LloydResult
    space: Space
    sketch: Sketch
    history: tuple[dict[str, Any], ...]
    look: Look
    n_features: int
    chunk_rows: NDArray[np.int64]
    columns: Columns | None = None

    def model(self, metric: Metric) -> Model:
        """What assigns rows."""
        model = Model(self.result.centers, self.n_features, metric, self.space, self.sketch, columns=self.columns)
        X, frame = rows_between(self.look.sample.X, 0, FAR_ROWS), self.look.frame
        if self.space == "sketch" or isinstance(X, np.ndarray) or not X.shape[0] or len(frame.origin):
            return model
        X = model.place(frame.original_rows(X))
        return replace(model, far=_are_far(X, model.centers))

    def pack(self) -> Record:
        """As a record of a checkpoint."""
        sample, block = self.look.sample, self.look.sketched
        arrays, meta = pack_lloyd(self.result)
        arrays |= {SKETCH_PREFIX + name: array for name, array in self.sketch.arrays().items()}
        arrays |= pack_matrix("sampled", sample.X) | pack_matrix("sketched", block.X)
        arrays |= {"rows": sample.rows, "weights": sample.weights, "d2norms": block.d2norms}
        arrays |= {"chunk_rows": self.chunk_rows, "origin": self.look.frame.origin}
        meta |= {"space": self.space, "sketch": self.sketch.to_dict(), "history": list(self.history)}
        meta |= {"complete": sample.complete, "scale": self.look.frame.scale, "keeps": self.look.whole is not None}
        whole = self.look.whole
        if whole is not None:
            arrays |= pack_matrix("whole", whole.X) | {"whole_rows": whole.rows, "whole_weights": whole.weights}
        if self.columns is not None:
            arrays["occurring"] = self.columns.occurring
        return arrays, meta | {"n_features": self.n_features}

    @classmethod
    def unpack(cls, record: Record | None) -> Found | None:
        """The inverse of `pack`."""
        result = unpack_lloyd(record)
        if record is None or result is None:
            return None
        arrays, meta = record
        parts = {name.removeprefix(SKETCH_PREFIX): a for name, a in arrays.items() if name.startswith(SKETCH_PREFIX)}
        weights = arrays["weights"]
        sample = Sample(unpack_matrix("sampled", arrays), arrays["rows"], weights, bool(meta["complete"]))
        block = Block(unpack_matrix("sketched", arrays), arrays["d2norms"], weights)
        sketch = sketch_from_dict(meta["sketch"], parts)
        whole = None
        if meta["keeps"]:
            drawn = (arrays["whole_rows"], arrays["whole_weights"])
            whole = Sample(unpack_matrix("whole", arrays), *drawn, complete=bool(meta["complete"]))
        look, history = Look(sample, block, Frame(arrays["origin"], meta["scale"]), whole), tuple(meta["history"])
        n_features = meta["n_features"]
        columns = Columns(arrays["occurring"], n_features) if "occurring" in arrays else None
        return cls(result, meta["space"], sketch, history, look, n_features, arrays["chunk_rows"], columns)


@dataclass(frozen=True, slots=True)
class Look:
    """The first sampled rows, in original features and sketched: kept to be looked at when the labels are known.

    Attributes
    ----------
    sample, sketched : Sample, Block
        Of the same rows, in a
    frame : Frame
    whole : Sample, optional
        All sampled rows, in the frame, where there may be another round and these are more.
    """

    sample: Sample
    sketched: Block
    frame: Frame
    whole: Sample | None = None

    @classmethod
    def of(
        cls, here: Executor, sample: Sample, sketched: Block, frame: Frame, *, n_rows: int, keeps_sample: bool
    ) -> Look:
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
