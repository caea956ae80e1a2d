"""How what a kernel fit has found looks in a checkpoint: the kernel's width, landmarks, the map to features.

A kernel that is a Python function is not written: the run that continues is given it again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.passes.resume import Record
from streamkm.sketches import GramFit, Kernel, KernelMap, Sketch, sketch_from_dict
from streamkm.sketches.kernel_columns import KernelFunction

MAP_PREFIX, ROOT = "map.", "root"
STAND_IN = "rbf"  # the name that a function is written under


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
    """A kernel and what is known of its map.

    Attributes
    ----------
    kernel : Kernel
    found : Sketch or GramFit
        The map, or the round of sums over rows that finds its projection.
    """

    kernel: Kernel
    found: Sketch | GramFit

    def pack(self) -> Record:
        """As a record."""
        arrays: dict[str, NDArray[Any]] = {}
        meta: dict[str, Any] = {"gamma": float(self.kernel.gamma), "rank": None}
        sketch: Any = self.found
        if isinstance(self.found, GramFit):
            sketch, arrays[ROOT], meta["rank"] = self.found.map, self.found.root, self.found.rank
        sketch = writable(sketch)
        arrays |= {MAP_PREFIX + name: array for name, array in sketch.arrays().items()}
        return arrays, meta | {"map": sketch.to_dict()}

    @classmethod
    def unpack(cls, record: Record | None, rule: KernelRule) -> Mapping | None:
        """The inverse of `pack`, for the parameters of the same run."""
        if record is None:
            return None
        arrays, meta = record
        parts = {name.removeprefix(MAP_PREFIX): a for name, a in arrays.items() if name.startswith(MAP_PREFIX)}
        found: Any = given_back(sketch_from_dict(meta["map"], parts), rule)
        if meta["rank"] is not None:
            found = GramFit(found, np.asarray(arrays[ROOT]), int(meta["rank"]))
        return cls(rule.with_gamma(meta["gamma"]), found)


def writable(sketch: Sketch) -> Sketch:
    """The same map, a function in it exchanged for a name."""
    if isinstance(sketch, KernelMap) and callable(sketch.kernel):
        return replace(sketch, kernel=STAND_IN)
    return sketch


def given_back(sketch: Sketch, rule: KernelRule) -> Sketch:
    """The inverse of `writable`."""
    if isinstance(sketch, KernelMap) and callable(rule.name):
        return replace(sketch, kernel=rule.name)
    return sketch
