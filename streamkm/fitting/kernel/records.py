"""Records of a kernel fit in a checkpoint: the kernel's width, landmarks, the map to features.

A kernel that is a Python function is not written: the run that continues is given it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.sketches import GramFit, Kernel, Sketch
from streamkm.sketches.kernel_columns import KernelFunction


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Kernel parameters as given; `gamma` None: by the rule, times `factor`; "scale": as scikit-learn's."""

    name: str | KernelFunction
    gamma: float | str | None
    factor: float
    degree: int
    coef0: float

    def with_gamma(self, gamma: float) -> Kernel:
        """The kernel of a width that was found."""
        return Kernel(self.name, gamma, self.degree, float(self.coef0))


@dataclass(frozen=True, slots=True)
class Mapping:
    """A kernel and what is known of its map."""

    kernel: Kernel
    found: Sketch | GramFit  # the map, or the round of sums over rows that finds its projection

    def saved(self) -> SavedMapping:
        """What a checkpoint holds."""
        found, gamma = self.found, float(self.kernel.gamma)
        if isinstance(found, GramFit):
            return SavedMapping(gamma, found.map.writable(), found.root, found.rank)
        return SavedMapping(gamma, found.writable())


@dataclass(frozen=True, slots=True)
class SavedMapping:
    """A `Mapping` in a checkpoint; a round of sums has a root and a rank, too."""

    gamma: float
    map: Sketch
    root: NDArray[np.float64] | None = None
    rank: int | None = None

    def restored(self, rule: KernelRule) -> Mapping:
        """The mapping, for the parameters of the same run."""
        found: Any = given_back(self.map, rule)
        if self.root is not None and self.rank is not None:
            found = GramFit(found, self.root, self.rank)
        return Mapping(rule.with_gamma(self.gamma), found)


def given_back(sketch: Sketch, rule: KernelRule) -> Sketch:
    """The map that was saved as `Sketch.writable` gives it."""
    return sketch.with_function(rule.name) if callable(rule.name) else sketch
