"""Out-of-core streaming clustering: sketch chunks, cluster the sketch, assign the rows.

Importing streamkm is cheap: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkm.core import __version__
from streamkm.core.process import collector_off

if TYPE_CHECKING:
    from streamkm.core.exceptions import StreamkmError
    from streamkm.deduplication import dedupe
    from streamkm.estimators.incremental import IncrementalKMeans
    from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
    from streamkm.estimators.kmeans import StreamKMeans
    from streamkm.fitting.documents import fit_idf, open_documents
    from streamkm.model_selection.sweep import sweep
    from streamkm.sketches.countsketch import CountSketch
    from streamkm.sketches.options import PCA, KernelOptions, Nystroem, SketchOptions
    from streamkm.sketches.sizing import sizing
    from streamkm.sources.open import open_source
    from streamkm.text import FeatureHashing, TfIdf

_HOMES = {
    "CountSketch": "streamkm.sketches.countsketch",
    "FeatureHashing": "streamkm.text",
    "IncrementalKMeans": "streamkm.estimators.incremental",
    "KernelOptions": "streamkm.sketches.options",
    "Nystroem": "streamkm.sketches.options",
    "PCA": "streamkm.sketches.options",
    "SketchOptions": "streamkm.sketches.options",
    "StreamKMeans": "streamkm.estimators.kmeans",
    "StreamKernelKMeans": "streamkm.estimators.kernel_kmeans",
    "StreamkmError": "streamkm.core.exceptions",
    "TfIdf": "streamkm.text",
    "dedupe": "streamkm.deduplication",
    "fit_idf": "streamkm.fitting.documents",
    "open_documents": "streamkm.fitting.documents",
    "open_source": "streamkm.sources.open",
    "sizing": "streamkm.sketches.sizing",
    "sweep": "streamkm.model_selection.sweep",
}

__all__ = [
    "PCA",
    "CountSketch",
    "FeatureHashing",
    "IncrementalKMeans",
    "KernelOptions",
    "Nystroem",
    "SketchOptions",
    "StreamKMeans",
    "StreamKernelKMeans",
    "StreamkmError",
    "TfIdf",
    "__version__",
    "dedupe",
    "fit_idf",
    "open_documents",
    "open_source",
    "sizing",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'streamkm' has no attribute {name!r}")
    from importlib import import_module

    with collector_off:  # imports make no garbage, and looking for some takes a fifth of their time
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
