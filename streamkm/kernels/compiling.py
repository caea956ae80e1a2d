"""How kernels are compiled: once for all processes that share a cache, side by side with others of a first fit.

Numba compiles a function when it is first called with arguments of some types, and keeps what it made in its cache on
disk. A process holds one lock while it compiles, so that threads do not help; processes do. Imports numba, `core`
and the standard library only.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba as nb
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock

from streamkm.core.collector import collector_off
from streamkm.kernels.ahead import kernels_of

try:
    import fcntl
except ImportError:  # not on Windows: there each process compiles for itself
    fcntl = None

logger = logging.getLogger("streamkm.kernels")
HELPERS_MOST = 3
"""Processes that compile beside a first fit: each takes most of a second to start."""
HELPER_BYTES = 256 << 20
"""Resident memory of such a process at most."""
_LOCKS: dict[str, int | None] = {}


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Compile a function at its first call, without the interpreter's lock, and keep it on disk.

    Parameters
    ----------
    function : callable
    **options
        Of `numba.njit`, such as `fastmath`.

    Returns
    -------
    callable
        A numba dispatcher. A function that another process compiles now is waited for and loaded; with
        ``NUMBA_DISABLE_JIT=1`` the function as it is.
    """
    if function is None:
        return partial(kernel, **options)
    # no wrapper for C: only Python and other kernels call it
    dispatcher = nb.njit(nogil=True, cache=True, no_cfunc_wrapper=True, **options)(function)
    if dispatcher is not function:
        dispatcher.compile = partial(_compile_alone, dispatcher)
    return dispatcher


def _compile_alone(dispatcher: Any, signature: Any) -> Any:
    """Compile or load a function while no other process compiles it.

    Callers are compiled before what they call and no function calls itself, so that none waits for itself.
    """
    with global_compiler_lock, _locked(dispatcher):
        return type(dispatcher).compile(dispatcher, signature)


@contextmanager
def _locked(dispatcher: Any) -> Iterator[None]:
    """Hold the lock of a function among all processes that use its cache, as far as there are locks."""
    file, byte = _lock_file(dispatcher.stats.cache_path), _lock_byte(dispatcher.py_func)
    try:
        if file is not None:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, byte)
    except OSError:  # none on this file system
        file = None
    try:
        yield
    finally:
        if file is not None:
            fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)


def _lock_file(folder: str) -> int | None:
    """The file whose bytes are the locks of a cache; stays open, because closing it would give all of them up."""
    if folder not in _LOCKS:
        _LOCKS[folder] = None
        if fcntl is not None:
            try:
                os.makedirs(folder, exist_ok=True)
                _LOCKS[folder] = os.open(os.path.join(folder, "kernels.lock"), os.O_RDWR | os.O_CREAT, 0o644)
            except OSError:
                logger.debug("no file of locks in %s", folder)
    return _LOCKS[folder]


def _lock_byte(function: Callable[..., Any]) -> int:
    return zlib.crc32(f"{function.__module__}.{function.__qualname__}".encode())


class Compilation(event.Listener):
    """What is done whenever a kernel is compiled because the cache does not hold it."""

    def __init__(self) -> None:
        self.announced = False
        self._announce: Callable[[str], None] = logger.info
        self._first_fit = ("", 0)
        self._helped = False
        self._depth = 0

    @contextmanager
    def expecting(
        self, first_fit: str, *, n_threads: int, spare_bytes: int, announce: Callable[[str], None]
    ) -> Iterator[None]:
        """Have processes compile what a first fit needs beside it, from the first kernel on that the cache lacks.

        Once in the life of a process: what they find in the cache they only load, which takes them a second.

        Parameters
        ----------
        first_fit : str
            What is fitted; see `ahead.LIST`.
        n_threads : int
            Of this fit: one process less is started, up to `HELPERS_MOST`.
        spare_bytes : int
            Memory that the fit leaves: `HELPER_BYTES` for each of them.
        announce : callable
            Given the line that says, once in the life of a process, that kernels are compiled.
        """
        self._first_fit = first_fit, min(n_threads - 1, HELPERS_MOST, spare_bytes // HELPER_BYTES)
        self._announce = announce
        try:
            yield
        finally:
            self._first_fit, self._announce = ("", 0), logger.info

    def on_start(self, event: Any) -> None:
        """Called where numba begins to compile a function; numba's lock is held."""
        self._depth += 1
        if self._depth == 1:  # collections look at all that is imported, and free little of what numba makes
            collector_off.__enter__()
        if not event.data["dispatcher"].py_func.__module__.startswith("streamkm.kernels"):
            return
        if not self.announced:
            self.announced = True
            self._announce("compiling kernels, once; later fits of such data begin some seconds sooner")
        first_fit, n_helpers = self._first_fit
        if n_helpers > 0 and not self._helped and kernels_of(first_fit):
            self._helped = True
            start_helpers(first_fit, n_helpers)

    def on_end(self, event: Any) -> None:
        """Called where it has ended, by an error too."""
        self._depth -= 1
        if self._depth == 0:
            collector_off.__exit__()


def start_helpers(first_fit: str, n_helpers: int) -> None:
    """Start processes that compile the kernels of a first fit, and end; none where there are no locks between them.

    Parameters
    ----------
    first_fit : str
    n_helpers : int
    """
    if fcntl is None or not sys.executable or getattr(sys, "frozen", False):  # frozen: no interpreter
        return
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    nothing = subprocess.DEVNULL
    for helper in range(n_helpers):
        program = (
            f"from streamkm.kernels.ahead import compile_ahead; compile_ahead({first_fit!r}, {helper}, {n_helpers})"
        )
        command = [sys.executable, "-P", "-c", program]
        try:
            process = subprocess.Popen(command, env=environment, stdin=nothing, stdout=nothing, stderr=nothing)
        except OSError as error:
            logger.debug("no process compiles beside this one: %s", error)
            return
        threading.Thread(target=process.wait, name="streamkm-compiling", daemon=True).start()
        atexit.register(process.kill)


COMPILATION = Compilation()
event.register("numba:compile", COMPILATION)
