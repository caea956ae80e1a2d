"""How kernels are compiled: once for all processes that share a cache, side by side with others of a first fit.

Numba compiles a function when it is first called with arguments of some types, and keeps what it made in its cache on
disk. A process holds one lock while it compiles, so that threads do not help; processes do. Compiling takes memory that
the process keeps: where its limit has no room for that, another process compiles, and this one loads what that one has
put in the cache. Imports numba, `core` and the standard library only.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import numba as nb
from numba.core import event
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.runtime import rtsys

from streamkm.core.exceptions import OutputError
from streamkm.core.gc_guard import collector_off
from streamkm.core.progress import COMPILING, Progress
from streamkm.kernels.precompile import kernels_of, name_of, text_of

try:
    import fcntl
except ImportError:  # not on Windows: there each process compiles for itself
    fcntl = None

logger = logging.getLogger("streamkm.kernels")
HELPERS_MOST = 3
"""Processes that compile beside a first fit: each takes most of a second to start."""
HELPER_BYTES = 320 << 20
"""Resident memory of such a process at most."""
COMPILING_BYTES = 144 << 20
"""By which resident memory grows in a process that compiles the kernels of a fit: 117 MiB were measured."""
_LOCKS: dict[str, int | None] = {}
_BESIDE_COMPILING = ("typeof_pyval", "_compilation_chain_init_hook")
"""Methods of dispatchers that look up the table of arguments' types, or add to it what other packages have: so does
what only compiling needs, which is loaded when a function is compiled first, by a thread among others."""


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
    dispatcher = nb.njit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    if dispatcher is not function:
        dispatcher.compile = partial(_compile_alone, dispatcher)
        for name in _BESIDE_COMPILING:
            setattr(dispatcher, name, _while_none_compiles(getattr(dispatcher, name)))
        dispatcher._cache = _Cache(function)
    return dispatcher


def inner_kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """As `kernel`, of a function that only kernels call: without a wrapper for Python, a quarter of a short one."""
    return kernel(function, no_cpython_wrapper=True, **options)


class _Cache(FunctionCache):
    """Numba's cache on disk, from which functions are loaded without what only compiling needs.

    Numba loads what it knows of Python and NumPy before it looks into the cache, 0.3 s. Functions that were compiled
    need none of it; where one must be compiled, numba loads it then.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        try:
            super().__init__(function)
        except RuntimeError:  # neither the package's folder nor one of the user's can be written
            _use_temporary_folder()
            super().__init__(function)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As `FunctionCache.load_overload`; what it would do first but for the memory of arrays is left out."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None  # it could not be read


def _use_temporary_folder() -> None:
    """Have numba cache functions in a folder that this process and those that it starts share, and that it removes.

    A folder of its own, because what is loaded from a cache is executed.

    Raises
    ------
    OutputError
        There is no folder for temporary files, either.
    """
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


