"""Memory that a plan leaves for long lines of text, which it cannot know."""

from __future__ import annotations

from typing import Any

from streamkm.core.memory import is_given, memory_limit_bytes
from streamkm.planning.plan import Plan
from streamkm.planning.sample_plan import SamplePlan
from streamkm.sources.base import RowSource
from streamkm.sources.long_lines import LineRoom


def with_line_room(
    source: RowSource, memory_limit: Any, peak_bytes: int, chunk_bytes: int, n_threads: int, *, on_cluster: bool = False
) -> RowSource:
    """The rows, of which long lines are refused as they are read where a limit was given that has no room for them.

    A line has the room of a chunk, of the longest line that the plan counts, and its share of what the plan leaves.

    `source`: as it was planned for, or what it is made of. `memory_limit`: as it was given. `peak_bytes`: projected
    resident bytes, with what long lines take that were seen. `chunk_bytes`: decoded bytes of a chunk. `n_threads`: that
    read at a time where the source's pieces can be read in any order. `on_cluster`: whether workers read. Their lines
    are in no plan, and each has the room that this process has.
    """
    if not is_given(memory_limit):
        return source
    limit_bytes = memory_limit_bytes(memory_limit)
    n_readers = 1 if source.streams else n_threads
    left = limit_bytes - peak_bytes
    left = left // n_readers if left > 0 else left
    counted = source.long_lines[0].memory_bytes if source.long_lines and not on_cluster else 0
    room = left + counted + int(source.read_factor * chunk_bytes)
    return source.with_line_room(LineRoom(limit_bytes, room, n_readers))


def planned_line_room(
    source: RowSource, memory_limit: Any, plan: Plan | SamplePlan, *, on_cluster: bool = False
) -> RowSource:
    """The same for what a plan projects."""
    peak = max(plan.memory.values())
    return with_line_room(source, memory_limit, peak, plan.chunk_bytes, plan.n_threads, on_cluster=on_cluster)
