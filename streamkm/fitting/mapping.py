"""Records of a kernel fit in a checkpoint: the kernel's width, landmarks, the map to features.

A kernel that is a Python function is not written: the run that continues is given it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streamkm.sketches import GramFit, Kernel, Sketch
from streamkm.sketches.kernel_columns import KernelFunction


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Kernel parameters as given; `gamma` is a number, None, "auto", "neighbors" or "scale"."""

    name: str | KernelFunction
    gamma: float | str | None
    factor: float
    degree: int
    coef0: float

    def with_gamma(self, gamma: float) -> Kernel:
        """The kernel of a width that was found."""
        return Kernel(self.name, gamma, self.degree, float(self.coef0))


@dataclass(frozen=True, slots=True)
class FoundKernel:
    """What a fit finds of its kernel."""

    gamma: float
    trace: float | None = None  # sum of k(x, x) over all rows, where the sample holds all and it is not their number


@dataclass(frozen=True, slots=True)
class Mapping:
    """A kernel and its map, with a root and a rank while sums over rows are needed to find the projection."""

    kernel: FoundKernel
    map: Sketch
    root: NDArray[np.float64] | None = None
    rank: int | None = None

    @classmethod
    def of(cls, kernel: FoundKernel, found: Sketch | GramFit) -> Mapping:
        """A mapping from a map, or from the round that finds its projection."""
        if isinstance(found, GramFit):
            return cls(kernel, found.map, found.root, found.rank)
        return cls(kernel, found)

    @property
    def found(self) -> Sketch | GramFit:
        """The map, or the round of sums over rows that finds its projection."""
        return self.map if self.root is None or self.rank is None else GramFit(self.map, self.root, self.rank)

    def writable(self) -> Mapping:
        """The mapping without a Python function."""
        return replace(self, map=self.map.writable())

    def restored(self, rule: KernelRule) -> Mapping:
        """The mapping that `writable` was called of."""
        return replace(self, map=given_back(self.map, rule))


def given_back(sketch: Sketch, rule: KernelRule) -> Sketch:
    """The map that was saved as `Sketch.writable` gives it."""
    return sketch.with_function(rule.name) if callable(rule.name) else sketch
