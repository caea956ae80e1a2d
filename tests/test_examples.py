"""Every example script runs, and prints what its text promises."""

from __future__ import annotations

import multiprocessing.util
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.tables import slow_but

EXAMPLES = Path(__file__).parents[1] / "examples"
OF_THEIR_OWN = {"larger_than_memory.py": ["--rows", "15000", "--memory", "430 MiB"]}  # processes: memory is measured
PICTURED = (
    "anndata_counts", "dask_array", "embeddings", "how_many_clusters", "rows_every_night", "stream_of_chunks", "table",
    "text",
)  # fmt: skip
QUICK = ("stream_of_chunks.py",)  # pages of the guide run what others show
NEEDED = {"ivf_index.py": "faiss"}
PRINTED = {
    "anndata_counts.py": ["cells.h5ad: cells of each cluster", "cluster\n", "500\n", "500\n", "500\n"],
    "dask_array.py": ["same labels: True", "same centers: True"],
    "ivf_index.py": ["lists", "streamkm recall", "faiss    recall"],
    "dask_pipeline.py": ["agreement of both: 1.000"],
    "embeddings.py": ["4,000 vectors of 64 numbers in 2 passes", "[800, 800, 800, 800, 800]"],
    "how_many_clusters.py": ["k = 6 is suggested", "5,000 of 5,000\n", "agreement"],
    "larger_than_memory.py": ["file 114 MiB, limit 430 MiB, peak memory ", "objective per row"],
    "rows_every_night.py": [
        "night 4: 749 rows",
        "22 born: mostly the digit 6\n",
        "6 died: mostly the digit 0\n",
        "6,911 rows, ",
        "6,911 rows have new labels, 0% are",
    ],
    "stream_of_chunks.py": ["30,000 rows in 2 passes", "day 2:"],
    "table.py": ["payment=card", "6 rows with missing values", "set apart by", "998"],
    "text.py": ["900 documents in 3 passes", "300: ", "300: ", "300: ", "later: 3 of 3"],
    "zarr_array.py": ["in 2 passes", "in 4 passes", "cluster sizes"],
}


def assert_printed(script, printed):
    at = 0
    for text in PRINTED[script]:
        found = printed.find(text, at)
        assert found >= 0, f"{text!r} is not in {printed!r} from {at}"
        at = found + len(text)


HERE = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in OF_THEIR_OWN)


@pytest.mark.parametrize("script", slow_but(QUICK, HERE))
def test_example(script, tmp_path, monkeypatch, capsys):
    """In this process: in another one, importing alone takes seconds. Workers are others, which import it again."""
    if script in NEEDED:
        pytest.importorskip(NEEDED[script])
    multiprocessing.util.get_temp_dir()  # that of this process, which outlives the test
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    picture = Path(script).stem in PICTURED
    monkeypatch.setattr(sys, "argv", [script, *(["--picture", "x.png"] if picture else [])])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert_printed(script, capsys.readouterr().out)
    if picture:
        Path("x.png").unlink()
    assert {path.name for path in tmp_path.iterdir()} <= {"dask-scratch-space"}  # of Dask's workers


@pytest.mark.slow
@pytest.mark.parametrize("script", OF_THEIR_OWN)
def test_example_in_a_process_of_its_own(script, tmp_path):
    command = [sys.executable, "-W", "error::UserWarning:__main__", str(EXAMPLES / script), *OF_THEIR_OWN[script]]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert_printed(script, done.stdout)


def test_each_example_is_listed():
    """Scripts and what `examples/README.md` says of them."""
    listed = (EXAMPLES / "README.md").read_text("utf-8")
    for script in EXAMPLES.glob("*.py"):
        assert f"({script.name})" in listed, script.name
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)
    pictures = {path.stem for path in (EXAMPLES / "pictures").iterdir()}
    assert pictures == set(PICTURED)
    assert all(f"(pictures/{name}.png)" in listed for name in pictures)
