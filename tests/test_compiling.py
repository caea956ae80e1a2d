"""How kernels are compiled: once for all processes, a first fit's by several, and a line that says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numba as nb
import numpy as np
import pytest

from streamkm.core.memory import memory_limit_bytes
from streamkm.core.progress import Progress
from streamkm.kernels import ahead
from streamkm.kernels.cluster import totals
from streamkm.kernels.compiling import COMPILATION
from tests import first_fits
from tests.fresh import run_fresh

JOIN = """
import os, sys, time
import numpy as np
from streamkm.kernels.cluster import totals
open(sys.argv[1], "w").close()
while not all(map(os.path.exists, sys.argv[1:])):
    time.sleep(0.001)
X = np.ones((2, 3))
totals.row_products(X, X, np.ones(2))
print(sum(totals.row_products.stats.cache_misses.values()))
"""
FIRST_FIT = """
import json
from streamkm import StreamKMeans
from streamkm.kernels import ahead, compiling
from tests import first_fits
compiling.HELPERS_MOST = 2
StreamKMeans(50, random_state=0, progress=False, executor=3).fit(first_fits.rows("dense float32", ""))
stats = [ahead.dispatcher(name).stats for name, _ in ahead.kernels_of("dense float32")]
print(json.dumps([sum(map(len, found)) for found in zip(*[(one.cache_hits, one.cache_misses) for one in stats])]))
"""


def test_that_kernels_are_compiled_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(COMPILATION, "announced", False)
    with caplog.at_level("INFO", "streamkm.kernels"):
        nb.njit(lambda: 0)()  # none of ours
        assert not caplog.messages
        for kernel in (totals.row_products, totals.mean_row):
            arguments = [np.ones((1, 1))] * (2 if kernel is totals.row_products else 1)
            nb.jit(**kernel.targetoptions)(kernel.py_func)(*arguments, np.ones(1))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("compiling kernels, once")


def test_that_kernels_are_compiled_is_said_on_stderr_where_stages_are_shown(caplog, capsys, monkeypatch):
    for shown, level, said in ((1, "WARNING", True), (0, "WARNING", False), (1, "INFO", False)):
        monkeypatch.setattr(COMPILATION, "announced", False)
        with caplog.at_level(level, "streamkm"):
            progress = Progress(False, verbose=shown)
            with COMPILATION.expecting("nothing", n_threads=2, spare_bytes=1 << 40, announce=progress.say):
                nb.jit(**totals.mean_row.targetoptions)(totals.mean_row.py_func)(np.ones((1, 1)), np.ones(1))
        assert capsys.readouterr().err.startswith("compiling kernels, once") == said
        assert len(caplog.messages) == (level == "INFO")


@pytest.mark.parametrize("kind", first_fits.KINDS)
def test_lists_of_kernels_name_what_first_fits_call(kind):
    """After a change of kernels: ``python -m tests.first_fits``."""
    found = [tuple(one) for one in run_fresh(first_fits.CALLED, [kind])]
    assert sorted(ahead.kernels_of(kind)) == sorted(found)


def test_a_kernel_is_compiled_by_one_of_the_processes_that_need_it(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    flags = [str(tmp_path / name) for name in "ab"]
    started = [
        subprocess.Popen([sys.executable, "-c", JOIN, *order], env=environment, stdout=subprocess.PIPE, text=True)
        for order in (flags, flags[::-1])
    ]
    assert sorted(process.communicate()[0] for process in started) == ["0\n", "1\n"]


LIMITED = """
import json, sys
import numpy as np
from streamkm import StreamKMeans
from streamkm.core.memory import resident_bytes
from streamkm.kernels import ahead, compiling
from streamkm.kernels.cluster import totals
rows = np.random.default_rng(0).normal(size=(1000, 8)).astype("f4")
estimator = StreamKMeans(5, memory_limit=sys.argv[1], progress=False, random_state=0, executor=1)
if sys.argv[2] == "fit":
    estimator.fit(rows)
    kernels = [name for name, _ in ahead.kernels_of("dense float32")]
else:
    estimator.plan(rows)
    assert compiling.COMPILATION.elsewhere
    kernels = ["cluster.totals.row_products", "cluster.totals.mean_row"]
    totals.row_products(np.ones((2, 3)), np.ones((2, 3)), np.ones(2))
    compiling.COMPILATION._compiler.kill()  # another is started
    compiling.COMPILATION._compiler.wait()
    totals.mean_row(np.ones((2, 3)), np.ones(3))
found = [ahead.dispatcher(name) for name in dict.fromkeys(kernels)]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024,
                  "loaded": [sum(one.stats.cache_hits.values()) for one in found],
                  "held": [len(one.overloads) for one in found],
                  "asked": sum(sum(one.stats.cache_misses.values()) for one in found)}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
@pytest.mark.parametrize(("what", "limit"), [("two", "1 GiB"), pytest.param("fit", "308 MiB", marks=pytest.mark.slow)])
def test_kernels_are_compiled_by_another_process_where_a_limit_has_no_room_for_that(tmp_path, what, limit):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LIMITED, limit, what]
    told = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    assert told["asked"] >= 2
    assert told["loaded"] == told["held"]  # none was compiled here
    assert told["peak"] <= memory_limit_bytes(limit)


@pytest.mark.slow
def test_helpers_fill_the_cache_of_a_first_fit(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", FIRST_FIT], env=environment, stdout=subprocess.PIPE, check=True)
    loaded, compiled = json.loads(done.stdout)
    assert loaded
    assert compiled
