"""Kernels that are compiled before they are needed, by processes that share an empty cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

WARM = """
import json
from streamkm.kernels.warming import warm
if __name__ == "__main__":
    kernels = [("cluster.totals.row_products", "(float64[:,::1], float64[:,::1], float64[::1],)"),
               ("cluster.totals.mean_row", "(float64[:,::1], float64[::1],)")]
    told = []
    found = warm(kernels, 2, lambda: told.append(1))
    print(json.dumps([found.n_kernels, found.n_compiled, len(told), found.folder]))
"""
NOTHING_COMPILED = """
import numpy as np
from streamkm import StreamKMeans, StreamKernelKMeans, sweep
from streamkm.kernels.compiling import COMPILATION
from tests import first_fits
for X in (first_fits.rows("dense float32", ""), first_fits.rows("sparse float32", ""), np.random.rand(300, 4)):
    StreamKMeans(5, random_state=0).fit(X).predict(X)
StreamKernelKMeans(5, random_state=0).fit(X)
sweep(X, range(2, 5), random_state=0)
assert not COMPILATION.announced
"""


@pytest.fixture
def cached(tmp_path):
    """Runs Python in processes that share an empty cache of kernels."""
    (tmp_path / "cache").mkdir()
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200",
    }  # fmt: skip

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    return run


def test_kernels_are_compiled_once_and_told(tmp_path, cached):
    program = tmp_path / "warm.py"
    program.write_text(WARM)
    for n_compiled in (2, 0):
        *counts, folder = json.loads(cached(program))
        assert counts == [2, n_compiled, 2]
        assert folder.startswith(str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.full
def test_after_warm_first_calls_compile_nothing(tmp_path, cached):
    command = ("-m", "streamkm", "warm", "--threads", 2)
    for expected in (" compiled in ", "all in the cache before"):
        told = dict(line.split(maxsplit=1) for line in cached(*command).splitlines())
        assert expected in told["kernels"]
        assert told["cache"].startswith(str(tmp_path / "cache"))
    cached("-c", NOTHING_COMPILED)
