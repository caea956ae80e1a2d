"""What theorems are asked, what they say, and what follows for the choice of a sketch: values, no formulas."""

from __future__ import annotations

from dataclasses import dataclass, field

EXACT = "the cost of every partition: rows are as they are"
ALL_PARTITIONS = "the cost of every partition into k clusters, within 1 +- eps"
UP_TO_A_CONSTANT = "the cost of every partition into k clusters, within 1 + eps, but for a constant that all share"
BEST_PARTITION = "the cost of the sketch's best partition, within a factor 3 + eps of the least"
BEST_WITHIN_2_EPS = "the cost of the sketch's best partition, within a factor 2 + eps of the least"
BEST_WITHIN_2 = "the cost of the sketch's best partition, within a factor 2 of the least"
BEST_WITHIN_1_EPS = "the cost of the sketch's best partition, within a factor 1 + eps of the least"
NOTHING_FOR_MANY_CLUSTERS = "what `ALL_PARTITIONS` says, but not for all rows: fails where k^2 is large beside 6"


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of components and what is known of it.

    Attributes
    ----------
    theorem : str
        Its name: `bounds.sizing` takes it.
    n_components : int
        m.
    formula : str
        In the letters k, d, n, eps, delta.
    source : str
        The paper, and what of the formula is not from it.
    keeps : str
        What so many components keep.
    by_name : bool
        Whether it is given only where its theorem is asked for: it promises less than others of its sketch.
    sketch : str
        What is to be applied: the sketch asked for, or "identity" where it would have no fewer components than rows
        have features.
    less : tuple of (str, int)
        Sketches that keep as much with fewer components, and how many.
    choices : tuple of SketchChoice
        All sketches that keep the cost of all partitions, the fastest for dense rows first; see `bounds.which_sketch`.
    """

    theorem: str
    n_components: int
    formula: str
    source: str
    keeps: str = ALL_PARTITIONS
    by_name: bool = False
    sketch: str = ""
    less: tuple[tuple[str, int], ...] = ()
    choices: tuple[SketchChoice, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Case:
    """What formulas are functions of."""

    k: int
    eps: float
    delta: float
    n_rows: int | None
    n_features: int | None

    @property
    def rate(self) -> float:
        """``eps^2 / 2 - eps^3 / 3``: a squared length is kept but with probability 2 exp(-m * rate / 2)."""
        return self.eps**2 / 2 - self.eps**3 / 3


@dataclass(frozen=True, slots=True)
class SketchChoice:
    """A sketch that keeps a promise, and what it takes.

    Attributes
    ----------
    sketch : str
    n_components : int
        m that a theorem asks for; d for "identity".
    theorem : str
    needed : (int, int) or None
        Components that 100 seeds needed, at least and at most, by the ratios measured; None where none were.
    nnz_per_feature : int
        Components that a feature is added to: 0 for all of them.
    microseconds : float
        Of one thread for a row, about: the map, and ten steps of Lloyd's algorithm.
    recommended : bool
        Whether it takes the least time.
    """

    sketch: str
    n_components: int
    theorem: str
    needed: tuple[int, int] | None
    nnz_per_feature: int
    microseconds: float
    recommended: bool = False
