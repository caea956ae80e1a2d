"""Whether rows stay in memory once they are read, for the passes that follow."""

from __future__ import annotations

from dataclasses import replace

from streamkm.planning.memory_budget import MemoryBudget
from streamkm.planning.plan import Plan
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes

PLACE_BYTES = 8  # of a row, beside its values
ESTIMATE_SLACK = 1.25  # of the bytes of rows whose number is known by a look at a few places


def with_cached_rows(plan: Plan, source: RowSource, budget: MemoryBudget) -> Plan:
    """The plan, or one that caches the rows as they are read: where that saves long reading and there is room for all.

    It changes no result, only how often rows are read.

    `plan`: of a fit by threads of this process. `source`: what it is a plan for. Rows are cached as they come, before
    any preparation. `budget`: by which the plan was made.
    """
    rows = source.original
    if plan.passes - len(plan.reading.passes_before) == 1 or not rows.decodes or rows.estimated_rows is None:
        return plan
    if rows.n_features is None and budget.free_bytes is None:
        return plan  # how wide rows are, and what that takes of a given limit, is known after they were read
    needed = rows.estimated_rows * (decoded_row_bytes(rows) + PLACE_BYTES)
    room = budget.room_for_rows(plan.peak_bytes)
    if needed > room:
        return plan
    if rows.n_rows is None:
        needed = min(room, int(ESTIMATE_SLACK * needed))
    memory = {name: size + needed for name, size in plan.memory.items()}
    return replace(plan, reading=replace(plan.reading, cached_bytes=needed), memory=memory)
