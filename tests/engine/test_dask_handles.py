"""Handles of what workers hold: in order, in little memory, and known to have moved."""

from __future__ import annotations

import sys

from streamkm.engine.dask_calls import Held, HeldValues


def places(handles):
    return [(handle.future, handle.path) for handle in handles]


def test_handles_of_one_result_are_one_run():
    first, second = object(), object()
    handles = HeldValues()
    handles.extend(Held(first, 1, each) for each in range(1_000))
    handles.extend(Held(second, each) for each in range(500))
    handles.append(Held(second, 7))  # not the next one
    wanted = [*((first, (1, each)) for each in range(1_000)), *((second, (each,)) for each in range(500))]
    wanted.append((second, (7,)))
    assert places(handles) == wanted
    assert places(handles[each] for each in range(-len(handles), len(handles))) == [*wanted, *wanted]
    assert places(handles[990:1_010:3]) == wanted[990:1_010:3]
    assert len(handles) == len(wanted)
    assert len(handles._runs) == 3
    assert sys.getsizeof(handles._starts) < 1_000


def test_handles_that_moved_stay_where_they_are_now():
    """Whatever their place in a run; the others are where they were."""
    first, together = object(), object()
    handles = HeldValues()
    handles.extend(Held(first, each) for each in range(5))
    for index, number in enumerate((0, 3)):
        handles[number].move(together, index)
    wanted = [(together, (0,)), (first, (1,)), (first, (2,)), (together, (1,)), (first, (4,))]
    assert places(handles) == wanted
    handles[3].move(first, 3)  # once more
    assert places(handles) == [*wanted[:3], (first, (3,)), wanted[4]]
    handles.append(Held(first, 5))
    assert places(handles)[-1] == (first, (5,))
