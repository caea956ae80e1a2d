"""Settings of a fit: the user's validated choices, and the named random streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.seeding.init import Starts
from streamkm.sketches import Sketch


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to cluster, validated.

    Attributes
    ----------
    n_clusters, max_iter : int
    n_init : int, "auto" or Starts
    refine : int or "auto"
    tol : float
    init : "k-means++", "k-means||", "ls++", "random", float64 (k, d), or a function that gives centers
    seeds : SeedSequence
        Source of the named random streams.
    sketch : Sketch or None
        Where it was made already.
    spherical : bool
        Whether centers are kept at unit length.
    """

    n_clusters: int
    init: str | NDArray[np.float64] | Callable[..., Any]
    n_init: int | str | Starts
    max_iter: int
    tol: float
    refine: int | str
    seeds: np.random.SeedSequence
    sketch: Sketch | None = None
    spherical: bool = False
    # a name's position sets its seed, so the empty one keeps the results of earlier fits
    streams: ClassVar[tuple[str, ...]] = ("sketch", "sample", "seeding", "search", "coreset", "draws", "", "epochs")

    @property
    def searches(self) -> bool:
        """Whether the start is looked for, and not given or drawn at random."""
        return isinstance(self.init, str) and self.init != "random"

    @property
    def n_refinements(self) -> int:
        """Passes that `refine` asks for after the first, whatever is found."""
        return self.refine if isinstance(self.refine, int) else 0

    def stream(self, name: str) -> np.random.SeedSequence:
        """The random stream of a name of `streams`."""
        index = self.streams.index(name)
        return np.random.SeedSequence(self.seeds.entropy, spawn_key=(*self.seeds.spawn_key, index))

    def seed64(self, name: str) -> int:
        """A seed of 64 bits."""
        return int(self.stream(name).generate_state(1, np.uint64)[0])

    def generator(self, name: str) -> np.random.Generator:
        """A generator of the named stream."""
        return np.random.default_rng(self.stream(name))
