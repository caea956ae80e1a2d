"""How much of a fit is orchestration: what is left when kernels, reads and matrix products are taken out.

Timers are put around the doors of the engine after a warm-up fit has compiled everything: every compiled function of
`streamkm.kernels`, `read` and `index_rows` of every source, `numpy.matmul`, `numpy.copyto` (rows to floats), and
`apply` and `fit` of the PCA sketch. What is called inside of another timed call counts once. Two shares come out:

- *idle*: seconds in which no thread is inside a timed call, over seconds of the fit;
- *outside*: processor seconds of the main and the worker threads outside timed calls, by the number of threads, over
  seconds of the fit. Waiting is not in it, whatever Python does between two kernels is.

NumPy's sums, copies and allocations outside of these count as orchestration, so both are upper bounds.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np

Interval = tuple[float, float]


@dataclass
class Timers:
    """Timed calls of all threads.

    Attributes
    ----------
    inside : list of (start, stop)
        Of the outermost timed calls.
    stages : list of (name, start, stop)
    seconds : dict of str to float
        Inside, by name, summed over threads.
    inside_cpu, tasks_cpu : float
        Processor seconds inside timed calls, and of all tasks of the workers.
    """

    inside: list[Interval] = field(default_factory=list)
    stages: list[tuple[str, float, float]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    inside_cpu: float = 0.0
    tasks_cpu: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    here: threading.local = field(default_factory=threading.local)

    def timed(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function with a timer around it."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(self.here, "depth", 0):
                return function(*args, **kwargs)
            self.here.depth = 1
            started, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                cpu = time.thread_time() - cpu
                stopped = time.perf_counter()
                self.here.depth = 0
                with self.lock:
                    self.inside.append((started, stopped))
                    self.inside_cpu += cpu
                    self.seconds[name] = self.seconds.get(name, 0.0) + stopped - started

        return call

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A worker's task whose processor time is taken."""

        def call(*args: Any, **kwargs: Any) -> Any:
            cpu = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                with self.lock:
                    self.tasks_cpu += time.thread_time() - cpu

        return call


class _Products:
    """NumPy with timers around `matmul` and `copyto`, which makes floats of rows for it."""

    def __init__(self, timers: Timers):
        self.matmul = timers.timed(np.matmul, "matmul")
        self.copyto = timers.timed(np.copyto, "conversion")

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@contextmanager
def installed(timers: Timers) -> Iterator[None]:
    """Put the timers around the doors, for a while."""
    from streamkm.core.progress import Progress
    from streamkm.sketches.pca import PCASketch
    from streamkm.sources.base import ChunkedSource

    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    modules = {name: module for name, module in sys.modules.items() if name.startswith("streamkm")}
    kernels = {}
    for name, module in modules.items():
        for attribute, value in vars(module).items():
            if name.startswith("streamkm.kernels") and hasattr(value, "py_func"):
                kernels[value] = timers.timed(value, attribute)
    products = _Products(timers)
    for name, module in modules.items():
        for attribute, value in list(vars(module).items()):
            if hasattr(value, "py_func") and value in kernels:
                put(module, attribute, kernels[value])
            elif value is np and not name.startswith("streamkm.kernels"):
                put(module, attribute, products)
    for source in _subclasses(ChunkedSource):
        for door in ("read", "index_rows"):
            if door in vars(source):
                put(source, door, timers.timed(vars(source)[door], door))
    put(PCASketch, "apply", timers.timed(PCASketch.apply, "pca apply"))
    put(PCASketch, "fit", classmethod(timers.timed(PCASketch.fit.__func__, "pca fit")))
    put(Progress, "stage", _staged(Progress.stage, timers))
    submit = ThreadPoolExecutor.submit

    def submit_timed(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        name = str(getattr(pool, "_thread_name_prefix", ""))
        ours = name.startswith("streamkm") and name != "streamkm-decode"  # decoding is part of a read, which is timed
        return submit(pool, timers.task(function) if ours else function, *args, **kwargs)

    try:
        with patch.object(ThreadPoolExecutor, "submit", submit_timed):
            yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def shares(data: str, k: int, runs: int) -> dict[str, Any]:
    """Fit a few times; the median shares of orchestration, by stage too, and seconds inside by name."""
    from streamkm import StreamKMeans

    X: Any = data
    if Path(data).suffix == ".npz":
        import scipy.sparse as sp

        X = sp.load_npz(data)

    def fit() -> StreamKMeans:
        return StreamKMeans(k, random_state=0, progress=False).fit(X)

    fit()
    found = []
    for _ in range(runs):
        timers = Timers()
        with installed(timers):
            started, cpu = time.perf_counter(), time.thread_time()
            fitted = fit()
            cpu, stopped = time.thread_time() - cpu, time.perf_counter()
        del fitted  # whoever fits keeps the result: that it is forgotten here is no part of the time
        seconds = stopped - started
        covered = _union(timers.inside, (started, stopped))
        outside = (cpu + timers.tasks_cpu - timers.inside_cpu) / (os.cpu_count() or 1)
        stages = {
            name: {"seconds": stop - start, "idle": stop - start - _union(timers.inside, (start, stop))}
            for name, start, stop in timers.stages
        }
        found.append(
            {
                "seconds": seconds,
                "idle": 1 - covered / seconds,
                "outside": outside / seconds,
                "stages": stages,
                "inside": dict(sorted(timers.seconds.items(), key=lambda item: -item[1])),
            }
        )
    middle = sorted(found, key=lambda one: one["idle"])[len(found) // 2]
    return {**middle, **{name: median(one[name] for one in found) for name in ("seconds", "idle", "outside")}}


def _staged(stage: Any, timers: Timers) -> Any:
    @contextmanager
    def staged(*args: Any, **kwargs: Any) -> Iterator[Any]:
        started = time.perf_counter()
        try:
            with stage(*args, **kwargs) as entered:
                yield entered
        finally:
            timers.stages.append((args[1], started, time.perf_counter()))

    return staged


def _subclasses(parent: type) -> Iterator[type]:
    yield parent
    for child in parent.__subclasses__():
        yield from _subclasses(child)


def _union(intervals: list[Interval], within: Interval) -> float:
    """Length of what intervals cover together inside of one."""
    covered, reached = 0.0, within[0]
    for start, stop in sorted(intervals):
        begin, end = max(start, reached), min(stop, within[1])
        if end > begin:
            covered += end - begin
            reached = end
    return covered
