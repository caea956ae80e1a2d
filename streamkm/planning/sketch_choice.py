"""The choice of a sketch and its components, or of the features of a kernel, with the reason in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.engine.pass_memory import MIB
from streamkm.planning.memory_model import MapBytes
from streamkm.planning.plan import PlannedSketch
from streamkm.planning.request import FitRequest
from streamkm.sketches import DATA_DEPENDENT, is_oblivious, make_sketch, needs_n_features, sketch_class
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.kernel_columns import BATCH_ROWS
from streamkm.sketches.kernel_map import gram_bytes
from streamkm.sketches.options import Nystroem, SketchOptions
from streamkm.sketches.sizing import kernel_columns, nystroem_columns, sizing
from streamkm.sources.chunks import decoded_row_bytes
from streamkm.sources.row_source import RowSource

DENSE_IDENTITY = 512  # dense rows up to this width are clustered as they are
SPARSE_COMPONENTS = 2048  # costs no memory for sparse rows; a table of k centers still fits in the second-level cache
DENSE_COMPONENTS = 256
PCA_COMPONENTS, PCA_FEW_CLUSTERS = 48, 128  # twice as many directions for more clusters than that


def choose_sketch(source: RowSource, options: SketchOptions, n_clusters: int) -> PlannedSketch:
    """The sketch that the caller asks for, or one that suits the rows."""
    sketch, n_components = options.sketch, options.n_components
    d, why = source.n_features, "as you chose"
    if source.origin.is_sketched:
        named = isinstance(sketch, str) and (sketch == "auto" or sketch_class(sketch).is_identity)
        if not named or n_components not in ("auto", d):
            raise InvalidParameterError(
                f"sketch={sketch!r}, n_components={n_components!r}: the rows of {source.name} are sketched already, to "
                f'{d} components; needed: "auto"'
            )
        return PlannedSketch("identity", int(d or 0), "the rows of a store are sketched already")
    if not isinstance(sketch, str):
        return _given_sketch(source, sketch, options)
    if sketch == "auto":
        sketch, why = _auto_sketch(source, n_components)
    is_identity = sketch_class(sketch).is_identity
    _check_rows(source, sketch_class(sketch), sketch, needs_width=is_identity or needs_n_features(sketch))
    if is_identity:
        if why == "as you chose" and n_components not in ("auto", d):
            raise InvalidParameterError(f'n_components={n_components} with sketch="identity"; needed: "auto" or {d}')
        return PlannedSketch(sketch, int(d or 0), why)
    if options.fit_on == "all" and sketch in DATA_DEPENDENT:
        why += "; found on all rows, in a pass of its own"
    if n_components == "auto" and options.eps is not None:
        return _by_theorem(source, sketch, n_clusters, options.eps, options.delta)
    usual = SPARSE_COMPONENTS if source.is_sparse else DENSE_COMPONENTS
    if sketch in DATA_DEPENDENT:
        usual = PCA_COMPONENTS if n_clusters <= PCA_FEW_CLUSTERS else 2 * PCA_COMPONENTS
    if n_components == "auto" and d is not None and d <= usual:
        return PlannedSketch("identity", d, f"{sketch} would have {usual:,} components for {d:,} features")
    return PlannedSketch(sketch, usual if n_components == "auto" else int(n_components), why)


def _by_theorem(source: RowSource, sketch: str, n_clusters: int, eps: float, delta: float) -> PlannedSketch:
    """The sketch by a bound; "identity" if the bound asks for as many components as features."""
    d, n_rows = source.n_features, source.n_rows  # exact numbers: a theorem does not hold for estimates
    bound = sizing(sketch, n_clusters=n_clusters, eps=eps, delta=delta, n_rows=n_rows, n_features=d)
    m, why = bound.n_components, f"{bound.formula} for eps={eps}, delta={delta}"
    if sketch_class(bound.sketch).is_identity:
        why = f"{sketch} needs as many components as there are features or more for eps={eps}, delta={delta}"
    elif is_oblivious(sketch):
        make_sketch(sketch, m, 0, d)  # refuses sketches that are too large, before a read
    return PlannedSketch(bound.sketch, m, why)


def _given_sketch(source: RowSource, sketch: Sketch, options: SketchOptions) -> PlannedSketch:
    """The plan of a sketch object from the caller."""
    m, d = int(sketch.n_components), source.n_features
    if options.n_components not in ("auto", m) or options.eps is not None:
        asked = f"n_components={options.n_components!r}" if options.eps is None else f"eps={options.eps}"
        raise InvalidParameterError(f"{asked} with a {sketch.kind} sketch of {m:,} components; leave it out")
    # refuses sketches that are too large, before a read
    unmade = not sketch.made(0, d).is_made
    _check_rows(source, sketch, sketch.kind, needs_width=unmade and needs_n_features(sketch.kind))
    if d is not None and not sketch.fits_features(d):
        raise InvalidParameterError(
            f"the {sketch.kind} sketch is for other rows than the {d:,} features of {source.name}"
        )
    return PlannedSketch(sketch.kind, m, "as given")


def _check_rows(source: RowSource, sketch: Any, kind: str, *, needs_width: bool) -> None:
    """Refuse sparse rows for a sketch of dense ones, and rows of unknown width for one that needs the width."""
    if source.is_sparse and not sketch.takes_sparse:
        raise InvalidParameterError(f'sketch="{kind}" takes dense rows; {source.name} is sparse: use "countsketch"')
    if needs_width and source.n_features is None:
        raise InvalidParameterError(
            f'sketch="{kind}" needs the number of features beforehand, which {source.name} does not tell; '
            "pass n_features with the data, or use another sketch"
        )


def _auto_sketch(source: RowSource, n_components: int | str) -> tuple[str, str]:
    """The kind of sketch that suits the rows, and the reason."""
    d = source.n_features
    usual = SPARSE_COMPONENTS if source.is_sparse else DENSE_IDENTITY
    enough = usual if n_components == "auto" else int(n_components)
    if d is not None and d <= enough:
        return "identity", f"{'sparse' if source.is_sparse else 'dense'} rows of up to {enough:,} features need none"
    if source.is_sparse:
        return "countsketch", "sparse rows stay sparse, so that many components cost nothing"
    if not source.access.replayable:
        return "countsketch", "rows that are seen once are sketched as they come"
    return "pca", "wide dense rows are clustered by the principal directions of the row sample"


VIEW_ROWS = 5000  # sampled rows kept for the 2-D picture and for the estimate of the objective
SQUARES = 6  # of c x c numbers while the landmarks' matrix is inverted: it, its vectors, LAPACK's copies
LIBRARY_MORE = 28 * MIB  # memory of kernel maps and LAPACK beyond a fit of `StreamKMeans`; measured
COMBINED = 3  # of n x c numbers while kernel columns are combined: the combinations, twice, and the random matrix
COLUMN_SKETCHES = ("gaussian", "signs", "srht", "countsketch")
LANDMARK_SKETCHES = ("sampled-columns", "sub-gaussian", "sub-gaussian-entries", "ros")
"""Whose features are combinations of kernel values against drawn rows, without the root of the rows' own matrix."""
METHODS = ("nystroem", "two-step", *LANDMARK_SKETCHES, *COLUMN_SKETCHES, "fourier", "orthogonal-fourier")
LANDMARKS = ("uniform", "leverage", "rank-leverage", "kmeans")
LOSS, LARGEST_AUTO_RANK = 0.1, 256  # without eps: k / LOSS features, at most 256
COLUMNS_PER_DIRECTION, FEWEST_PER_DIRECTION = 8, 2
LARGEST_AUTO_LANDMARKS = 2048  # but for FEWEST_PER_DIRECTION
NEIGHBOR_LANDMARKS = 1000  # of the width of neighbours: three rings need 700; a cluster 10 at least
DELTA = 0.1  # of the bound for Yin et al.'s sketches, which `eps` says nothing else to
MOST_EVALUATIONS = 1 << 32  # of the kernel for all pairs of rows: some minutes


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """The sizes of a kernel fit."""

    n_landmarks: int  # columns of the sketch, c
    rank: int  # features, m
    # the reason why sizes are too small for `eps`; empty if there is none
    short: str = field(default="", compare=False)


