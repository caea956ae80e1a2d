"""Fits on a cluster write nothing to standard error, and nor do the workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.dask_processes import ROOT

# Dask's words on a slow machine
BUSY = ("still alive after", "garbage collections took", "Event loop was unresponsive")


@pytest.mark.slow
def test_fits_on_a_cluster_write_nothing():
    """No warning of a large graph, wherever the limit, nor of an object whose size Dask cannot tell."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.quiet_fits", "2"],
        check=True, cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "DASK_DISTRIBUTED__ADMIN__LARGE_GRAPH_WARNING_THRESHOLD": "1kB"},
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not any(words in line for words in BUSY)]
    assert not lines
