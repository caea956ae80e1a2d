"""Memory limits of fits in the process of the tests, which holds more than that of a user, and more as tests go on."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from streamkm.engine.pass_memory import ReadingMemory
from streamkm.passes.sizes import RowSizes, Sizes
from streamkm.planning.memory_model import MemoryModel

PROCESS_MEMORY = 294 << 20
"""What such a fit is to take the process to hold beside data."""


def limited(limit: int | str, process_memory: int = PROCESS_MEMORY) -> dict[str, Any]:
    """The limit, for a process that holds so much beside data: plans do not depend on what was imported and run."""
    return {"limit": limit, "process_memory": process_memory}


def memory_model(**sizes):
    """A memory model of sizes given by name, wherever in it they stand."""
    given = {"chunk_bytes": 0, **sizes}

    def of(kind):
        names = {field.name for field in fields(kind)} - {"rows", "reading", "chosen"}
        return {name: given[name] for name in names & set(given)}

    parts = {
        "rows": RowSizes(**of(RowSizes)),
        "reading": ReadingMemory(**of(ReadingMemory)),
        "chosen": Sizes(**of(Sizes)),
    }
    return MemoryModel(**of(MemoryModel), **parts)
