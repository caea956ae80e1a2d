"""How kernels are compiled: once for all processes, by another one under a limit, and a line that says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numba as nb
import numpy as np
import pytest

from streamkm import StreamKMeans
from streamkm.core.progress import COMPILING, Progress
from streamkm.engine import under_limit
from streamkm.kernels import compiling
from streamkm.kernels.centers import pruned
from streamkm.kernels.cluster import totals

JOIN = """
import os, sys, threading, time
import numpy as np
from streamkm.kernels.cluster import totals
kernel, ended, failed = totals.row_products, threading.Event(), []

def ask():
    while not ended.is_set():
        try:
            kernel.typeof_pyval(type("Kind", (np.ndarray,), {})((1,)))
        except RuntimeError as error:
            failed.append(error)

asking = [threading.Thread(target=ask) for _ in range(4)]
open(sys.argv[1], "w").close()
while not all(map(os.path.exists, sys.argv[1:])):
    time.sleep(0.001)
for thread in asking:
    thread.start()
X = np.ones((2, 3))
kernel(X, X, np.ones(2))
ended.set()
for thread in asking:
    thread.join()
assert not failed, failed[0]
print(sum(kernel.stats.cache_misses.values()))
"""


@pytest.fixture
def nothing_said(monkeypatch):
    """As a process that has compiled nothing and shown no run."""
    monkeypatch.setattr(COMPILING, "done", 0.0)
    monkeypatch.setattr(Progress, "latest", Progress(False))


def compiled_anew(kernel, *arguments):
    nb.jit(**kernel.targetoptions)(kernel.py_func)(*arguments)


def test_that_kernels_are_compiled_is_said_once_timed_and_counted(caplog, nothing_said):
    with caplog.at_level("INFO", "streamkm"):
        nb.njit(lambda: 0)()  # none of ours
        assert not caplog.messages
        assert not COMPILING.done
        before = COMPILING.seconds
        compiled_anew(totals.row_products, np.ones((1, 1)), np.ones((1, 1)), np.ones(1))
        compiled_anew(totals.weighted_sum, np.ones(1), np.ones(1))
    assert caplog.messages == [compiling.SAID]
    assert COMPILING.done == 2
    assert COMPILING.seconds > before


def test_that_kernels_are_compiled_is_said_on_stderr_where_stages_are_shown(caplog, capsys, nothing_said):
    for shown, level, said in ((True, "WARNING", True), (False, "WARNING", False), (True, "INFO", False)):
        COMPILING.done = 0.0
        with caplog.at_level(level, "streamkm"):
            Progress(shown)
            compiled_anew(totals.weighted_sum, np.ones(1), np.ones(1))
        assert capsys.readouterr().err.startswith("compiling ") == said
        assert len(caplog.messages) == (level == "INFO")


def test_a_kernel_is_compiled_by_one_of_the_processes_that_need_it(tmp_path):
    """While their threads look up types: what only compiling needs is loaded then, and adds to the table of types."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    flags = [str(tmp_path / name) for name in "ab"]
    started = [
        subprocess.Popen([sys.executable, "-c", JOIN, *order], env=environment, stdout=subprocess.PIPE, text=True)
        for order in (flags, flags[::-1])
    ]
    assert sorted(process.communicate()[0] for process in started) == ["0\n", "1\n"]


HOMELESS = """
import json, os
import numpy as np
from streamkm.kernels.cluster import totals
totals.weighted_sum(np.ones(2), np.ones(2))
print(json.dumps([totals.__file__, totals.weighted_sum.stats.cache_path, os.listdir(os.environ["TMPDIR"])]))
"""


