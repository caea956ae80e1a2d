"""Contracts of readers and sketches, as pytest classes to inherit."""

from __future__ import annotations

from tests.contracts.sketches import (
    N_FEATURES,
    HashedSketchContract,
    SketchContract,
    UnboundedSketchContract,
    whole_numbers,
)
from tests.contracts.sources import (
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
