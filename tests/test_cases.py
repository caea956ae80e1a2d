"""The tables of tests and the contract of sources: all of it runs, and what fails is named."""

import os
from pathlib import Path

import numpy as np
import pytest

from streamkm import open_source
from tests.contracts import Opened, SourceContract
from tests.programs import run_program
from tests.tables import cases

TOP = Path(__file__).resolve().parents[1]


def test_every_row_runs_and_the_failing_one_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMKM_CASE", "before")
    seen = []

    @cases("name, size", [("a", 1), ("b", 2)])
    @cases("kind", ["x", "y"])
    def test(tmp_path, monkeypatch, name, size, kind):
        assert os.environ["STREAMKM_CASE"] == "before"
        monkeypatch.setenv("STREAMKM_CASE", name)
        (tmp_path / "file").mkdir()  # of another row, it would be there
        seen.append((name, size, kind))
        assert (name, kind) != ("b", "y")

    with pytest.raises(AssertionError) as failed:
        test(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert seen == [("a", 1, "x"), ("a", 1, "y"), ("b", 2, "x"), ("b", 2, "y")]
    assert failed.value.__notes__ == ["in the row kind='y'", "in the row name='b', size=2"]


def test_a_row_that_is_skipped_leaves_the_others():
    seen = []

    @cases("n", [1, 2, 3])
    def test(n):
        if n != 2:
            pytest.skip("of no use")
        seen.append(n)

    test()
    assert seen == [2]

    @cases("n", [1, 2])
    def none(n):
        pytest.skip("of no use")

    with pytest.raises(pytest.skip.Exception):
        none()


class TestAWrongSource(SourceContract):
    """Of a matrix that is not the source's: run by the test below."""

    __test__ = False

    @pytest.fixture
    def opened(self):
        return Opened(open_source(np.arange(10.0).reshape(5, 2)), np.zeros((4, 2)))


def test_a_source_that_does_not_keep_its_contract_fails_in_each_check(tmp_path):
    program = tmp_path / "test_wrong.py"
    program.write_text(
        "from tests.test_cases import TestAWrongSource as _Wrong\n\nclass TestIt(_Wrong):\n    __test__ = True\n"
    )
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(program), "-rf"]
    out = run_program(command, folder=TOP, timeout=120).stdout
    wrong = ("attributes_are_true", "places_are_distinct_and_describable", "stream_gives_all_rows_in_order")
    assert all(f"check_{name}" in out for name in wrong), out
    assert out.count("SUBFAILED") == len(wrong), out
