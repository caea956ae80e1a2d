"""What every reader and every sketch must keep, as pytest classes to inherit: for those of this package and of others.

Needs pytest from version 9 on, and hypothesis for sketches. Nothing here is imported by the rest of the package.
"""

from __future__ import annotations

from streamkm.testing.sketches import (
    N_FEATURES,
    HashedSketchContract,
    SketchContract,
    UnboundedSketchContract,
    whole_numbers,
)
from streamkm.testing.sources import (
    OnePassContract,
    Opened,
    RowSourceContract,
    SourceContract,
    assemble,
    assert_same_rows,
)

__all__ = [
    "N_FEATURES",
    "HashedSketchContract",
    "OnePassContract",
    "Opened",
    "RowSourceContract",
    "SketchContract",
    "SourceContract",
    "UnboundedSketchContract",
    "assemble",
    "assert_same_rows",
    "whole_numbers",
]
