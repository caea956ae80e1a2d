"""How kernels are compiled: once for all processes, a first fit's by several, and a line that says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numba as nb
import numpy as np
import pytest

from streamkm import StreamKernelKMeans, StreamKMeans, sweep
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.progress import Progress
from streamkm.engine import under_limit
from streamkm.kernels import compiling, precompile
from streamkm.kernels.cluster import totals
from streamkm.kernels.compiling import COMPILATION
from tests import first_fits
from tests.fresh import run_fresh
from tests.limits import PROCESS_MEMORY, limited
from tests.passes.test_passes import CountingSource

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
FIRST_FIT = """
import json
from streamkm import StreamKMeans
from streamkm.kernels import precompile, compiling
from tests import first_fits
compiling.HELPERS_MOST = 2
StreamKMeans(50, random_state=0, progress=False, executor=3).fit(first_fits.rows("dense float32", ""))
stats = [precompile.dispatcher(name).stats for name, _ in precompile.kernels_of("dense float32")]
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
    assert caplog.messages[0].startswith("compiling ")


def test_that_kernels_are_compiled_is_said_on_stderr_where_stages_are_shown(caplog, capsys, monkeypatch):
    for shown, level, said in ((True, "WARNING", True), (False, "WARNING", False), (True, "INFO", False)):
        monkeypatch.setattr(COMPILATION, "announced", False)
        with caplog.at_level(level, "streamkm"):
            progress = Progress(shown)
            with COMPILATION.expecting("nothing", n_threads=2, spare_bytes=1 << 40, progress=progress):
                nb.jit(**totals.mean_row.targetoptions)(totals.mean_row.py_func)(np.ones((1, 1)), np.ones(1))
        assert capsys.readouterr().err.startswith("compiling ") == said
        assert len(caplog.messages) == (level == "INFO")


def test_kernels_of_a_first_fit_are_counted(monkeypatch):
    counted = []
    monkeypatch.setattr(COMPILATION, "announced", True)
    progress = SimpleNamespace(count=lambda *given: counted.append(given))
    with COMPILATION.expecting("dense float32", n_threads=1, spare_bytes=1 << 40, progress=progress):
        compiling.kernel(totals.mean_row.py_func)(np.ones((1, 1)), np.ones(1))
    ((name, n_held, n_wanted),) = counted
    assert name == "kernels"
    assert 1 <= n_held <= n_wanted
    assert n_wanted >= len(precompile.kernels_of("dense float32"))


@pytest.mark.parametrize(
    "kind",
    [
        "dense float32",
        "dense float64",
        pytest.param("sparse float32", marks=pytest.mark.slow),
        "sparse float64",
        precompile.OTHER_CALLS,
    ],
)
def test_lists_of_kernels_name_what_first_fits_call(kind):
    """After a change of kernels: ``python -m tests.first_fits``."""
    found = [tuple(one) for one in run_fresh(first_fits.CALLED, [kind])]
    assert sorted(precompile.kernels_of(kind)) == sorted(found)


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
totals.mean_row(np.ones((2, 3)), np.ones(2))
print(json.dumps([totals.__file__, totals.mean_row.stats.cache_path, os.listdir(os.environ["TMPDIR"])]))
"""


@pytest.fixture
def homeless(tmp_path):
    """Runs code in a process whose kernels lie where nothing can be written; neither can its home.

    Files stand where folders would be made, which stops root, too.
    """
    package = Path(compiling.__file__).parents[1]
    shutil.copytree(package, tmp_path / "streamkm", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (tmp_path / "streamkm/kernels").rglob("*/"):
        (folder / "__pycache__").touch()
    (tmp_path / "home").touch()
    (tmp_path / "tmp").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    environment |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    command = [sys.executable, "-B", "-P", "-c"]
    return lambda code: subprocess.run([*command, code], env=environment, capture_output=True, text=True, check=False)


def test_kernels_are_kept_in_a_temporary_folder_where_no_other_can_be_written(tmp_path, homeless):
    done = homeless(HOMELESS)
    module, cache, made = json.loads(done.stdout)
    assert module.startswith(str(tmp_path))
    assert len(made) == 1
    assert cache.startswith(str(tmp_path / "tmp" / made[0]))
    assert done.stderr.count("set NUMBA_CACHE_DIR to a folder that stays") == 1
    assert not list((tmp_path / "tmp").iterdir())


def test_that_no_folder_at_all_can_be_written_is_said(homeless):
    done = homeless("import tempfile; tempfile.tempdir = '/dev/null'" + HOMELESS)
    assert done.stderr.splitlines()[-1].endswith("set NUMBA_CACHE_DIR to one that can")


CACHED_FIT = """
import json, sys
import numpy as np
from streamkm import StreamKMeans
from streamkm.kernels import precompile
COMPILER = ["numba.np.linalg", "numba.cpython.setobj", "numba.typed.typeddict"]
X = np.random.default_rng(0).normal(size=(300, 4))
StreamKMeans(3, random_state=0, progress=False).fit(X)
cached = [name in sys.modules for name in COMPILER]
kernel = precompile.dispatcher("cluster.totals.row_products")
type(kernel)(kernel.py_func, targetoptions=kernel.targetoptions)(X, X, np.ones(300))  # without a cache
print(json.dumps([cached, [name in sys.modules for name in COMPILER]]))
"""


def test_kernels_are_loaded_without_what_only_compiling_needs():
    StreamKMeans(3, random_state=0, progress=False).fit(np.random.default_rng(0).normal(size=(300, 4)))
    command = [sys.executable, "-c", CACHED_FIT]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout) == [[False] * 3, [True] * 3]


LIMITED = """
import json
import numpy as np
from streamkm.engine import under_limit
from streamkm.kernels import compiling
from streamkm.kernels.cluster import totals
with under_limit("1 GiB"):
    totals.row_products(np.ones((2, 3)), np.ones((2, 3)), np.ones(2))
    compiling.COMPILATION._compiler.kill()  # another is started
    compiling.COMPILATION._compiler.wait()
    totals.mean_row(np.ones((2, 3)), np.ones(3))
