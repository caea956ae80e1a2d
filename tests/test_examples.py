"""Every example script runs, and prints what its text promises."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CLUSTER = "dask_array.py"
ARGUMENTS = {"larger_than_memory.py": ["--rows", "20000"], "ivf_index.py": ["--rows", "6000", "--lists", "40"]}
NEEDED = {"ivf_index.py": "faiss"}
PRINTED = {
    "anndata_counts.py": ["500\n", "500\n", "500\n"],
    "dask_array.py": ["same labels: True", "same centers: True"],
    "ivf_index.py": ["lists", "streamkm recall", "faiss    recall"],
    "larger_than_memory.py": ["read 2 times", "objective per row"],
    "stream_of_chunks.py": ["30,000 rows in 2 passes", "day 2:"],
    "text.py": ["900 documents in 3 passes", "300: ", "300: ", "300: ", "later: 3 of 3"],
    "zarr_array.py": ["in 2 passes", "in 4 passes", "cluster sizes"],
}


def assert_printed(script, printed):
    at = 0
    for text in PRINTED[script]:
        found = printed.find(text, at)
        assert found >= 0, f"{text!r} is not in {printed!r} from {at}"
        at = found + len(text)


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != CLUSTER))
def test_example(script, tmp_path, monkeypatch, capsys):
    """In this process: what takes seconds in another one is importing alone."""
    if script in NEEDED:
        pytest.importorskip(NEEDED[script])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [script, *ARGUMENTS.get(script, [])])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert_printed(script, capsys.readouterr().out)
    assert list(tmp_path.iterdir()) == []


def test_example_of_a_cluster(tmp_path):
    """In a process of its own, whose program the workers import again."""
    command = [sys.executable, "-W", "error::UserWarning:streamkm", str(EXAMPLES / CLUSTER)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_printed(CLUSTER, done.stdout)