def _while_none_compiles(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a dispatcher, waiting for a thread that compiles."""

    def call(*arguments: Any) -> Any:
        with global_compiler_lock:
            return method(*arguments)

    return call


def _compile_alone(dispatcher: Any, signature: Any) -> Any:
    """Compile or load a function while no other process compiles it; have it compiled where there is no memory for it.

    Callers are compiled before what they call and no function calls itself, so that none waits for itself.
    """
    with global_compiler_lock, COMPILATION.counted(dispatcher, signature):
        try:
            with _locked(dispatcher):
                return type(dispatcher).compile(dispatcher, signature)
        except _ElsewhereError:
            COMPILATION.have_compiled(dispatcher, signature)
        with _locked(dispatcher), COMPILATION.here():
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


class _ElsewhereError(Exception):
    """A kernel is not in the cache, and is not to be compiled by this process."""


class Compilation(event.Listener):
    """What is done whenever a kernel is compiled because the cache does not hold it.

    Attributes
    ----------
    announced : bool
        Whether it has been said.
    """

    def __init__(self) -> None:
        self.announced = False
        self._n_crowded, self._here = 0, False
        self._counting = threading.Lock()
        self._progress: Progress | None = None
        self._held: set[tuple[str, str]] = set()
        self._nested, self._depth, self._helped = 0, 0, False
        self._first_fit = ("", 0)
        self._compiler: subprocess.Popen[str] | None = None
        self._process = 0

    @contextmanager
    def expecting(self, first_fit: str, *, n_threads: int, spare_bytes: int, progress: Progress) -> Iterator[None]:
        """Have processes compile what a first fit needs beside it, from the first kernel on that the cache lacks.

        Once in the life of a process: what they find in the cache they only load, which takes them a second.

        Parameters
        ----------
        first_fit : str
            What is fitted; see `precompile.LIST`.
        n_threads : int
            Of this fit: one process less is started, up to `HELPERS_MOST`.
        spare_bytes : int
            Memory that the fit leaves: `HELPER_BYTES` for each of them. Below `COMPILING_BYTES`, this process compiles
            nothing, and one other all.
        progress : Progress
            As of `shown_on`.
        """
        self._first_fit = first_fit, min(n_threads - 1, HELPERS_MOST, spare_bytes // HELPER_BYTES)
        try:
            with self.shown_on(progress), self.crowded() if spare_bytes < COMPILING_BYTES else nullcontext():
                yield
        finally:
            self._first_fit = "", 0

    @contextmanager
    def shown_on(self, progress: Progress) -> Iterator[None]:
        """Have `progress` say, once in the life of a process, that kernels are compiled, and count them."""
        self._progress = progress
        try:
            yield
        finally:
            self._progress = None

    @contextmanager
    def counted(self, dispatcher: Any, signature: Any) -> Iterator[None]:
        """Count a kernel that Python called, and time what is compiled; numba's lock is held."""
        started = time.perf_counter()
        self._nested += 1
        try:
            yield
        finally:
            self._nested -= 1
        if self._nested == 0:
            COMPILING.seconds += (time.perf_counter() - started) * self.announced
            self._held.add((name_of(dispatcher.py_func), text_of(signature)))
            self._show_count()

    def _show_count(self) -> None:
        """Show how many kernels are held, of these and those that such a first fit calls."""
        if self.announced and self._progress is not None:
            wanted = set(kernels_of(self._first_fit[0]))
            self._progress.count("kernels", len(self._held), len(wanted | self._held) if wanted else None)

    @property
    def elsewhere(self) -> bool:
        """Whether another process is to compile: a call of this one has no memory for that."""
        return self._n_crowded > 0 and not self._here

    @contextmanager
    def crowded(self) -> Iterator[None]:
        """Have another process compile within. Calls are counted: those of several threads end in any order."""
        with self._counting:
            self._n_crowded += 1
        try:
            yield
        finally:
            with self._counting:
                self._n_crowded -= 1

    @contextmanager
    def here(self) -> Iterator[None]:
        """Compile in this process within, whatever the limit: another one has been asked, or none can be started.

        Numba's lock is held.
        """
        self._here = True
        try:
            yield
        finally:
            self._here = False

    def have_compiled(self, dispatcher: Any, signature: Any) -> None:
        """Have another process compile a kernel, and wait for it; numba's lock is held."""
        question = json.dumps([name_of(dispatcher.py_func), text_of(signature)])
        if self._process != os.getpid():  # what asks and is forked has to start its own
            self._compiler, self._process = None, os.getpid()
        for _ in range(2):  # one that was started before may have ended, as it was not asked for long
            if self._compiler is None:
                self._compiler = _start(f"compile_as_asked({self._first_fit[0]!r})", stdin=subprocess.PIPE)
            if self._compiler is None or _answers(self._compiler, question):
                return
            self._compiler = None

    def on_start(self, event: Any) -> None:
        """Called where numba begins to compile a function; numba's lock is held."""
        self._depth += 1
        if self._depth == 1:  # collections look at all that is imported, and free little of what numba makes
            collector_off.__enter__()
        if not event.data["dispatcher"].py_func.__module__.startswith("streamkm.kernels"):
            return
        first_fit, n_helpers = self._first_fit
        if not self.announced:
            self.announced = True
            n_kernels = len(kernels_of(first_fit)) or "some"
            line = f"compiling {n_kernels} kernels, kept for later runs; streamkm warm compiles them beforehand"
            (logger.info if self._progress is None else self._progress.say)(line)
            self._show_count()
        if n_helpers > 0 and not self._helped and kernels_of(first_fit):
            self._helped = True
            for helper in range(n_helpers):
                _start(f"compile_ahead({first_fit!r}, {helper}, {n_helpers})")
        if self.elsewhere and self._depth == 1:
            raise _ElsewhereError

    def on_end(self, event: Any) -> None:
        """Called where it has ended, by an error too."""
        self._depth -= 1
        if self._depth == 0:
            collector_off.__exit__()


def _start(call: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str] | None:
    """Start a process that calls a function of `precompile`; none where there are no locks between processes.

    Parameters
    ----------
    call : str
    stdin : int
        As of `subprocess`: a pipe if it is to be asked, and to answer.
    """
    if fcntl is None or not sys.executable or getattr(sys, "frozen", False):  # frozen: no interpreter
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", f"from streamkm.kernels import precompile; precompile.{call}"]
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=stdin, stdout=stdin, stderr=subprocess.DEVNULL, text=True
        )
    except OSError as error:
        logger.debug("no process compiles beside this one: %s", error)
        return None
    threading.Thread(target=process.wait, name="streamkm-compiling", daemon=True).start()
    atexit.register(process.kill)
    return process


def _answers(compiler: subprocess.Popen[str], question: str) -> bool:
    """Ask, and wait; False where the process has ended."""
    try:
        compiler.stdin.write(question + "\n")
        compiler.stdin.flush()
        if compiler.stdout.readline():
            return True
    except OSError:
        logger.debug("the process that compiles has ended")
    with suppress(OSError):
        compiler.stdin.close()
    compiler.stdout.close()
    return False


COMPILATION = Compilation()
event.register("numba:compile", COMPILATION)
