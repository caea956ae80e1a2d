"""Kernels that are compiled before they are needed, by processes that share an empty cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys

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


def test_kernels_are_compiled_once_and_told(tmp_path):
    """By processes that share an empty cache."""
    program, cache = tmp_path / "warm.py", tmp_path / "cache"
    cache.mkdir()
    program.write_text(WARM)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    for n_compiled in (2, 0):
        done = subprocess.run([sys.executable, program], env=environment, check=True, capture_output=True, text=True)
        *counts, folder = json.loads(done.stdout)
        assert counts == [2, n_compiled, 2]
        assert folder.startswith(str(cache))
