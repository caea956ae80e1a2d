"""Rows gathered by cluster: in memory if there is room, else in temporary files; knows no source."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.sampling.row_sample import stacked, stacked_csr
from streamkm.core.atomic_io import replace_file
from streamkm.core.locks import TemporaryFolder
from streamkm.core.matrix import Matrix, matrix_bytes, pack_matrix, unpack_matrix

ROW_BYTES = 16  # of a row's number and clusters
NUMBERS = ("rows", "labels", "others")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Members:
    """Rows of some clusters."""

    X: Matrix  # ndarray or csr_array (r, d)
    rows: NDArray[np.int64]  # (r,): their numbers
    labels: NDArray[np.int32]  # (r,): their clusters
    others: NDArray[np.int32]  # (r,): clusters that they are guests of; -1 for most

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return matrix_bytes(self.X) + ROW_BYTES * len(self.rows)

    @classmethod
    def joined(cls, parts: Sequence[Members], n_features: int) -> Members:
        """Join members; CSR rows get the width of the data."""
        if not parts:
            none = np.empty(0, np.int32)
            return cls(np.empty((0, n_features), np.float32), np.empty(0, np.int64), none, none)
        matrices = [part.X for part in parts]
        X = stacked(matrices) if isinstance(matrices[0], np.ndarray) else stacked_csr(matrices, n_features)
        return cls(X, *(np.concatenate([getattr(part, name) for part in parts]) for name in NUMBERS))

    def __getitem__(self, chosen: NDArray[np.intp] | slice) -> Members:
        """Select members."""
        return Members(self.X[chosen], *(getattr(self, name)[chosen] for name in NUMBERS))


class Buckets:
    """Members of clusters that share buckets, up to `room_bytes` in memory and in files of up to `piece_bytes`."""

    def __init__(self, n_buckets: int, n_features: int, room_bytes: int, piece_bytes: int):
        self.n_buckets = n_buckets
        self.n_features, self._room_bytes, self.piece_bytes = n_features, room_bytes, piece_bytes
        self._parts: list[list[Members | Path]] = [[] for _ in range(n_buckets)]
        self._held, self.n_bytes = np.zeros(n_buckets, np.int64), np.zeros(n_buckets, np.int64)  # in memory, in all
        self._folder: TemporaryFolder | None = None
        self._n_files = 0

    def add(self, bucket: int, members: Members) -> None:
        """Add members to a bucket; write the largest ones to disk for room. Raises DiskFullError, OutputError."""
        self._parts[bucket].append(members)
        self._held[bucket] += members.n_bytes
        self.n_bytes[bucket] += members.n_bytes
        if self._held.sum() > self._room_bytes:
            for each in np.flatnonzero(self._held >= self._held.max() // 2).tolist():
                self._write(each)

    def parts(self, bucket: int) -> Iterator[Members]:
        """Yield the parts of a bucket, in the order in which they came."""
        return (_read(part) if isinstance(part, Path) else part for part in self._parts[bucket])

    def load(self, bucket: int) -> Members:
        """Load a bucket as one."""
        return Members.joined(list(self.parts(bucket)), self.n_features)

    def drop(self, bucket: int) -> None:
        """Drop a bucket that is no longer needed."""
        for part in self._parts[bucket]:
            if isinstance(part, Path):
                part.unlink(missing_ok=True)
        self._parts[bucket], self._held[bucket] = [], 0

    def close(self) -> None:
        """Remove the files."""
        if self._folder is not None:
            self._folder.close()

    def _write(self, bucket: int) -> None:
        held = [part for part in self._parts[bucket] if not isinstance(part, Path)]
        if self._folder is None:
            self._folder = TemporaryFolder()
            logger.info("memory is full: rows of clusters go to %s", self._folder.path)
        members = Members.joined(held, self.n_features)
        self._parts[bucket] = [part for part in self._parts[bucket] if isinstance(part, Path)]
        step = max(1, len(members.rows) * self.piece_bytes // max(1, members.n_bytes))
        for start in range(0, len(members.rows), step):
            piece = members[np.arange(start, min(start + step, len(members.rows)))]
            path = self._folder.path / f"{self._n_files}.npz"
            self._n_files += 1
            arrays = {**pack_matrix("X", piece.X), **{name: getattr(piece, name) for name in NUMBERS}}
            replace_file(path, partial(np.savez, **arrays), piece.n_bytes)
            self._parts[bucket].append(path)
        self._held[bucket] = 0


def _read(path: Path) -> Members:
    with open(path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    return Members(unpack_matrix("X", arrays), *(arrays[name] for name in NUMBERS))
