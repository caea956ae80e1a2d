"""A module that another package imports and hardly uses: not executed before it is used.

Imports importlib only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType


@contextmanager
def deferred(package: str, module: str) -> Iterator[None]:
    """Within, ``import package.module`` executes the module when an attribute of it is first asked for.

    If none has been at the end, the import is undone, and the next one is like any other. A package that imports its
    modules by ``__getattr__``, as SciPy does, gives the module to whoever has kept the package.

    Parameters
    ----------
    package : str
    module : str
        Of the package. Nothing is deferred if it has been imported before.
    """
    name = f"{package}.{module}"
    if name in sys.modules:
        yield
        return
    finder = _Finder(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if name in sys.modules and type(sys.modules[name]) is not ModuleType:  # it becomes one when it is executed
            del sys.modules[name]
            vars(sys.modules[package]).pop(module, None)


class _Finder(MetaPathFinder):
    """Finds one module, to be executed when it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self._name else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
