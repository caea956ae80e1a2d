"""Blocks that memory does not hold: written to files of their own, read again at every step."""

from __future__ import annotations

import logging
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from streamkm.cluster.rows import Block
from streamkm.core.atomic_io import replace_file
from streamkm.core.matrix import matrix_bytes, pack_matrix, unpack_matrix

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpilledBlock:
    """Where a block lies.

    Attributes
    ----------
    path : str
    """

    path: str

    def load(self) -> Block:
        """Read it."""
        with open(self.path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return Block(unpack_matrix("X", arrays), arrays["d2norms"], arrays["weights"])


Held: TypeAlias = Block | SpilledBlock


def loaded(held: Held) -> Block:
    """The block, from wherever it is."""
    return held.load() if isinstance(held, SpilledBlock) else held


class Spill:
    """Keeps blocks in memory as long as there is room, and the others on disk.

    Parameters
    ----------
    room_bytes : int
        That blocks may take in memory.
    """

    def __init__(self, room_bytes: int):
        self._left = room_bytes
        self._directory: Path | None = None
        self._n_files = 0

    def keep(self, block: Block) -> Held:
        """The block, or where it was written.

        Raises
        ------
        DiskFullError, OutputError
            It cannot be written.
        """
        size = matrix_bytes(block.X) + block.d2norms.nbytes + block.weights.nbytes
        if size <= self._left:
            self._left -= size
            return block
        self._left = 0
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="streamkm-"))
            logger.info("memory is full: further sketched rows go to %s", self._directory)
        path = self._directory / f"{self._n_files}.npz"
        self._n_files += 1
        arrays = {**pack_matrix("X", block.X), "d2norms": block.d2norms, "weights": block.weights}
        replace_file(path, lambda file: np.savez(file, **arrays), size)  # type: ignore[arg-type]
        return SpilledBlock(str(path))

    def close(self) -> None:
        """Remove the files."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
