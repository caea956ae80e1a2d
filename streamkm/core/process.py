"""What the whole process shares: switches that threads share, and modules that are imported late.

Imports the standard library only.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class Shared:
    """Context manager of many threads: `begin` is called when the first enters, `end` when the last has left."""

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
    """Context manager: no collection begins inside, in any thread; several threads may be inside.

    For callers that fetch while they hold a library's lock. Bytes come by another thread; had that one to collect an
    object of the library, whose end waits for the lock, both would wait for ever (h5py's issue 2019). What there is to
    collect is collected afterwards, by a collector that is left as it was found.
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
"""Of the process."""


class _StandIn(ModuleType):
    """Takes the place of a module, and asks it for whatever it is asked for."""

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
    """Within, ``import NAME`` gives a stand-in, which imports the module when an attribute of it is first asked for.

    At the end stand-ins are taken out again: the next ``import NAME`` is like any other, and whoever has kept a
    stand-in gets what the module has. What has been imported before, or cannot be found, is left alone.
    """
    stand_ins = [_StandIn(name) for name in names if name not in sys.modules and find_spec(name)]
    for stand_in in stand_ins:
        stand_in.place(stand_in)
    try:
        yield
    finally:
        for stand_in in stand_ins:
            stand_in.place(None)
