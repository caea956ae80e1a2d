"""Memory limits of fits in the process of the tests, which holds more than that of a user, and more as tests go on."""

from __future__ import annotations

from typing import Any

PROCESS_MEMORY = 294 << 20
"""What such a fit is to take the process to hold beside data."""


def limited(limit: int | str, process_memory: int = PROCESS_MEMORY) -> dict[str, Any]:
    """The limit, for a process that holds so much beside data: plans do not depend on what was imported and run."""
    return {"limit": limit, "process_memory": process_memory}
