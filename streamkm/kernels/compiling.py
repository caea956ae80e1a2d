"""Compilation of kernels: once for all processes that share a cache on disk, with messages and timings.

Numba compiles a function when it is first called with arguments of some types. Imports numba, `core` and the standard
library only.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import numba as nb
from numba.core import event
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys

from streamkm.core.exceptions import OutputError
from streamkm.core.process import collector_off
from streamkm.core.progress import COMPILING, Progress

try:
    import fcntl
except ImportError:  # not on Windows: there each process compiles for itself
    fcntl = None

logger = logging.getLogger("streamkm.kernels")
_NO_LOCKS = (AttributeError, OSError, ValueError)  # Windows, such a file system, and where there is no folder
SAID = "compiling kernels, once per installation; streamkm warm compiles them beforehand"
_BESIDE_COMPILING = ("typeof_pyval", "_compilation_chain_init_hook")
"""Dispatcher methods that touch the type table, which a compiling thread fills too."""


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function at its first call, without the interpreter's lock, and keep it on disk.

    `options`: of `numba.njit`, such as `fastmath`. Returns a numba dispatcher, or the function itself with
    ``NUMBA_DISABLE_JIT=1``. A function that another process is compiling is waited for and loaded.
    """
    if function is None:
        return partial(kernel, **options)
    # no wrapper for C: only Python and other kernels call it
    dispatcher = nb.njit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    if dispatcher is not function:
        dispatcher.compile = partial(_compile_alone, dispatcher)
        for name in _BESIDE_COMPILING:
            setattr(dispatcher, name, global_compiler_lock(getattr(dispatcher, name)))
        dispatcher._cache = _Cache(function)
    return dispatcher


def inner_kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function that only kernels call, without the wrapper for Python, a quarter of a short kernel."""
    return kernel(function, no_cpython_wrapper=True, **options)


def compile_elsewhere(needed: Any) -> None:
    """Compile what fits call in another process, as that takes memory, if the cache on disk lacks a kernel."""
    is_interpreter = sys.executable and not hasattr(sys, "frozen")
    if nb.config.DISABLE_JIT or not is_interpreter or needed._cache._cache_file._load_index():
        return
    Progress.latest.say(SAID)
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-m", "streamkm", "warm", "--quiet"]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    COMPILING.seconds += time.perf_counter() - started


class _Cache(FunctionCache):
    """Numba's cache on disk; loads functions without the 0.3 s of imports that only compiling needs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            super().__init__(function)
        except RuntimeError:  # neither the package's folder nor one of the user's can be written
            _use_temporary_folder()
            super().__init__(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load as `FunctionCache.load_overload` does, without its refresh of the context."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None  # it could not be read


def _use_temporary_folder() -> None:
    """Cache kernels of this process and its children in a folder of their own: cached code is executed."""
    try:
        folder = tempfile.mkdtemp(prefix="streamkm-kernels-")
    except OSError as reason:
        raise OutputError(
            f"compiled kernels cannot be kept: no folder can be written ({reason}); set NUMBA_CACHE_DIR to one that can"
        ) from reason
    os.environ["NUMBA_CACHE_DIR"] = folder
    nb.config.reload_config()
    atexit.register(_remove, folder, os.getpid())
    logger.warning(
        "no folder for compiled kernels can be written, so this process compiles them anew, in %s; set NUMBA_CACHE_DIR "
        "to a folder that stays",
        folder,
    )


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _compile_alone(dispatcher: Any, signature: Any) -> Any:
    """Compile or load a function while no other process compiles it.

    Callers are compiled before what they call and no function calls itself, so that none waits for itself.
    """
    # collections would look at all that is imported, and free little of what numba makes
    with collector_off, global_compiler_lock, _locked(dispatcher):
        return type(dispatcher).compile(dispatcher, signature)


@contextmanager
def _locked(dispatcher: Any) -> Iterator[None]:
    """Hold a function's lock among all processes that use its cache, where the file system has locks."""
    name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__qualname__}"
    file, byte = _lock_file(dispatcher.stats.cache_path), zlib.crc32(name.encode())
    with suppress(*_NO_LOCKS):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
    try:
        yield
    finally:
        with suppress(*_NO_LOCKS):
            fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


@cache
def _lock_file(folder: str) -> int:
    """Open the file whose bytes are the locks of a cache; it stays open, as closing it drops all locks."""
    with suppress(OSError):
        os.makedirs(folder, exist_ok=True)
        return os.open(os.path.join(folder, "kernels.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    return -1


class _Compilation(event.Listener):
    """Listener that logs, times and counts compilations that the cache lacks; numba's lock is held."""

    def __init__(self) -> None:
        self._started: list[float] = []

    def on_start(self, event: Any) -> None:
        """Note when numba begins to compile a function."""
        ours = event.data["dispatcher"].py_func.__module__.startswith("streamkm.kernels")
        if ours and not self._started and not COMPILING.done:
            Progress.latest.say(SAID)
        self._started.append(time.perf_counter() if ours or self._started else math.inf)

    def on_end(self, event: Any) -> None:
        """Log when numba has finished, by an error too."""
        started = self._started.pop()
        if not self._started and started < math.inf:
            COMPILING.seconds += time.perf_counter() - started
            COMPILING.advance()


event.register("numba:compile", _Compilation())
