"""Endless streams: chunks of any size go in, memory stays flat, centers come out; the state depends on no chunk."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.cluster.sampling.coreset import CoresetRule, CoresetTree, Part, default_size
from streamkm.cluster.tracking.followed import Followed, Ground
from streamkm.cluster.tracking.tracked import TrackedClusters
from streamkm.core.exceptions import InvalidInputError, ModelFileError
from streamkm.core.matrix import Matrix, matrix_bytes
from streamkm.engine import Executor, local_executor, open_executor
from streamkm.engine.records import pack, unpack
from streamkm.fitting.streams.coreset_clusters import StreamSettings, cluster_coreset, follow
from streamkm.fitting.streams.followed_stream import Step, advanced, begun, merged
from streamkm.fitting.streams.waiting_rows import Piece, check_rows, together

FORMAT = 2
PART_SIZES = 2  # rows of a part, in sizes of the coreset
NODE_BYTES = 32 << 20  # that one coreset may take; some log2(rows / part) of them are kept


def stream_size(n_clusters: int, row_bytes: float) -> int:
    """Rows of a stream's coreset: as many as serve k clusters, fewer if they would take more than `NODE_BYTES`."""
    return max(4, 2 * n_clusters, min(default_size(n_clusters), int(NODE_BYTES / max(1.0, row_bytes))))