@pytest.mark.slow
def test_kernels_are_kept_in_a_temporary_folder_where_no_other_can_be_written_and_it_is_said_if_none_can(tmp_path):
    """Files stand where folders would be made, in the package and at home, which stops root, too."""
    package = Path(compiling.__file__).parents[1]
    shutil.copytree(package, tmp_path / "streamkm", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (tmp_path / "streamkm/kernels").rglob("*/"):
        (folder / "__pycache__").touch()
    (tmp_path / "home").touch()
    (tmp_path / "tmp").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    environment |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    run = partial(subprocess.run, env=environment, capture_output=True, text=True, check=False)
    done = run([sys.executable, "-B", "-P", "-c", HOMELESS])
    module, cache, made = json.loads(done.stdout)
    assert module.startswith(str(tmp_path))
    assert len(made) == 1
    assert cache.startswith(str(tmp_path / "tmp" / made[0]))
    assert done.stderr.count("set NUMBA_CACHE_DIR to a folder that stays") == 1
    assert not list((tmp_path / "tmp").iterdir())
    done = run([sys.executable, "-B", "-P", "-c", "import tempfile; tempfile.tempdir = '/dev/null'" + HOMELESS])
    assert done.stderr.splitlines()[-1].endswith("set NUMBA_CACHE_DIR to one that can")


CACHED_FIT = """
import json, sys
import numpy as np
from streamkm import StreamKMeans
from streamkm.kernels.cluster import totals
COMPILER = ["numba.np.linalg", "numba.cpython.setobj", "numba.typed.typeddict"]
X = np.random.default_rng(0).normal(size=(300, 4))
StreamKMeans(3, random_state=0, progress=False).fit(X)
cached = [name in sys.modules for name in COMPILER]
kernel = totals.row_products
type(kernel)(kernel.py_func, targetoptions=kernel.targetoptions)(X, X, np.ones(300))  # without a cache
print(json.dumps([cached, [name in sys.modules for name in COMPILER]]))
"""


def test_kernels_are_loaded_without_what_only_compiling_needs():
    StreamKMeans(3, random_state=0, progress=False).fit(np.random.default_rng(0).normal(size=(300, 4)))
    command = [sys.executable, "-c", CACHED_FIT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout) == [[False] * 3, [True] * 3]


@pytest.mark.parametrize(("limit", "cached", "started"), [("1 GiB", False, 1), ("1 GiB", True, 0), ("auto", False, 0)])
def test_another_process_compiles_under_a_limit_what_the_cache_lacks(monkeypatch, limit, cached, started):
    calls = []
    monkeypatch.setattr(
        pruned.nearest_pruned._cache._cache_file, "_load_index", lambda: {"types": "name"} if cached else {}
    )
    monkeypatch.setattr(compiling.subprocess, "run", lambda command, **_: calls.append(command))
    with under_limit(limit):
        assert len(calls) == started
    assert all(command[2:] == ["-m", "streamkm", "warm", "--quiet"] for command in calls)


LIMITED = """
import json
import numpy as np
from streamkm import StreamKMeans
from streamkm.estimators import fit_tiny
from streamkm.core.progress import COMPILING
from streamkm.engine import under_limit
tiny, status = fit_tiny(), open("/proc/self/status")
with under_limit("1 GiB"):
    next(tiny), next(tiny), next(tiny)
    peak = dict(line.split(":", 1) for line in status)["VmHWM"]  # before there are many clusters
    StreamKMeans(1100, progress=False, executor=1).fit(np.random.default_rng(0).random((9000, 64), "f4"))
print(json.dumps([COMPILING.done, COMPILING.seconds, int(peak.split()[0]) / 1024]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_what_another_process_compiled_is_loaded_and_warm_says_where_it_is(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    run = partial(subprocess.run, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    n_compiled, seconds, peak = json.loads(run([sys.executable, "-c", LIMITED]).stdout)
    assert n_compiled == 0  # here
    assert seconds > 1
    assert peak < 260  # compiling takes 120 MiB more
    told = run([sys.executable, "-P", "-m", "streamkm", "warm"]).stdout.splitlines()
    assert told == ["kernels  all in the cache before", f"cache    {tmp_path}"]
