"""Endless streams: chunks of any size go in, memory stays flat, centers come out at any moment.

A stream keeps a coreset of original rows and exact totals. Rows are gathered into parts of a fixed number of rows by
their places, so the state is the same, bit for bit, however the rows are cut into chunks. Knows nothing of estimators.
"""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS, add_rows, row_d2norms
from streamkm.cluster.sampling.coreset import Coreset, CoresetRule, Part, default_size
from streamkm.cluster.sampling.coreset_tree import CoresetTree
from streamkm.cluster.tracking.clusters import TrackedClusters
from streamkm.cluster.tracking.followed import Followed, Ground
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.core.matrix import Matrix, matrix_bytes
from streamkm.engine import Executor, local_executor, open_executor
from streamkm.engine.records import pack, unpack
from streamkm.fitting.streams.coreset_centers import Clusters, StreamSettings, cluster_coreset
from streamkm.fitting.streams.follow import FollowSettings, follow
from streamkm.fitting.streams.followed import Step, advanced, begun, moved
from streamkm.fitting.streams.merged import merged
from streamkm.fitting.streams.rows import Piece, Totals, pack_piece, together, unpack_piece
from streamkm.passes.reader import largest_d2, what_is_invalid

FORMAT = 1
PART_SIZES = 2  # rows of a part, in sizes of the coreset
NODE_BYTES = 32 << 20  # that one coreset may take; some log2(rows / part) of them are kept
FEW_ROWS = 64  # up to which a chunk is checked without batches


def stream_size(n_clusters: int, row_bytes: float) -> int:
    """Rows of a stream's coreset: as many as serve k clusters, fewer where they would take more than `NODE_BYTES`."""
    return max(4, 2 * n_clusters, min(default_size(n_clusters), int(NODE_BYTES / max(1.0, row_bytes))))