@dataclass(eq=False, repr=False)
class Stream:
    """The state of an endless stream of rows.

    Memory is that of two parts of ``PART_SIZES * rule.size`` rows and of at most ``log2(rows / part) + 1`` coresets of
    ``rule.size`` rows. A row costs O(nnz * k) for the rough clusters by which its part is drawn. Streams of one rule
    with separate row numbers draw independently, and `merged` equals one stream of all rows; bit for bit if together
    they hold all rows from one number to another.
    """

    rule: CoresetRule  # how rows are chosen
    next_row: int = 0  # number of the row that comes next
    n_rows: int = 0  # rows taken, those without weight included
    n_features: int = 0
    sparse: bool | None = None  # None before the first row
    dtype: Any = np.dtype(np.float32)  # noqa: RUF009 - of the centers as they are shown
    nodes: dict[tuple[int, int], Part] = field(default_factory=dict)  # of the tree of the parts that are complete
    pending: dict[int, list[Piece]] = field(default_factory=dict)  # rows of the other parts
    # clusters that have ids, with rows that represent all counted ones; None before the first update
    followed: Followed | None = None
    from_fit: bool = False

    @property
    def tree(self) -> CoresetTree:
        """The tree of the complete parts."""
        return CoresetTree(self.rule, self.nodes)

    @property
    def part_rows(self) -> int:
        """Rows of a part."""
        return PART_SIZES * self.rule.size

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows that are kept, and of the clusters that have ids."""
        waiting = (piece for pieces in self.pending.values() for piece in pieces)
        held = sum(matrix_bytes(piece.X) + piece.row_ids.nbytes + piece.weights.nbytes for piece in waiting)
        return held + self.tree.n_bytes + (0 if self.followed is None else self.followed.n_bytes)

    @property
    def is_waiting(self) -> bool:
        """Whether there are rows that no update has counted."""
        return bool(self.pending or self.nodes)

    @property
    def is_origin(self) -> bool:
        """Whether there is nothing but the clusters of a fit."""
        return self.followed is not None and self.from_fit and not self.is_waiting

    def add(self, X: Matrix, weights: NDArray[np.float64] = NO_WEIGHTS) -> None:
        """Copy valid rows (n, d) into the stream, at least one; sparse chunks may differ in width.

        Raises InvalidInputError: another width, or dense rows after sparse ones. A refused chunk leaves the stream
        unchanged.
        """
        self._check_shape(sp.issparse(X), X.shape[1])
        n_rows, done = X.shape[0], 0
        while done < n_rows:
            index = self.next_row // self.part_rows
            taken = min(n_rows - done, (index + 1) * self.part_rows - self.next_row)
            stop = done + taken
            row_ids = np.arange(self.next_row, self.next_row + taken, dtype=np.int64)
            part_weights = weights[done:stop].copy() if len(weights) else np.ones(taken)
            self._hold(index, Piece(X[done:stop].copy(), row_ids, part_weights))
            self.next_row += taken
            done = stop
        self.n_rows += n_rows
        self.sparse, self.n_features = sp.issparse(X), max(self.n_features, X.shape[1])

    def begin(self, clusters: TrackedClusters, n_rows: int, *, dtype: Any, sparse: bool) -> None:
        """Take clusters that were found elsewhere, whose means represent their `n_rows` rows."""
        kept = clusters.counts > 0
        X = clusters.means[kept].astype(np.result_type(dtype, np.float32))
        row_ids = np.arange(self.next_row, self.next_row + len(X), dtype=np.int64)
        part = self.rule.part(sp.csr_array(X) if sparse else X, row_ids, clusters.counts[kept])
        self.next_row += len(X)
        self.n_rows, self.sparse, self.n_features = n_rows, sparse, X.shape[1]
        part = replace(part, n_rows=n_rows, depth=1)
        self.followed = Followed(clusters, part, clusters.ids[kept], means=row_ids, labelled_by=clusters)
        self.from_fit = True

    def follow(
        self,
        here: Executor,
        more: Part | None,
        settings: StreamSettings,
        earlier: Part | None = None,
        ground: Ground | None = None,
    ) -> Step:
        """Find the clusters after an update, by threads of this process; the stream is not changed.

        `more`: rows drawn from the update, or None if the stream has taken these; then `earlier` are the rows that
        waited before. `ground`: new groups in `more`, far from all clusters.
        """
        waiting = self.waiting()
        if self.followed is not None:
            return advanced(here, self.followed, self.rule, settings, waiting=waiting, new=more, ground=ground)
        if waiting is None:
            raise InvalidInputError("the stream has no rows yet; needed: at least 1")
        coreset = self.rule.finish(waiting)
        centers = cluster_coreset(coreset, settings, here.n_workers)[0].centers
        if settings.most > settings.n_clusters:
            centers = follow(here, coreset, centers, settings)
        if earlier is not None:
            earlier = earlier.faded(self.rule.fade(earlier.last_place, waiting.last_place))
        return begun(centers, coreset, waiting, None if earlier is None else self.rule.finish(earlier))

    def known_clusters(self, settings: StreamSettings, executor: Any) -> TrackedClusters:
        """The clusters that have ids, with the rows that no update has counted estimated by the coreset."""
        if self.followed is not None and not self.is_waiting:
            return self.followed.clusters
        with open_executor(executor) as workers, local_executor(workers) as here:
            return self.follow(here, None, settings).clusters

    def updated(self, followed: Followed, n_rows: int, next_row: int) -> Stream:
        """The stream after an update, which has counted all rows."""
        width = max(self.n_features, followed.part.X.shape[1])
        stream = Stream(self.rule, next_row, n_rows, width, self.sparse, self.dtype)
        stream.followed = followed.reduced(self.rule)
        return stream

    def coreset(self) -> Part:
        """Weighted original rows that represent all rows so far; the stream is not changed.

        Raises InvalidInputError: there are no rows of positive weight yet.
        """
        part = self.waiting()
        if self.followed is not None:
            part = self.followed.part if part is None else self.rule.together([self.followed.part, part])
        if part is None or not len(part.row_ids):
            raise InvalidInputError("the stream has no rows of positive weight yet; needed: at least 1")
        return self.rule.finish(part)

    def waiting(self) -> Part | None:
        """The rows that wait for an update, as one part; None if there are none."""
        if not self.is_waiting:
            return None
        with open_executor(1):
            kept = self.tree.part()
            parts = [] if kept is None else [kept]
            for index in sorted(self.pending):
                piece = together(self.pending[index])
                parts.append(self.rule.part(piece.X, piece.row_ids, piece.weights))
            return self.rule.join(parts)

    def merged(self, other: Stream) -> Stream:
        """A new stream of the rows of both, which goes on after the higher row number.

        Raises InvalidParameterError: the other has another rule; InvalidInputError: the rows differ in width or kind.
        """
        if self.sparse is not None and other.sparse is not None:
            self._check_shape(other.sparse, other.n_features)
        both = Stream(
            self.rule,
            max(self.next_row, other.next_row),
            self.n_rows + other.n_rows,
            max(self.n_features, other.n_features),
            self.sparse if other.sparse is None else other.sparse,
            np.promote_types(self.dtype, other.dtype),
            self.tree.merged(other.tree).nodes,
            followed=self.followed if other.followed is None else other.followed,
        )
        if self.followed is not None and other.followed is not None:
            both.followed = merged(self.followed, other.followed, self.rule)
        for stream in (self, other):
            for index in stream.pending:
                both._hold(index, together(stream.pending[index]))
        # parts that will never be complete would pile up
        while len(both.pending) > PART_SIZES:
            both._close(min(both.pending))
        return both

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays for an .npz file, and JSON values, for `restored`."""
        arrays, header = pack(replace(self, dtype=np.dtype(self.dtype).name))
        return arrays, {"format": FORMAT, **header}

    @classmethod
    def restored(cls, arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> Stream:
        """The stream with this `state`; raises ModelFileError if it is damaged, or of another format."""
        try:
            if header["format"] != FORMAT:
                raise ModelFileError(f"format {header['format']!r}, not {FORMAT}")
            if lacking := {each.name for each in fields(cls)} - set(header["value"]):
                raise KeyError(*lacking)
            stream = unpack(cls, (arrays, header))
            stream.dtype = np.dtype(stream.dtype)
            parts: list[Part | Piece] = [*stream.nodes.values(), *chain(*stream.pending.values())]
            if stream.followed is not None:
                stream.followed.check(stream.n_features)
                parts.append(stream.followed.part)
            for part in parts:
                check_rows(part, stream.n_features)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"this is no stream that this release reads: {error}") from error
        return stream

    def _check_shape(self, sparse: bool, width: int) -> None:
        if self.sparse is None:
            return
        if sparse != self.sparse:
            kinds = ("dense", "sparse")
            raise InvalidInputError(f"{kinds[sparse]} rows in a stream of {kinds[self.sparse]} ones; needed: one kind")
        if not sparse and width != self.n_features:
            raise InvalidInputError(f"rows of {width:,} features; the stream has {self.n_features:,}")

    def _hold(self, index: int, piece: Piece) -> None:
        """Keep rows of part `index`; reduce it once it is complete."""
        pieces = self.pending.setdefault(index, [])
        pieces.append(piece)
        while len(pieces) > 1 and len(pieces[-2].row_ids) <= 2 * len(pieces[-1].row_ids):
            last = pieces.pop()
            pieces[-1] = together([pieces[-1], last])
        if sum(len(held.row_ids) for held in pieces) >= self.part_rows:
            self._close(index)

    def _close(self, index: int) -> None:
        piece = together(self.pending.pop(index))
        with open_executor(1):
            self.tree.add(index, piece.X, piece.row_ids, piece.weights)
