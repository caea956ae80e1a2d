"""The choice of a sketch and its components if the caller leaves them open, with the reason in words."""

from __future__ import annotations

from typing import Any

from streamkm.core.exceptions import InvalidParameterError
from streamkm.planning.plan import PlannedSketch
from streamkm.sketches import DATA_DEPENDENT, is_oblivious, make_sketch, needs_n_features, sketch_class
from streamkm.sketches.base_sketch import Sketch
from streamkm.sketches.options import SketchOptions
from streamkm.sketches.sizing import sizing
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