found = [totals.row_products, totals.mean_row]
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({"peak": int(status["VmHWM"].split()[0]) * 1024,
                  "loaded": [sum(one.stats.cache_hits.values()) for one in found],
                  "held": [len(one.overloads) for one in found],
                  "asked": sum(sum(one.stats.cache_misses.values()) for one in found)}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_kernels_are_compiled_by_another_process_where_a_limit_has_no_room_for_that(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LIMITED]
    told = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    assert told["asked"] >= 2
    assert told["loaded"] == told["held"]  # none was compiled here
    assert told["peak"] <= 1 << 30


class Watched(CountingSource):
    """Rows that notice whether another process would compile while they are read."""

    def read(self, chunk):
        self.elsewhere = [*vars(self).get("elsewhere", []), COMPILATION.elsewhere]
        return super().read(chunk)


ROOMY, TIGHT = "200 GiB", limited(PROCESS_MEMORY + (40 << 20))
UNDER_LIMIT = {
    "fit": (TIGHT, lambda source, **given: StreamKMeans(3, **given).fit(source)),
    "fit with steps": (TIGHT, lambda source, **given: StreamKMeans(3, preprocess=["standardize"], **given).fit(source)),
    "kernel fit": (ROOMY, lambda source, **given: StreamKernelKMeans(3, **given).fit(source)),
    "sweep": (ROOMY, lambda source, **given: sweep(source, [2, 3], **given)),
    "predict": (ROOMY, lambda source, **given: fitted().set_params(**given).predict(source)),
    "score": (ROOMY, lambda source, **given: fitted().set_params(**given).score(source)),
}


def fitted():
    return StreamKMeans(3, random_state=0, progress=False).fit(np.random.default_rng(1).random((300, 4), np.float32))


@pytest.mark.parametrize("call", UNDER_LIMIT)
def test_calls_under_a_limit_compile_elsewhere_as_long_as_they_take(call):
    limit, run = UNDER_LIMIT[call]
    for given, expected in ((limit, {True}), ("auto", {False})):
        source = Watched(np.random.default_rng(0).random((300, 4), np.float32))
        run(source, memory_limit=given, progress=False, random_state=0, executor=1)
        assert set(source.elsewhere) == expected
        assert not COMPILATION.elsewhere


def test_plans_and_refusals_leave_nothing_behind():
    X = np.ones((300, 4), np.float32)
    for estimator in (StreamKMeans(3, memory_limit="2 GiB"), StreamKernelKMeans(3, memory_limit="2 GiB")):
        estimator.plan(X)
        assert not COMPILATION.elsewhere
        with pytest.raises(MemoryLimitError):
            estimator.set_params(memory_limit="10 MiB", progress=False).fit(X)
        assert not COMPILATION.elsewhere


def test_calls_of_several_threads_may_end_in_any_order():
    first, second = under_limit("2 GiB"), under_limit("2 GiB")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert COMPILATION.elsewhere
    second.__exit__(None, None, None)
    assert not COMPILATION.elsewhere


@pytest.mark.slow
def test_helpers_fill_the_cache_of_a_first_fit(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", FIRST_FIT], env=environment, stdout=subprocess.PIPE, check=True)
    loaded, compiled = json.loads(done.stdout)
    assert loaded
    assert compiled
