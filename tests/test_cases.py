"""The tables of tests: every row runs, with fixtures of its own, and what fails names its row."""

import os

import pytest

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
