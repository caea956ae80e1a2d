"""`run`: the same result for any chunks, executors and interruptions; the page on what an engine must give."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import streamkm
from streamkm.core.progress import Stage
from streamkm.engine import Executor, Folded, open_executor
from streamkm.engine import checkpoint as saving
from streamkm.engine.checkpoint import Checkpoint, CheckpointWriter
from streamkm.engine.dask import DaskCluster
from streamkm.engine.passes import Map, Pass, outputs
from streamkm.passes.pass_context import PassContext
from streamkm.passes.reader import RowReader
from streamkm.sources import open_source
from tests.children import StoppedError, stopped_after
from tests.tables import cases


@dataclass
class Seen:
    """What `Zeros` gathers."""

    zeros: np.ndarray
    n_rows: int
    order: list[int]


@dataclass(frozen=True)
class Zeros(Pass[Seen, int, Seen]):
    """How many zeros each feature has: a pass as a contributor would write it."""

    saved_as = Seen

    n_features: int

    def start(self):
        return Seen(np.zeros(self.n_features, np.int64), 0, [])

    def step(self, state, rows):
        state.zeros += (rows.X == 0).sum(axis=0)
        return Seen(state.zeros, state.n_rows + len(rows.X), [*state.order, rows.first_row]), len(rows.X)

    def join(self, first, second):
        first.zeros += second.zeros
        return Seen(first.zeros, first.n_rows + second.n_rows, first.order + second.order)


@dataclass(frozen=True)
class Largest(Map[float]):
    """The largest value of each chunk."""

    def output(self, rows):
        return float(rows.X.max())


class Outputs:
    """A sink that a checkpoint cannot help."""

    held = False

    def __init__(self):
        self.taken = []

    def take(self, output):
        self.taken.append(output)

    def restore(self, n_items):
        return False

    def save(self, name, folded):
        """Nothing to save."""


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).integers(0, 3, (1000, 6)).astype(np.float32)


def context_of(X, workers, chunk_rows=7, writer=None):
    reader = RowReader(open_source(X), chunk_rows * X[0].nbytes, "euclidean", "raise")
    return PassContext(executor=workers, reader=reader, writer=writer or CheckpointWriter())


@cases("executor, chunk_rows", [(1, 7), (2, 5000), (3, 1), (3, 333)])
def test_states_and_outputs_are_those_of_all_rows_in_order(X, executor, chunk_rows):
    sink, stage = Outputs(), Stage("zeros")
    with open_executor(executor) as workers:
        context = context_of(X, workers, chunk_rows)
        seen = context.run(Zeros(6), stage, sink=sink)
        largest = list(outputs(Largest(), context.rows(), workers, Stage("largest")))
    np.testing.assert_array_equal(seen.zeros, (X == 0).sum(axis=0))
    assert seen.n_rows == len(X) == sum(sink.taken)
    assert seen.order == sorted(seen.order)
    assert len(seen.order) == len(sink.taken) == len(largest)
    assert max(largest) == X.max()


def test_a_pass_goes_on_from_what_was_saved(X, tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)

    def seen_by(**given):
        # the executor ends with the run that is stopped: calls that still run then would be counted in the next one
        with open_executor(2) as workers:
            context = context_of(X, workers, writer=CheckpointWriter(checkpoint))
            return context.run(Zeros(6), Stage("z"), record="zeros", **given)

    with Checkpoint.open(tmp_path / "c", {"of": "test"}) as checkpoint:
        with monkeypatch.context() as patched:
            stopped_after(patched, "zeros", 5)
            with pytest.raises(StoppedError):
                seen_by()
        n_saved = CheckpointWriter(checkpoint).load("zeros", Folded[Seen]).n_items
        step, read = Zeros.step, []
        monkeypatch.setattr(Zeros, "step", lambda self, state, rows: (read.append(rows), step(self, state, rows))[1])
        seen = seen_by()
        assert len(read) == len(seen.order) - n_saved
        # without the outputs of an earlier run the pass begins anew
        sink = Outputs()
        seen_by(sink=sink)
    np.testing.assert_array_equal(seen.zeros, (X == 0).sum(axis=0))
    assert seen.order == sorted(set(seen.order))
    assert sum(sink.taken) == len(X)


PAGE = Path(streamkm.__file__).parent / "README.md"


def test_the_page_names_the_calls_of_the_interface():
    section = PAGE.read_text("utf-8").partition("## What an engine must give")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    public = {name for name in vars(Executor) if not name.startswith("_")} - {"joins_here", "for_calls"}
    assert public <= named
    assert named <= public | {name for name in vars(DaskCluster) if not name.startswith("_")}
