"""Modules that another package imports and hardly uses: not imported before they are used.

Imports importlib only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


@contextmanager
def deferred(*names: str) -> Iterator[None]:
    """Within, ``import NAME`` gives a stand-in, which imports the module when an attribute of it is first asked for.

    At the end stand-ins are taken out again: the next ``import NAME`` is like any other, and whoever has kept a
    stand-in gets what the module has. What has been imported before, or cannot be found, is left alone.

    Parameters
    ----------
    *names : str
        Of modules, as in ``import NAME``; what is within a package that is named must not be imported within.
    """
    finder = _Finder(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in names:
            stand_in = sys.modules.get(name)
            if isinstance(stand_in, _StandIn):
                stand_in.leave()


class _StandIn(ModuleType):
    """Takes the place of a module, and asks it for whatever it is asked for."""

    def leave(self) -> None:
        """Go, if it is still there; also out of the package that the module is in."""
        name = self.__name__
        package, _, module = name.rpartition(".")
        if sys.modules.get(name) is self:
            del sys.modules[name]
        if package and vars(sys.modules[package]).get(module) is self:
            delattr(sys.modules[package], module)

    def __getattr__(self, attribute: str) -> Any:
        self.leave()
        return getattr(import_module(self.__name__), attribute)


class _Finder(MetaPathFinder, Loader):
    """Finds some modules once each, and loads stand-ins for them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = set(names)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        found = PathFinder.find_spec(fullname, path, target) if fullname in self._names else None
        if found is None:
            return None
        self._names.remove(fullname)
        spec = ModuleSpec(fullname, self)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """See `importlib.abc.Loader`."""
        module = _StandIn(spec.name)
        module.__path__ = spec.submodule_search_locations or []  # else it would be asked for, and import the module
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module is imported when it is used."""
