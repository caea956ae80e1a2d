"""Which true changes of groups the events of updates tell, and which events tell none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.benchmarks.moving_groups import Change, Step
from tests.benchmarks.update_methods import Answer

VISIBLE_ROWS = 60  # of each group that takes part


@dataclass(frozen=True, slots=True)
class Truth:
    """What is known of the rows of each step.

    Attributes
    ----------
    sizes : list of Counter
        Rows by group.
    mostly : list of dict
        The group that most rows of a cluster belong to, by its id.
    """

    sizes: list[Counter[int]]
    mostly: list[dict[int, int]]

    @classmethod
    def of(cls, steps: Sequence[Step], answers: Sequence[Answer]) -> Truth:
        """Count rows."""
        sizes, mostly = [], []
        for step, answer in zip(steps, answers, strict=True):
            sizes.append(Counter(step.groups.tolist()))
            mostly.append(
                {
                    int(one): Counter(step.groups[answer.labels == one].tolist()).most_common(1)[0][0]
                    for one in np.unique(answer.labels)
                }
            )
        return cls(sizes, mostly)

    def is_visible(self, change: Change) -> bool:
        """Whether all groups that take part have rows on their side of the change."""
        group, other = change.group, change.other
        before, now = self.sizes[change.step - 1], self.sizes[change.step]
        sides = {
            "born": [now[group]],
            "died": [before[group]],
            "split": [before[other or 0], now[group], now[other or 0]],
            "joined": [before[group], before[other or 0], now[other or 0]],
        }
        return min(sides[change.kind]) >= VISIBLE_ROWS

    def last_group(self, cluster: int, before: int) -> int | None:
        """The group of a cluster in the last step that gave it rows."""
        found = (step[cluster] for step in reversed(self.mostly[:before]) if cluster in step)
        return next(found, None)

    def says(self, event: Any, change: Change) -> bool:
        """Whether an event of the same update or the next is a change."""
        if event.event != change.kind or not change.step <= event.update <= change.step + 1:
            return False
        if change.kind in ("died", "joined"):
            return self.last_group(event.id, event.update) == change.group
        group = self.mostly[event.update].get(event.id)
        return group in ({change.group, change.other} if change.kind == "split" else {change.group})


def judge(steps: Sequence[Step], answers: Sequence[Answer]) -> dict[str, Any]:
    """Compare events with the true changes; an event counts once, and those of the first update do not count."""
    truth = Truth.of(steps, answers)
    told = [event for answer in answers[1:] for event in answer.events]
    left, visible, found = list(told), Counter[str](), Counter[str]()
    for change in (change for step in steps for change in step.changes):
        event = next((event for event in left if truth.says(event, change)), None)
        if event is not None:
            left.remove(event)
        if truth.is_visible(change):
            visible[change.kind] += 1
            found[change.kind] += event is not None
    return {"visible": visible, "found": found, "told": len(told), "false": len(left)}
