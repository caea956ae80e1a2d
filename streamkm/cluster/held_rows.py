"""Blocks that an executor holds, as `engine.passes` reads them: every step and every draw over blocks goes through it.

Blocks lie in memory, in files of their own, or on workers. Knows neither what is gathered nor where rows came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from streamkm.cluster.rows import Block
from streamkm.cluster.spill import loaded
from streamkm.engine import Executor, Large
from streamkm.engine.passes import Readable


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A held block as a pass gets it."""

    block: Block
    place: int = 0  # of its first row, where places were asked for
    labels: NDArray[Any] | None = None  # integers (n,) or None, what an earlier pass found for its rows


class HeldReader:
    """Loads the block of an item, from wherever it is."""

    def read(self, item: Any) -> HeldBlock:
        """The block; `item` is its handle, or a list of its handle, place and labels."""
        handle, *beside = item if isinstance(item, list) else [item]
        return HeldBlock(loaded(handle), *beside)


@dataclass(frozen=True, slots=True)
class HeldRows(Readable):
    """Held blocks as `engine.passes` reads them: each as a `HeldBlock`."""

    handles: Sequence[Any]  # blocks, where they were written, or futures
    places: Sequence[int] | None = None  # sequence of int, optional, of the first row of each block
    # sequence of integers (n,), their handles, or None, optional, for the rows of each block; each entry is looked up
    # only when its block is next. Requires `places`
    labels: Sequence[Any] | None = None
    takes_memory: Large = None  # "state", "items" or None, see `Executor.fold`

    @property
    def n_items(self) -> int:
        """Blocks."""
        return len(self.handles)

    def items(self, executor: Executor) -> Iterator[Any]:  # noqa: ARG002 - they are where they are
        """The handles, each with its place and labels where there are places."""
        if self.places is None:
            return iter(self.handles)
        labels = [None] * len(self.handles) if self.labels is None else self.labels
        return map(list, zip(self.handles, self.places, labels, strict=True))

    def reader(self, executor: Executor) -> HeldReader:  # noqa: ARG002
        """What loads blocks."""
        return HeldReader()

    def large(self, state_bytes: float) -> Large:  # noqa: ARG002
        """What takes memory."""
        return self.takes_memory