class Stream:
    """The state of an endless stream of rows.

    Memory is that of two parts of ``PART_SIZES * rule.size`` rows and of at most ``log2(rows / part) + 1`` coresets of
    ``rule.size`` rows. A row costs O(nnz * k) for the rough clusters that its part is drawn by.

    `first_row`: number of the first row. Streams of one rule on several machines whose row numbers do not overlap draw
    independently, and `merged` gives what one stream of all rows would; bit for bit where together they hold all rows
    from one number to another. `tree`: of the parts that are complete. `next_row`: number of the row that comes next.
    `n_rows`: rows taken, those without weight included. `dtype`: of the centers as they are shown; float32 until it is
    set. `followed`: clusters that have ids, with what stands for all rows that were counted in them; None before the
    first update.
    """

    def __init__(self, rule: CoresetRule, *, first_row: int = 0):
        if first_row < 0:
            raise InvalidParameterError(f"first_row={first_row}; needed: an integer from 0")
        self.tree = CoresetTree(rule)
        self.next_row = first_row
        self.n_rows = 0
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self._totals: Totals | None = None
        self._width = 0
        self._sparse: bool | None = None
        self._pending: dict[int, list[Piece]] = {}
        self._found: tuple[Any, Clusters] | None = None
        self.followed: Followed | None = None
        self._from_fit = False

    @property
    def rule(self) -> CoresetRule:
        """How rows are chosen."""
        return self.tree.rule

    @property
    def part_rows(self) -> int:
        """Rows of a part."""
        return PART_SIZES * self.rule.size

    @property
    def n_features(self) -> int:
        """Features of the rows, d; 0 before the first."""
        return self._width

    @property
    def n_bytes(self) -> int:
        """Bytes of the rows that are kept, and of the clusters that have ids."""
        waiting = (piece for pieces in self._pending.values() for piece in pieces)
        held = sum(matrix_bytes(piece.X) + piece.places.nbytes + piece.weights.nbytes for piece in waiting)
        return held + self.tree.n_bytes + (0 if self.followed is None else self.followed.n_bytes)

    @property
    def is_waiting(self) -> bool:
        """Whether there are rows that no update has counted."""
        return bool(self._pending or self.tree.nodes)

    @property
    def is_origin(self) -> bool:
        """Whether there is nothing but the clusters of a fit."""
        return self.followed is not None and self._from_fit and not self.is_waiting

    def add(self, X: Matrix, weights: NDArray[np.float64] = NO_WEIGHTS) -> None:
        """Take rows, at least one; a refused chunk leaves the stream as it was.

        `X`: ndarray or csr_array (n, d), copied. Sparse chunks may differ in width. `weights`: float64 (n,) or (0,),
        not negative. Raises InvalidInputError: for NaN, infinity, another width, or dense rows after sparse ones; names
        the row.
        """
        self._check(X, weights)
        n_rows, done = X.shape[0], 0
        while done < n_rows:
            index = self.next_row // self.part_rows
            taken = min(n_rows - done, (index + 1) * self.part_rows - self.next_row)
            stop = done + taken
            places = np.arange(self.next_row, self.next_row + taken, dtype=np.int64)
            part_weights = weights[done:stop].copy() if len(weights) else np.ones(taken)
            self._hold(index, Piece(X[done:stop].copy(), places, part_weights))
            self.next_row += taken
            done = stop
        self.n_rows += n_rows
        self._sparse, self._width = sp.issparse(X), max(self._width, X.shape[1])
        self._found = None

    def begin(self, clusters: TrackedClusters, n_rows: int, *, dtype: Any, sparse: bool) -> None:
        """Take clusters that were found elsewhere, whose means stand for their rows.

        `n_rows`: rows that are counted in them. `dtype`: of the rows of the stream. `sparse`: whether these are sparse.
        """
        kept = clusters.counts > 0
        X = clusters.means[kept].astype(dtype)
        places = np.arange(self.next_row, self.next_row + len(X), dtype=np.int64)
        part = self.rule.part(sp.csr_array(X) if sparse else X, places, clusters.counts[kept])
        self.next_row += len(X)
        self.n_rows, self._sparse, self._width = n_rows, sparse, X.shape[1]
        part = replace(part, n_rows=n_rows, depth=1)
        self.followed = Followed(clusters, part, clusters.ids[kept], means=places, labelled_by=clusters)
        self._from_fit = True

    def with_clusters(self, followed: Followed) -> Stream:
        """The same with other clusters."""
        stream = copy(self)
        stream.followed = followed
        return stream

    def follow(
        self,
        here: Executor,
        more: Part | None,
        settings: FollowSettings,
        starts: StreamSettings,
        earlier: Part | None = None,
        ground: Ground | None = None,
    ) -> Step:
        """Find the clusters after an update; the stream is not changed.

        `here`: threads of this process. `more`: rows drawn from those of the update; None: the stream has taken these.
        `earlier`: if the stream has taken the rows of the update: those that waited before. `ground`: new groups in
        `more`, far from all clusters.
        """
        waiting = self.waiting()
        if self.followed is not None:
            return advanced(here, self.followed, self.rule, settings, waiting=waiting, new=more, ground=ground)
        if waiting is None:
            raise InvalidInputError("the stream has no rows yet; needed: at least 1")
        coreset = self.rule.finish(waiting)
        centers = cluster_coreset(coreset, starts, here.n_workers).centers
        if settings.most > settings.fewest:
            centers = follow(here, coreset, centers, settings)
        if earlier is None:
            return begun(centers, coreset, waiting, None)
        fade = self.rule.fade(earlier.last_place, waiting.last_place)
        return begun(centers, coreset, waiting, self.rule.finish(earlier.faded(fade)))

    def moved(self, more: Part, counts: NDArray[np.float64], sums: NDArray[np.float64]) -> Step:
        """As `follow`, of few rows that are like those before; see `followed.moved`."""
        assert self.followed is not None
        return moved(self.followed, more, self.rule, counts, sums)

    def known_clusters(self, settings: FollowSettings, starts: StreamSettings, executor: Any) -> TrackedClusters:
        """The clusters that have ids, with rows that no update has counted, as far as the coreset tells."""
        if self.followed is not None and not self.is_waiting:
            return self.followed.clusters
        with open_executor(executor) as workers, local_executor(workers) as here:
            return self.follow(here, None, settings, starts).clusters

    def updated(self, followed: Followed, n_rows: int, next_row: int) -> Stream:
        """The stream after an update, which has counted all rows."""
        stream = Stream(self.rule, first_row=next_row)
        stream.followed = followed.reduced(self.rule)
        stream.n_rows, stream.dtype, stream._sparse = n_rows, self.dtype, self._sparse
        stream._width = max(self._width, followed.part.X.shape[1])
        return stream

    def totals(self) -> Totals:
        """Exact sums over all rows.

        Raises InvalidInputError: if there are no rows yet.
        """
        totals = self._totals
        for index in sorted(self._pending):
            totals = self._plus(totals, self._joined(index))
        if self.followed is not None:
            clusters, part = self.followed.clusters, self.followed.part
            sums = clusters.counts @ clusters.means
            known = Totals(part.n_rows, float(clusters.counts.sum()), sums, part.last_place)
            totals = known if totals is None else known.plus(totals, self.rule.half_life)
        if totals is None:
            raise InvalidInputError("the stream has no rows yet; needed: at least 1")
        return totals

    def coreset(self) -> Coreset:
        """Weighted original rows that stand for all rows so far; the stream is not changed.

        Raises InvalidInputError: if there are no rows of positive weight yet.
        """
        part = self.waiting()
        if self.followed is not None:
            part = self.followed.part if part is None else self.rule.together([self.followed.part, part])
        if part is None or not len(part.places):
            raise InvalidInputError("the stream has no rows of positive weight yet; needed: at least 1")
        return self.rule.finish(part)

    def waiting(self) -> Part | None:
        """The rows that wait for an update, as one part; None if there are none."""
        if not self.is_waiting:
            return None
        with open_executor(1):
            kept = self.tree.part()
            parts = [] if kept is None else [kept]
            for index in sorted(self._pending):
                piece = self._joined(index)
                parts.append(self.rule.part(piece.X, piece.places, piece.weights))
            return self.rule.join(parts)

    def clusters(self, settings: StreamSettings, executor: Any = "auto") -> Clusters:
        """Cluster the coreset; see `cluster_coreset`. The last answer is kept until the next rows come."""
        init = settings.init.tobytes() if isinstance(settings.init, np.ndarray) else settings.init
        key = (init, settings.n_clusters, settings.n_init, settings.max_iter, settings.tol, settings.seeds.entropy)
        if self._found is None or self._found[0] != key:
            self._found = key, cluster_coreset(self.coreset(), settings, executor)
        return self._found[1]

    def merged(self, other: Stream) -> Stream:
        """A stream of the rows of both; neither is changed. It goes on after the higher row number.

        Raises InvalidParameterError: if the other was made by another rule; InvalidInputError: if the rows differ in
        width or kind.
        """
        if self._sparse is not None and other._sparse is not None:
            self._check_shape(other._sparse, other._width)
        both = Stream(self.rule)
        both.tree = self.tree.merged(other.tree)
        both.next_row = max(self.next_row, other.next_row)
        both.n_rows = self.n_rows + other.n_rows
        both.dtype = np.promote_types(self.dtype, other.dtype)
        both._sparse = self._sparse if other._sparse is None else other._sparse
        both._width = max(self._width, other._width)
        both.followed = self.followed if other.followed is None else other.followed
        if self.followed is not None and other.followed is not None:
            both.followed = merged(self.followed, other.followed, self.rule)
        for totals in (self._totals, other._totals):
            if totals is not None:
                both._totals = totals if both._totals is None else both._totals.plus(totals, self.rule.half_life)
        for stream in (self, other):
            for index in stream._pending:
                both._hold(index, stream._joined(index))
        # parts that will never be complete would pile up
        while len(both._pending) > PART_SIZES:
            both._close(min(both._pending))
        return both

    def state(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays, for an .npz file, and JSON values that `restored` makes the same stream of."""
        arrays: dict[str, NDArray[Any]] = {}
        nodes = []
        for number, ((level, index), part) in enumerate(self.tree.nodes.items()):
            pack_piece(arrays, f"node{number}_", Piece(part.X, part.places, part.weights), part.keys)
            limit = None if np.isinf(part.limit) else part.limit
            nodes.append([level, index, part.depth, part.last_place, part.n_rows, part.total_weight, limit])
        for number, index in enumerate(self._pending):
            pack_piece(arrays, f"pending{number}_", self._joined(index))
        if self._totals is not None:
            arrays["sums"] = self._totals.sums
        followed, meta = pack(self.followed)
        arrays |= {f"followed_{name}": array for name, array in followed.items()}
        rule = asdict(self.rule)
        header = {
            "format": FORMAT,
            "rule": {**rule, "half_life": None if np.isinf(rule["half_life"]) else rule["half_life"]},
            "nodes": nodes,
            "pending": list(self._pending),
            "totals": None
            if self._totals is None
            else [self._totals.n_rows, self._totals.weight, self._totals.last_place],
            "next_row": self.next_row,
            "n_rows": self.n_rows,
            "n_features": self._width,
            "sparse": self._sparse,
            "dtype": self.dtype.name,
            "followed": meta,
            "from_fit": self._from_fit,
        }
        return arrays, header

    @classmethod
    def restored(cls, arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> Stream:
        """Make the stream of which `state` gave these.

        Raises ModelFileError: if they are damaged, or of a later format.
        """
        try:
            if header["format"] != FORMAT:
                raise ModelFileError(f"format {header['format']!r}, not {FORMAT}")
            rule = dict(header["rule"])
            half_life = np.inf if rule["half_life"] is None else float(rule["half_life"])
            stream = cls(CoresetRule(**{**rule, "half_life": half_life}))
            width = stream._width = int(header["n_features"])
            stream._sparse, stream.dtype = header["sparse"], np.dtype(header["dtype"])
            stream.next_row, stream.n_rows = int(header["next_row"]), int(header["n_rows"])
            for number, (level, index, depth, last_place, n_rows, weight, limit) in enumerate(header["nodes"]):
                piece, keys = unpack_piece(arrays, f"node{number}_", width), arrays[f"node{number}_keys"]
                if keys.dtype != np.float64 or keys.shape not in ((0,), piece.places.shape):
                    raise ValueError(f"keys of {keys.dtype} {keys.shape}")
                known = np.inf if limit is None else float(limit)
                stream.tree.nodes[int(level), int(index)] = Part(
                    piece.X, piece.weights, piece.places, keys, known, int(depth), int(last_place), int(n_rows),
                    float(weight),
                )  # fmt: skip
            for number, index in enumerate(header["pending"]):
                stream._pending[int(index)] = [unpack_piece(arrays, f"pending{number}_", width)]
            if header["totals"] is not None:
                n_rows, weight, last_place = header["totals"]
                stream._totals = Totals(int(n_rows), float(weight), arrays["sums"], int(last_place))
            if header["followed"]["value"] is not None:
                parts = {name[9:]: array for name, array in arrays.items() if name.startswith("followed_")}
                stream.followed = unpack(Followed, (parts, header["followed"]))
                stream.followed.check(width)
                stream._from_fit = bool(header["from_fit"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"this is no stream that this release reads: {error}") from error
        return stream

    def _check(self, X: Matrix, weights: NDArray[np.float64]) -> None:
        if X.shape[0] == 0:
            raise InvalidInputError("a chunk of 0 rows; needed: at least 1")
        self._check_shape(sp.issparse(X), X.shape[1])
        if len(weights) not in (0, X.shape[0]):
            raise InvalidInputError(f"sample_weight has {len(weights):,} values; the chunk has {X.shape[0]:,} rows")
        if isinstance(X, np.ndarray) and X.shape[0] <= FEW_ROWS:
            rows = X.astype(np.float64)
            d2norms = np.einsum("ij,ij->i", rows, rows)
        else:
            d2norms = row_d2norms(X)
        valid = d2norms <= largest_d2(X)  # false for NaN too
        if not valid.all():
            row = int(np.argmin(valid))
            what = what_is_invalid(X, row, float(d2norms[row]))
            raise InvalidInputError(f"{what} in row {self.next_row + row:,} of the stream")

    def _check_shape(self, sparse: bool, width: int) -> None:
        if self._sparse is None:
            return
        if sparse != self._sparse:
            kinds = ("dense", "sparse")
            raise InvalidInputError(f"{kinds[sparse]} rows in a stream of {kinds[self._sparse]} ones; needed: one kind")
        if not sparse and width != self._width:
            raise InvalidInputError(f"rows of {width:,} features; the stream has {self._width:,}")

    def _hold(self, index: int, piece: Piece) -> None:
        """Keep rows of part `index`; reduce it once it is complete."""
        pieces = self._pending.setdefault(index, [])
        pieces.append(piece)
        while len(pieces) > 1 and len(pieces[-2].places) <= 2 * len(pieces[-1].places):
            last = pieces.pop()
            pieces[-1] = together([pieces[-1], last])
        if sum(len(held.places) for held in pieces) >= self.part_rows:
            self._close(index)

    def _close(self, index: int) -> None:
        piece = self._joined(index)
        self._totals = self._plus(self._totals, piece)
        with open_executor(1):
            self.tree.add(index, piece.X, piece.places, piece.weights)
        del self._pending[index]

    def _joined(self, index: int) -> Piece:
        return together(self._pending[index])

    def _plus(self, totals: Totals | None, piece: Piece) -> Totals:
        last = int(piece.places.max())
        decayed = piece.weights * np.exp2((piece.places - last) / self.rule.half_life)
        sums, counts = np.zeros((1, piece.X.shape[1])), np.zeros(1)
        add_rows(piece.X, decayed, np.zeros(len(decayed), np.int32), sums, counts)
        added = Totals(len(decayed), float(counts[0]), sums[0], last)
        return added if totals is None else totals.plus(added, self.rule.half_life)
