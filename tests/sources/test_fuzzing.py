"""Every compiled parser with bounds checked, on random inputs; see `tests.fuzz_parsers`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "n_examples",
    [
        pytest.param(60, marks=pytest.mark.slow),
        pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(3_600)]),
    ],
)
def test_no_parser_leaves_its_arrays(n_examples, tmp_path):
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(TOP)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz_parsers", "0", str(n_examples)],
        cwd=TOP, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert sum(counted.values()) == 5 * n_examples
    for parser in ("fuzz_any_bytes", "fuzz_csr"):  # both sides are met
        assert min(counted[f"{parser} sound"], counted[f"{parser} refused"]) > n_examples / 20
