"""Maps that shrink features before clustering: one module for each sketch, and the table that names them.

A sketch maps each row by itself. Nothing here reads data or clusters.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError, ModelFileError
from streamkm.sketches.base import IdentitySketch, SeededSketch, Sketch, SketchAnswers, SketchFit
from streamkm.sketches.countsketch import CountSketch
from streamkm.sketches.fourier_map import FourierMap
from streamkm.sketches.hadamard import SubsampledHadamard
from streamkm.sketches.kernel_columns import Kernel, KernelColumns
from streamkm.sketches.kernel_map import GramFit, KernelMap
from streamkm.sketches.options import OPTIONS, PCA, KernelOptions, Nystroem, SketchOptions, full_options
from streamkm.sketches.pca import PCASketch, TruncatedSVDSketch
from streamkm.sketches.projections import PROJECTIONS, RandomProjection
from streamkm.sketches.sampling import FeatureSelection, LeverageSampling, PreconditionedSampling

SKETCHES: dict[str, type[Any]] = {
    sketch.kind: sketch
    for sketch in (
        CountSketch,
        FeatureSelection,
        FourierMap,
        IdentitySketch,
        KernelMap,
        PCASketch,
        PreconditionedSampling,
        SubsampledHadamard,
        TruncatedSVDSketch,
    )
} | dict.fromkeys(PROJECTIONS, RandomProjection)


def sketch_from_dict(described: dict[str, Any], arrays: dict[str, NDArray[Any]], *, made: bool = True) -> Sketch:
    """Make a sketch from what its `to_dict` and `arrays` gave; unless `made`, it may lack its seed.

    Raises ModelFileError: if the kind is not known, or what it needs is missing or wrong.
    """
    kind = described.get("kind")
    if kind not in SKETCHES:
        raise ModelFileError(f"sketch of kind {kind!r}; this release knows {sorted(SKETCHES)}")
    values = {name: value for name, value in described.items() if name != "kind" or kind in PROJECTIONS}
    try:
        sketch: Sketch = SKETCHES[kind](**values, **arrays)
        sketch.n_components + 0  # a number, not what looks like one
        if made and not sketch.is_made:
            raise InvalidParameterError("the seed or the number of features is missing")
    except (TypeError, AttributeError, InvalidParameterError) as error:
        raise ModelFileError(f"the {kind} sketch cannot be made of {values} and {sorted(arrays)}: {error}") from error
    return sketch


__all__ = [
    "OPTIONS",
    "PCA",
    "SKETCHES",
    "CountSketch",
    "FeatureSelection",
    "FourierMap",
    "GramFit",
    "IdentitySketch",
    "Kernel",
    "KernelColumns",
    "KernelMap",
    "KernelOptions",
    "LeverageSampling",
    "Nystroem",
    "PCASketch",
    "PreconditionedSampling",
    "RandomProjection",
    "SeededSketch",
    "Sketch",
    "SketchAnswers",
    "SketchFit",
    "SketchOptions",
    "SubsampledHadamard",
    "TruncatedSVDSketch",
    "full_options",
    "sketch_from_dict",
]
