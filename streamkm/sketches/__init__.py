"""Maps that shrink features before clustering: one module a sketch, and the table that names them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from streamkm.errors import InvalidParameterError, ModelFileError
from streamkm.sketches.base import Sketch, SketchFit
from streamkm.sketches.countsketch import CountSketch
from streamkm.sketches.fourier_map import FourierMap
from streamkm.sketches.identity import IdentitySketch
from streamkm.sketches.kernel_columns import Kernel, KernelColumns
from streamkm.sketches.kernel_map import GramFit, KernelMap
from streamkm.sketches.pca import PCASketch

SKETCHES: dict[str, type[Any]] = {
    sketch.kind: sketch for sketch in (CountSketch, IdentitySketch, PCASketch, KernelMap, FourierMap)
}


def sketch_from_dict(described: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Sketch:
    """Make a sketch from what its `to_dict` and `arrays` gave.

    Raises
    ------
    ModelFileError
        If the kind is not known, or what it needs is missing or wrong.
    """
    values = dict(described)
    kind = values.pop("kind", None)
    if kind not in SKETCHES:
        raise ModelFileError(f"sketch of kind {kind!r}; this release knows {sorted(SKETCHES)}")
    try:
        sketch: Sketch = SKETCHES[kind](**values, **arrays)
        sketch.n_components + 0  # a number, not what looks like one
    except (TypeError, AttributeError, InvalidParameterError) as error:
        raise ModelFileError(f"the {kind} sketch cannot be made of {values} and {sorted(arrays)}: {error}") from error
    return sketch


__all__ = [
    "SKETCHES",
    "CountSketch",
    "FourierMap",
    "GramFit",
    "IdentitySketch",
    "Kernel",
    "KernelColumns",
    "KernelMap",
    "PCASketch",
    "Sketch",
    "SketchFit",
    "sketch_from_dict",
]
