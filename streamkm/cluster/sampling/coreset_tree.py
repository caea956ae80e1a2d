"""The tree that coresets are joined in: one pass, memory that grows with the logarithm of the number of parts.

Never sees a source or a file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.sampling.coreset import CoresetRule, Part
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.matrix import Matrix


@dataclass(eq=False, repr=False)
class CoresetTree:
    """Joins parts, two neighbours at a time, whatever order they come in.

    A node of level l stands for parts ``i 2^l`` to ``(i + 1) 2^l - 1``; it is made as soon as both of its halves
    are there. So the nodes are a function of which parts came; at most ``log2(parts) + 1`` of them where those
    are consecutive.
    """

    rule: CoresetRule
    nodes: dict[tuple[int, int], Part] = field(default_factory=dict)

    def add(self, index: int, X: Matrix, places: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        """Take the rows of part number `index`; as for `CoresetRule.part`."""
        self.insert(self.rule.part(X, places, weights), index)

    def insert(self, part: Part, index: int, level: int = 0) -> None:
        """Take a part, or a node of another tree of the same rule. A second one of the same number joins the first."""
        while True:
            same = self.nodes.pop((level, index), None)
            if same is not None:
                part = self.rule.join([same, part])
            other = self.nodes.pop((level, index ^ 1), None)
            if other is None:
                self.nodes[level, index] = part
                return
            part = self.rule.join([other, part] if index & 1 else [part, other])
            level, index = level + 1, index >> 1

    def merged(self, other: CoresetTree) -> CoresetTree:
        """A tree of the parts of both; neither is changed.

        Raises InvalidParameterError: if the other has another rule.
        """
        if other.rule != self.rule:
            raise InvalidParameterError(f"coresets by different rules: {self.rule} and {other.rule}; needed: the same")
        tree = CoresetTree(self.rule, dict(self.nodes))
        tree.absorb(other)
        return tree

    def absorb(self, other: CoresetTree) -> None:
        """Take the parts of another tree of the same rule, which is not changed."""
        for (level, index), part in sorted(other.nodes.items(), key=_first_part):
            self.insert(part, index, level)

    def part(self) -> Part | None:
        """All rows so far as one part; None if there are none.

        Nodes are joined two at a time, the last and smallest first: beside them there is room for one join only.
        """
        parts = [part for _, part in sorted(self.nodes.items(), key=_first_part)]
        while len(parts) > 1:
            last = parts.pop()
            parts[-1] = self.rule.join([parts[-1], last])
        return parts[0] if parts else None

    @property
    def n_bytes(self) -> int:
        """Bytes in memory."""
        return sum(part.n_bytes for part in self.nodes.values())

    def __sizeof__(self) -> int:
        """As `n_bytes`: by it, Dask decides what to move and to spill."""
        return self.n_bytes


def _first_part(item: tuple[tuple[int, int], Part]) -> tuple[int, int]:
    (level, index), _ = item
    return index << level, level
