"""The tables of tests and the contract of sources: all of it runs, and what fails is named."""

import os
from contextlib import contextmanager

import numpy as np
import pytest

from streamkm import open_source
from tests.contracts import Opened, SourceContract
from tests.tables import cases


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


class Failures:
    """What stands for pytest's subtests: keeps the names of the checks that fail."""

    def __init__(self):
        self.failed, self.n_checks = set(), 0

    @contextmanager
    def test(self, check):
        self.n_checks += 1
        try:
            yield
        except AssertionError:
            self.failed.add(check)


def test_a_source_that_does_not_keep_its_contract_fails_in_each_check():
    checks, opened = Failures(), Opened(open_source(np.arange(10.0).reshape(5, 2)), np.zeros((4, 2)))
    SourceContract().test_contract(opened, checks)
    wrong = ("attributes_are_true", "places_are_distinct_and_describable", "stream_gives_all_rows_in_order")
    assert checks.failed == {f"check_{name}" for name in wrong}
    assert checks.n_checks > len(wrong)
