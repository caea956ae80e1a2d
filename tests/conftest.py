"""Settings and small data that all tests share. Fixtures of the session are shared too: never write to them."""

from __future__ import annotations

import os

# Threads of OpenMP and BLAS that wait for work sleep: by default they look for it all the time, which takes processors
# from the tests beside them. Libraries read this when they are loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

import gc
import multiprocessing.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import dask
import dask.array  # before `pytest_configure`: it leaves garbage collection off for good if it was off meanwhile
import distributed
import numpy as np
import psutil
import pytest
import scipy.sparse as sp
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, settings

from streamkm.cluster import in_memory
from streamkm.engine import checkpoint as saving
from streamkm.planning import request as fit_request
from streamkm.planning.memory_budget import MemoryBudget
from tests.benchmarks.make_topics import Topics
from tests.programs import forking

multiprocessing.util.get_temp_dir()  # of sockets, whose paths must be short: before any test has folders of its own
REDUCED = bool(os.environ.get("STREAMKM_REDUCED"))
SLOW_IN_CONTRACTS = (
    "test_input_may_be_read_only",
    "test_dense_is_csr[int16]",
    "test_dense_is_csr[int64]",
    "test_dense_is_csr[bool]",
)
"""Cases of shipped contracts for which kernels are compiled that few fits use."""
SLOW_CHECKS = (
    "sparse", "sample_weight", "readonly_memmap", "dtype", "not_an_array", "pipeline", "idempotent", "general",
    "subset_invariance", "takes_y", "nan_inf", "n_features_in",
)  # fmt: skip
"""Words in names of scikit-learn's checks that are slow but of StreamKMeans: validation is the same for all."""
WITH_COMPILED = {"test_compiling", "test_kernel_memory", "test_killed_commands", "test_memory", "test_processors"}
"""Modules whose processes take much longer, or are run twice, where kernels are not in the cache yet."""

# Compilation makes the first example slow, so no deadline. HYPOTHESIS_PROFILE=explore looks for new examples.
settings.register_profile(
    "ci",
    max_examples=8 if REDUCED else 15,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", max_examples=500, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory where there is room, unless somebody says where; collect no garbage yet."""
    gc.disable()
    memory = Path("/dev/shm")
    if (
        config.option.basetemp is None
        and "PYTEST_DEBUG_TEMPROOT" not in os.environ
        and os.access(memory, os.W_OK)
        and min(shutil.disk_usage(memory).free, psutil.virtual_memory().available // 2) >= 2 << 30
    ):
        os.environ["PYTEST_DEBUG_TEMPROOT"] = str(memory)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what reduced runs need not do; put those last that start processes which would compile kernels."""
    for item in items:
        is_check = item.name.startswith("test_scikit_learn_checks[") and "[StreamKMeans(" not in item.name
        if item.name.endswith(SLOW_IN_CONTRACTS) or (is_check and any(word in item.name for word in SLOW_CHECKS)):
            item.add_marker(pytest.mark.slow)
    left_out = [item for item in items if REDUCED and item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.stem in WITH_COMPILED)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was collected to no garbage collector: each full collection would look at half a million objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


# Clusters of the tests do nothing most of the time: what they do then (a look at every thread each 10 ms, a tick each
# 20 ms, a look at the memory each 100 ms) takes from the tests beside them.
dask.config.set(
    {
        "distributed.worker.profile.enabled": False,
        "distributed.worker.memory.monitor-interval": "1s",
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.system-monitor.interval": "10s",
        "distributed.worker.multiprocessing-method": "forkserver",
    }
)
distributed.utils._forkserver_preload_set = True  # to what `forking` says
forking()


class Labelled(NamedTuple):
    """A matrix and the class of each row."""

    X: np.ndarray | sp.csr_array
    y: np.ndarray


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows do not stay in memory for a second pass: each reads them."""
    monkeypatch.setattr(MemoryBudget, "room_for_rows", lambda *_: 0)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that stops a fit behind the save of a record; whatever can be saved is, at once, by later fits too."""
    from tests.children import StoppedError, stopped_after

    monkeypatch.setattr(saving, "INTERVAL_S", 0.0)
    monkeypatch.setattr(saving, "SHARE", 1.0)

    def fit_and_stop(kmeans, X, checkpoint, record: str, times: int = 1) -> None:
        with monkeypatch.context() as patched:
            stopped_after(patched, record, times)
            with pytest.raises(StoppedError):
                kmeans.fit(X, checkpoint=checkpoint)

    return fit_and_stop


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    """A Dask cluster of two processes of one thread each. Tests that harm workers start their own."""
    quiet = {"dashboard": False, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, scheduler_kwargs=quiet) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """A folder that is not kept in memory, for tests that measure memory."""
    with tempfile.TemporaryDirectory(prefix="streamkm-test-") as folder:
        yield Path(folder)


@pytest.fixture
def disk_path(disk: Path) -> Path:
    """A folder for one test, where `tmp_path` may be in memory."""
    return Path(tempfile.mkdtemp(dir=disk))


@pytest.fixture(scope="session")
def reduced() -> bool:
    """Whether slow tests should take the smaller of their sizes."""
    return REDUCED


@pytest.fixture(scope="session")
def small_topics() -> Labelled:
    """CSR float32 (2,000, 3,000), unit rows of 10 topics."""
    return Labelled(*Topics(n_features=3_000, n_topics=10, seed=0).matrix(2_000))


@pytest.fixture(scope="session")
def small_digits() -> Labelled:
    """uint8 (1,500, 64), values 0-255 and mostly 0: ten well separated patterns with noise, like images of digits."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(120, 220, (10, 64)) * (rng.random((10, 64)) < 0.4)
    y = rng.integers(10, size=1_500)
    noise = rng.normal(0, 15, (1_500, 64)) * (patterns[y] > 0)
    return Labelled(np.clip(patterns[y] + noise, 0, 255).astype(np.uint8), y)


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row sample of 300 rows."""
    monkeypatch.setattr(fit_request, "SMALLEST_SAMPLE_ROWS", 300)
    monkeypatch.setattr(fit_request, "SAMPLE_ROWS_PER_CLUSTER", 1)


@pytest.fixture
def sample_of_10_000(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row sample of 10,000 rows for up to 50 clusters: a fifth of what fits have otherwise."""
    monkeypatch.setattr(fit_request, "SMALLEST_SAMPLE_ROWS", 10_000)
    monkeypatch.setattr(fit_request, "SAMPLE_ROWS_PER_CLUSTER", 200)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share work however little there is."""
    monkeypatch.setattr(in_memory, "PIECE_ENTRIES", 1)


@pytest.fixture(scope="module")
def small_pieces_throughout() -> Iterator[None]:
    """As `small_pieces`, in a whole module."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(in_memory, "PIECE_ENTRIES", 1)
        yield


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A file system of 1 MiB, and a function that gives it more."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place, lambda: subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture(scope="session")
def processes(tmp_path_factory):
    """Processes of a scheduler without workers, and a client."""
    from tests.dask_processes import cluster_of

    with cluster_of(tmp_path_factory.mktemp("cluster"), 0) as opened:
        yield opened


@pytest.fixture
def cluster(processes):
    """Processes of a scheduler and three workers that live, and a client."""
    from tests.dask_processes import N_WORKERS

    started, client = processes
    started.refill(client, N_WORKERS)
    return started, client
