"""Which sketch for which promise: what each theorem asks for, what seeds needed, and what it costs.

Pure functions of k, eps, delta and the shape of the rows. The figures measured are those of
``tests/benchmarks/results/sketch_sizes.csv``, which a test recomputes.
"""

from __future__ import annotations

from streamkm.sketches.countsketch import DENSE_COMPONENTS, MAX_PER_FEATURE
from streamkm.sketches.theory.records import ALL_PARTITIONS, EXACT, Bound, Case, SketchChoice
from streamkm.sketches.theory.theorems import FORMULAS, blocks_of_theorem

RATIOS = {
    "countsketch": (2.0, 2.8),
    "sparse-jl": (2.8, 15.9),
    "signs": (1.4, 2.8),
    "gaussian": (1.4, 2.0),
    "sparse": (1.4, 2.0),
    "hadamard": (254.3, 255.2),
}
"""Components that theorems ask for over those that kept adversaries in 90 of 100 seeds: the least and the largest."""
MAP_NS = {"signs": 0.06, "sparse": 0.4, "gaussian": 1.1, "hadamard": 0.3}
"""Nanoseconds of one thread for each stored entry and component, or butterfly of the Hadamard transform."""
HASHED_NS, DENSE_STEP_NS, SPARSE_STEP_NS = 1.5, 0.02, 0.3  # an entry hashed; a center and an entry in a step
STEPS = 10  # of Lloyd's algorithm


def smallest(sketch: str, case: Case) -> Bound:
    """The smallest bound that promises all that is known of a sketch."""
    return min((bound for bound in FORMULAS[sketch](case) if not bound.by_name), key=lambda bound: bound.n_components)


def sketch_choices(case: Case, nnz: float | None = None) -> tuple[SketchChoice, ...]:
    """Sketches that keep the cost of all partitions with fewer components than features, the fastest first.

    Parameters
    ----------
    case : Case
    nnz : float, optional
        Stored entries of a row; None: rows are dense.

    Returns
    -------
    tuple of SketchChoice
        With "identity", where d is known.
    """
    found = []
    for sketch in FORMULAS:
        if sketch.startswith("hadamard") and case.n_features is None:
            continue
        if sketch == "sparse-jl" and blocks_of_theorem(case) > MAX_PER_FEATURE:
            continue
        bound = smallest(sketch, case)
        keeps = bound.keeps == ALL_PARTITIONS and bound.theorem != "rank"  # "rank" says how few rows there are
        if keeps and (case.n_features is None or bound.n_components < case.n_features):
            found.append(_choice(sketch, bound, case, nnz))
    if case.n_features is not None:
        exact = Bound("none", case.n_features, "d", "", EXACT)
        found.append(_choice("identity", exact, case, nnz))
    found.sort(key=lambda choice: choice.microseconds)
    return tuple(_recommended(choice) if choice is found[0] else choice for choice in found)


def cheapest_sketch(case: Case, nnz: float | None = None) -> SketchChoice | None:
    """The fastest sketch that keeps the promise with fewer components than features; None if there is none."""
    sketches = (choice for choice in sketch_choices(case, nnz) if choice.sketch != "identity")
    return next(sketches, None)


def _recommended(choice: SketchChoice) -> SketchChoice:
    values = (choice.sketch, choice.n_components, choice.theorem, choice.needed, choice.nnz_per_feature)
    return SketchChoice(*values, choice.microseconds, recommended=True)


def _choice(sketch: str, bound: Bound, case: Case, nnz: float | None) -> SketchChoice:
    m, needed = bound.n_components, None
    if sketch in RATIOS:
        low, high = RATIOS[sketch]
        needed = (max(1, round(m / high)), max(1, round(m / low)))
    per_feature = {"countsketch": 1, "hadamard-countsketch": 1, "identity": 1}.get(sketch, 0)
    per_feature = blocks_of_theorem(case) if sketch == "sparse-jl" else per_feature
    nanoseconds = _map_ns(sketch, m, per_feature, case, nnz) + STEPS * case.k * _step_ns(sketch, m, per_feature, nnz)
    return SketchChoice(sketch, m, bound.theorem, needed, per_feature, round(nanoseconds / 1000, 2))


def _map_ns(sketch: str, m: int, per_feature: int, case: Case, nnz: float | None) -> float:
    """Nanoseconds to sketch a row."""
    entries = nnz or case.n_features or m
    if sketch == "identity":
        return 0.0
    if sketch.startswith("hadamard"):
        padded = 1 << ((case.n_features or 1) - 1).bit_length()
        return MAP_NS["hadamard"] * padded * max(1, padded.bit_length() - 1)
    return HASHED_NS * per_feature * entries if per_feature else MAP_NS[sketch] * entries * m


def _step_ns(sketch: str, m: int, per_feature: int, nnz: float | None) -> float:
    """Nanoseconds to compare a sketched row with one center: rows that stay sparse by their entries, others by m."""
    stays = nnz is not None and (sketch == "identity" or (per_feature and m > DENSE_COMPONENTS))
    if not stays or sketch.startswith("hadamard"):
        return DENSE_STEP_NS * m
    return SPARSE_STEP_NS * min(m, per_feature * (nnz or 0))
