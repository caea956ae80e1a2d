"""Switches that all threads of the process share (the garbage collector, BLAS), and modules that are imported late."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import threadpoolctl

logger = logging.getLogger(__name__)


class Shared:
    """Context manager for many threads: `begin` is called when the first enters, `end` when the last has left."""

    def __init__(self) -> None:
        self.lock, self.n_inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            if not self.n_inside:
                self.begin()
            self.n_inside += 1

    def __exit__(self, *raised: object) -> None:
        with self.lock:
            self.n_inside -= 1
            if not self.n_inside:
                self.end()

    def begin(self) -> None:
        """Do nothing; the lock is held."""

    def end(self) -> None:
        """Do nothing; the lock is held."""


class CollectorOff(Shared):
    """Context manager that stops garbage collection in all threads, for callers that hold a library's lock and fetch.

    Another thread brings the bytes; if it collected an object of the library whose end needs the lock, both would wait
    for ever (h5py's issue 2019). At the end the collector is as it was.
    """

    def begin(self) -> None:
        """Switch it off."""
        self._was_on = gc.isenabled()
        gc.disable()

    def end(self) -> None:
        """Switch it on again, if it was."""
        if self._was_on:
            gc.enable()


collector_off = CollectorOff()
"""The context manager of the process."""


class _StandIn(ModuleType):
    """Stand-in for a module, which passes all attribute look-ups on to it."""

    def place(self, module: ModuleType | None) -> None:
        """Put a module, or none, where ``import`` and the package look for this one."""
        package, _, name = self.__name__.rpartition(".")
        for names, key in ((sys.modules, self.__name__), (vars(sys.modules.get(package, self)), name)):
            if module is not None:
                names[key] = module
            elif names.get(key) is self:
                del names[key]

    def __getattr__(self, attribute: str) -> Any:
        self.place(None)
        return getattr(import_module(self.__name__), attribute)


@contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Context in which ``import NAME`` gives a stand-in, which imports the module at the first look-up of an attribute.

    Stand-ins are removed at the end; kept ones work on. Modules imported before, or not found, are left alone.
    """
    stand_ins = [_StandIn(name) for name in names if name not in sys.modules and find_spec(name)]
    for stand_in in stand_ins:
        stand_in.place(stand_in)
    try:
        yield
    finally:
        for stand_in in stand_ins:
            stand_in.place(None)


class _OneThread(Shared):
    """Context manager: BLAS has one thread, in all threads of the process, until the last one leaves.

    Our kernels multiply rows. BLAS and LAPACK get only small matrices, once and in one process: their last bits depend
    on the library and its threads, but not on the chunks.
    """

    def __init__(self) -> None:
        super().__init__()
        self._n_modules = 0
        self._found: threadpoolctl.ThreadpoolController | None = None
        self._limits: Any = None

    def begin(self) -> None:
        """Set BLAS to one thread."""
        _take_control()
        self._limits = self._controller().limit(limits=1, user_api="blas")

    def end(self) -> None:
        """Restore its threads."""
        _take_control()
        self._limits.restore_original_limits()
        _take_control()  # from this thread, for others

    def _controller(self) -> threadpoolctl.ThreadpoolController:
        """The libraries of this process; looked for again (3 ms) when other modules were imported since."""
        if self._found is None or self._n_modules != len(sys.modules):
            self._n_modules, self._found = len(sys.modules), threadpoolctl.ThreadpoolController()
            if not any(library["user_api"] == "blas" for library in self._found.info()):
                logger.info("no BLAS is known to threadpoolctl: it may use more threads, and differ in last bits")
        return self._found


def _take_control() -> None:
    """Make this thread's setting count: recent threadpoolctl obeys only the first thread that set a limit."""
    clear = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


ONE_BLAS_THREAD = _OneThread()
