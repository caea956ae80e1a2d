"""The benchmarks run, on small data; how fast anything was decides nothing here."""

import json

import pytest

from tests.benchmarks.__main__ import main


@pytest.mark.benchmark
def test_quick_run_fills_every_row(tmp_path):
    rows = main(["--quick", "--data", str(tmp_path), "--json", str(tmp_path / "all.json")])
    assert {row.row for row in rows} == set("abcdefghijklm")
    assert all(row.met is None for row in rows)
    assert len(json.loads((tmp_path / "all.json").read_text())["rows"]) == len(rows)