def kernel_sizes(
    n_clusters: int,
    n_landmarks: int | str,
    rank: int | str,
    eps: float | None,
    n_rows: int | None,
    *,
    method: str = "nystroem",
) -> KernelSizes:
    """Replace "auto" by sizes, never more than rows; `short` says if they are too small for `eps`.

    The rank is k / eps (Wang, Gittens and Mahoney, JMLR 20, 2019, theorem 1, reconstructed: cost within 1 + eps + k / s
    for s features). Without eps it is 10 k, at most 256; or, for c given landmarks, sqrt(k c), more than k and at most
    c / 2 (their remark 3, reconstructed: the terms k / s and s / c are then alike). Landmarks are 8 times the features
    or the root of n, at most 2,048 or twice the features (Yin, Liu, Wang and Meng, NeurIPS 2022, claim in their
    introduction that Omega(sqrt(n)) keeps the rate of exact kernel k-means). With eps they are as many as
    `nystroem_columns` asks for, up to the same 2,048.
    `LANDMARK_SKETCHES` have as many features as landmarks, for any rank: by default the root of n, at least k; for
    "ros" the next power of 2, at most n.
    """
    most = n_rows or np.iinfo(np.int64).max
    root = int(np.ceil(np.sqrt(n_rows or 0)))
    if method in LANDMARK_SKETCHES:
        columns = min(most, max(n_clusters, root) if n_landmarks == "auto" else int(n_landmarks))
        if method == "ros":
            power = 1 << (columns - 1).bit_length()
            columns = power if power <= most else power // 2
        asked = kernel_columns(n_rows=n_rows, eps=eps, delta=DELTA) if eps and 0 < eps < 1 and n_rows else 0
        short = f"eps={eps} asks for {asked:,} landmarks (theorem 1 of Yin et al., constant 1); there are {columns:,}"
        return KernelSizes(columns, columns, short if columns < min(asked, most) else "")
    if rank != "auto":
        wanted = int(rank)
    elif eps is not None:
        wanted = int(np.ceil(n_clusters / eps))
    elif n_landmarks != "auto":
        middle = int(np.ceil(np.sqrt(n_clusters * int(n_landmarks))))
        wanted = max(n_clusters + 1, min(middle, int(n_landmarks) // 2))
    else:
        wanted = min(LARGEST_AUTO_RANK, int(np.ceil(n_clusters / LOSS)))
    asked = 0 if eps is None else _asked_columns(method, wanted, eps, n_rows)
    enough = min(LARGEST_AUTO_LANDMARKS, max(COLUMNS_PER_DIRECTION * wanted, root, asked))
    columns = min(most, max(FEWEST_PER_DIRECTION * wanted, enough) if n_landmarks == "auto" else int(n_landmarks))
    short = "" if eps is None else _short(n_clusters, method, columns, min(wanted, columns), eps, asked, n_rows)
    return KernelSizes(columns, min(wanted, columns), short)


def neighbor_landmarks(given: Any) -> int:
    """Landmarks at the width of neighbours, if the parameters ask for it or "auto" tries it; else 0."""
    most = max(NEIGHBOR_LANDMARKS, 10 * given.n_clusters)
    if given.gamma == "neighbors":
        return most if given.n_landmarks == "auto" else int(given.n_landmarks)
    left = (given.gamma, given.n_landmarks, given.rank, given.eps, given.fit_on, given.kernel.kernel, given.method)
    tried = left == ("auto", "auto", "auto", None, "sample", "rbf", Nystroem()) and str(given.init) == "k-means++"
    tried &= given.gamma_factor * given.kernel.gamma_factor == 1  # narrower, hardly a row has neighbours
    return NEIGHBOR_LANDMARKS if tried and given.n_clusters > 1 and most == NEIGHBOR_LANDMARKS else 0


def _asked_columns(method: str, rank: int, eps: float, n_rows: int | None) -> int:
    """Columns that theory asks for; 0 for methods without a formula here, and for eps of 1 or more."""
    if not 0 < eps < 1 or method == "two-step" or method.endswith("fourier"):
        return 0
    # a Nystroem sketch: uniform draws of coherence 1, the least there is
    kind = {"nystroem": "leverage", "signs": "gaussian"}.get(method, method)
    return nystroem_columns(kind, rank=rank, eps=eps, n_rows=max(rank, n_rows or MOST_EVALUATIONS))


def _short(n_clusters: int, method: str, columns: int, rank: int, eps: float, asked: int, n_rows: int | None) -> str:
    """The reason why too few features or columns break the bound that eps asks for; empty if there is none."""
    if not 0 < eps < 1:
        return ""
    if method == "two-step" or method.endswith("fourier"):
        return f"no theorem here gives eps={eps} to method={method!r}"
    features = int(np.ceil(n_clusters / eps))
    if rank < min(features, n_rows or features):
        return f"eps={eps} asks for {features:,} features; there are {rank:,}"
    if columns >= asked or columns == n_rows:  # all rows are landmarks: nothing is approximated but by the rank
        return ""
    return f"eps={eps} asks for {asked:,} columns (coherence 1, constants 1); there are {columns:,}"


def kernel_request(source: RowSource, given: Any, sizes: KernelSizes, *, weighted: bool) -> FitRequest:
    """The request for the plan of a kernel fit with these parameters, without reading rows.

    If all rows find the projection and the clusters, not the sample, there are 4 passes instead of 2; 3 for
    `LANDMARK_SKETCHES`, which have no projection. Raises InvalidInputError: the source has too many rows for the
    method.
    """
    method, refine, means = given.method.method, given.refine, given.method.landmarks == "kmeans"
    all_rows = given.fit_on == "all" and method not in ("two-step", *COLUMN_SKETCHES)
    n_rows, row_bytes = source.estimated_rows, decoded_row_bytes(source)
    if given.kernel.kernel == "precomputed" and (source.n_rows is None or source.n_rows != source.n_features):
        known = " x ".join("unknown" if n is None else f"{n:,}" for n in (source.n_rows, source.n_features))
        raise InvalidInputError(
            f'kernel="precomputed" needs the kernel values of all rows with each other; {source.name} is {known}: '
            "give a square matrix, or the rows themselves and another kernel"
        )
    columns = max(sizes.n_landmarks, neighbor_landmarks(given))
    held, needed = 0 if method.endswith("fourier") else columns, columns
    if method in COLUMN_SKETCHES:
        if n_rows is not None and n_rows**2 > MOST_EVALUATIONS:
            raise InvalidInputError(
                f"method={method!r} evaluates the kernel at all {n_rows:,}^2 pairs of rows; at most "
                f'{MOST_EVALUATIONS:,} are done ({int(MOST_EVALUATIONS**0.5):,} rows): use method="nystroem"'
            )
        held = needed = n_rows or int(MOST_EVALUATIONS**0.5)
    why = f"{method}; {sizes.n_landmarks:,} columns" + (f"; {sizes.short}" if sizes.short else "")
    # a landmark is held as floats, twice as laid out for products, or as entries and inverted lists
    width = 0 if source.is_sparse else source.n_features or row_bytes // source.dtype.itemsize
    landmark = 3 * row_bytes if source.is_sparse else (12 if np.can_cast(source.dtype, np.float32) else 16) * width
    combined = COMBINED * 4 * held * columns if held > columns else 0
    return FitRequest(
        source=source,
        n_clusters=given.n_clusters,
        options=SketchOptions(assign_space="sketch"),
        refine=0 if method == "two-step" and refine == "auto" else refine,
        coreset=None if all_rows else "uniform",
        weighted=weighted,
        sketching=PlannedSketch(method, sizes.rank, why),
        row_bytes=row_bytes,
        map=MapBytes(
            held=LIBRARY_MORE + held * (landmark + 4 * sizes.rank) + VIEW_ROWS * (row_bytes + 8 + 4 * sizes.rank),
            call=BATCH_ROWS * (12 * columns + 4 * held + 16 * width),
            finding=combined + SQUARES * 8 * columns**2 + 32 * columns * width * means,
            pool_row=4 * width * means,
            gram=gram_bytes(columns),
            columns=needed,
            projected=all_rows and given.gamma != "neighbors" and method not in LANDMARK_SKETCHES,
        ),
        remedy='use fewer n_landmarks, a smaller rank, or fit_on="sample"',
    )
