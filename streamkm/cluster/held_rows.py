"""Blocks that an executor holds in memory, in one growing file, or on workers; passes read them through here.

Knows neither what is gathered nor where rows came from.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import Block, row_d2norms
from streamkm.core.atomic_io import writing
from streamkm.core.exceptions import CheckpointError
from streamkm.core.locks import TemporaryFolder
from streamkm.core.matrix import as_working, matrix_bytes, pack_matrix, unpack_matrix
from streamkm.engine import Executor, Large
from streamkm.engine.checkpoint import Checkpoint
from streamkm.engine.passes import Readable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpilledBlock:
    """The place of a block in a file."""

    path: Path
    start: int  # byte of the file

    def load(self) -> Block:
        """Read it."""
        with open(self.path, "rb") as file:
            file.seek(self.start)
            return _read(file)


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """A block of dense rows that are read again from their source, not copied."""

    read: Callable[[], Any]  # gives the rows
    weights: NDArray[np.float64]

    def load(self) -> Block:
        """Read it."""
        X = as_working(self.read())
        return Block(X, row_d2norms(X), self.weights)


Held: TypeAlias = Block | SpilledBlock | SourceBlock


def loaded(held: Held) -> Block:
    """The block, from wherever it is."""
    return held if isinstance(held, Block) else held.load()


class Spill:
    """Keeps blocks in memory up to `room_bytes`, the others in a file; a checkpoint keeps those of a pass.

    `checkpoint`: its directory holds the file, else a temporary folder. `file`: None while all blocks are in memory
    only.
    """

    def __init__(self, room_bytes: float, checkpoint: Checkpoint | None = None):
        self._room = self._left = room_bytes
        self._checkpoint = checkpoint
        self._folder: TemporaryFolder | None = None
        self._path: Any = None
        self.file: Any = None
        self._unwritten: list[Block] | None = None  # blocks in memory that a record needs; None outside such a pass

    def begin(self, name: str, n_bytes: int) -> bool:
        """Begin a pass named in a record, after `n_bytes` of an earlier run; False if these are gone."""
        assert self._checkpoint is not None
        if self._path is not None:
            self._path.unlink(missing_ok=True)  # of the pass before, which this one replaces
        self.close()
        self._left, self._unwritten, self._path = self._room, [], self._checkpoint.growing(name)
        with writing(self._path):
            if (
                n_bytes
                and self._path.is_file()
                and not self._path.is_symlink()
                and self._path.stat().st_size >= n_bytes
            ):
                self.file = open(self._path, "r+b")  # noqa: SIM115 - closed by `close`
                return True
            self._path.unlink(missing_ok=True)
        return not n_bytes

    def restored(self, n_blocks: int) -> Iterator[tuple[Held, Block]]:
        """The first blocks of the file with their handles; the file is cut off behind them."""
        for _ in range(n_blocks):
            start = self.file.tell()
            try:
                block = _read(self.file)
            except (ValueError, KeyError, EOFError) as error:
                raise CheckpointError(f"{self._path} is damaged ({error}); remove the checkpoint") from error
            yield block if self._fits(block) else SpilledBlock(self._path, start), block
        if self.file is not None:
            self.file.truncate()

    def keep(self, block: Block, again: Callable[[], Any] | None = None) -> Held:
        """Keep a block; without room in memory, `again` reads its rows later, or it is written.

        Raises DiskFullError, OutputError: it cannot be written.
        """
        if not self._fits(block):
            if again is not None:
                return SourceBlock(again, block.weights)
            self._write_behind()
            return self._write(block)
        if self._unwritten is not None and again is None:
            self._unwritten.append(block)
        return block

    def sync(self) -> int:
        """Write all blocks of the pass to the disk; return the file's size."""
        self._write_behind()
        if self.file is None:
            return 0
        with writing(self._path):
            os.fsync(self.file.fileno())
            return int(self.file.tell())

    def end(self) -> None:
        """End the pass: no record has blocks kept from now on."""
        self._unwritten = None

    def close(self) -> None:
        """Close the file, and remove it unless a checkpoint holds it."""
        if self.file is not None:
            self.file.close()
        if self._folder is not None:
            self._folder.close()
        self.file = self._folder = self._path = None

    def _fits(self, block: Block) -> bool:
        size = _bytes_of(block)
        fits = size <= self._left
        self._left = self._left - size if fits else 0
        return fits

    def _write_behind(self) -> None:
        """Write the blocks that are only in memory, which precede the next one."""
        while self._unwritten:
            self._write(self._unwritten.pop(0))

    def _write(self, block: Block) -> SpilledBlock:
        if self._path is None:
            self._folder = TemporaryFolder()
            self._path = self._folder.path / "rows"
        with writing(self._path, _bytes_of(block)):
            if self.file is None:
                logger.info("sketched rows go to %s", self._path)
                self.file = open(self._path, "x+b")  # noqa: SIM115 - closed by `close`
            start = self.file.tell()
            arrays = {**pack_matrix("X", block.X), "d2norms": block.d2norms, "weights": block.weights}
            for array in (np.array([*arrays]), *arrays.values()):
                np.save(self.file, array)
            self.file.flush()
        return SpilledBlock(self._path, start)


def _bytes_of(block: Block) -> int:
    return matrix_bytes(block.X) + block.d2norms.nbytes + block.weights.nbytes


def _read(file: BinaryIO) -> Block:
    arrays = {str(name): np.load(file) for name in np.load(file)}
    return Block(unpack_matrix("X", arrays), arrays["d2norms"], arrays["weights"])


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A held block as a pass gets it."""

    block: Block
    place: int = 0  # of its first row, where row ids were asked for
    labels: NDArray[Any] | None = None  # integers (n,) or None, what an earlier pass found for its rows


class HeldReader:
    """Loads the block of an item, from wherever it is."""

    def read(self, item: Any) -> HeldBlock:
        """Load the block; `item` is its handle, or a list of its handle, place and labels."""
        handle, *beside = item if isinstance(item, list) else [item]
        return HeldBlock(loaded(handle), *beside)


@dataclass(frozen=True, slots=True)
class HeldRows(Readable):
    """Held blocks as `engine.passes` reads them: each as a `HeldBlock`."""

    handles: Sequence[Any]  # blocks, where they were written, or futures
    row_ids: Sequence[int] | None = None  # sequence of int, optional, of the first row of each block
    # sequence of integers (n,), their handles, or None, optional, for the rows of each block; each entry is looked up
    # only when its block is next. Requires `row_ids`
    labels: Sequence[Any] | None = None
    takes_memory: Large = None  # "state", "items" or None, see `Executor.fold`

    @property
    def n_items(self) -> int:
        """Blocks."""
        return len(self.handles)

    def items(self, executor: Executor) -> Iterator[Any]:  # noqa: ARG002 - they are where they are
        """The handles, each with its place and labels if there are row ids."""
        if self.row_ids is None:
            return iter(self.handles)
        labels = [None] * len(self.handles) if self.labels is None else self.labels
        return map(list, zip(self.handles, self.row_ids, labels, strict=True))

    def reader(self, executor: Executor) -> HeldReader:  # noqa: ARG002
        """The loader of blocks."""
        return HeldReader()

    def large(self, state_bytes: float) -> Large:  # noqa: ARG002
        """The part that takes memory, as `Executor.fold` wants it."""
        return self.takes_memory
