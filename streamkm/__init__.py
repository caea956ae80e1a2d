"""Out-of-core streaming clustering: sketch chunks, cluster the sketch, assign the rows.

Importing streamkm is cheap: what a name needs is imported when the name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from streamkm.errors import StreamkmError
    from streamkm.estimators import StreamKMeans
    from streamkm.kernel_estimators import StreamKernelKMeans
    from streamkm.sketches import CountSketch, PCASketch
    from streamkm.sources import open_source

_HOMES = {
    "CountSketch": "streamkm.sketches",
    "PCASketch": "streamkm.sketches",
    "StreamKMeans": "streamkm.estimators",
    "StreamKernelKMeans": "streamkm.kernel_estimators",
    "StreamkmError": "streamkm.errors",
    "open_source": "streamkm.sources",
}

__all__ = [
    "CountSketch",
    "PCASketch",
    "StreamKMeans",
    "StreamKernelKMeans",
    "StreamkmError",
    "__version__",
    "open_source",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'streamkm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
