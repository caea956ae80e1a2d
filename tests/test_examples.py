"""Every example script runs, and prints what its text promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ARGUMENTS = {"larger_than_memory.py": ["--rows", "20000"]}
PRINTED = {
    "anndata_counts.py": ["500\n", "500\n", "500\n"],
    "dask_array.py": ["same labels: True", "same centers: True"],
    "larger_than_memory.py": ["read 2 times", "objective per row"],
    "stream_of_chunks.py": ["30,000 rows in 2 passes", "day 2:"],
    "text.py": ["900 documents in 2 passes", "300: ", "300: ", "300: ", "later: 3 of 3"],
    "zarr_array.py": ["in 2 passes", "in 4 passes", "cluster sizes"],
}


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_example(script, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "error::UserWarning:streamkm", str(EXAMPLES / script), *ARGUMENTS.get(script, [])]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    at = 0
    for text in PRINTED[script]:
        found = done.stdout.find(text, at)
        assert found >= 0, f"{text!r} is not in {done.stdout!r} from {at}"
        at = found + len(text)
