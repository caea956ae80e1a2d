"""Shared code: errors, atomic files, matrix types, memory limits, progress. Knows no clusters, sketches or sources."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

__version__ = "0.1.0"


@lru_cache(maxsize=1)
def environment() -> dict[str, str]:
    """Minor versions and a hash of this package's code, which processes that work together must have in common."""
    import hashlib
    import platform

    import numpy as np

    package = Path(__file__).parents[1]
    code = hashlib.blake2b(digest_size=8)
    for path in sorted(package.rglob("*.py")):
        code.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "NumPy": ".".join(np.__version__.split(".")[:2]),
        "streamkm": f"{__version__} (code {code.hexdigest()})",
    }
