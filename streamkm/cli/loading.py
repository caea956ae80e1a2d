"""What commands import before they work: the estimators, and little that these do not use.

Half of the time that scikit-learn's base classes take to import goes into two packages that they never call. A program
may leave these out, so that commands do; a library may not, for its user may want them. Imports importlib and `core`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

from streamkm.core.collector import collector_off

_LATER = "scipy.stats"  # `sklearn.utils.fixes` asks for one function of it, when that is called
_OPTIONAL = "pandas"  # the same module imports it if it is there; whatever handles frames imports it again


def load_estimators() -> None:
    """Import the estimators; half a processor second less than an import statement takes, in a new process.

    No collection of garbage begins meanwhile: there is none, and looking through all that was imported takes long.
    """
    with collector_off:
        if "sklearn" not in sys.modules:
            with _imported_less():
                import sklearn.base  # noqa: F401
        import streamkm.estimators.kernel_kmeans
        import streamkm.estimators.kmeans  # noqa: F401


@contextmanager
def _imported_less() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Has one module executed when it is used first, and does not find another."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if fullname == _OPTIONAL:
            raise ModuleNotFoundError(f"{fullname} is not imported here", name=fullname)
        spec = PathFinder.find_spec(fullname, path, target) if fullname == _LATER else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
