"""What commands import before they work: the estimators, and little that these do not use.

scikit-learn's base classes import pandas where it is installed, and never call it. A program may leave it out, so that
commands do; a library may not, for its user may want it. Imports `core`.
"""

from __future__ import annotations

import sys

from streamkm.core.collector import collector_off

_OPTIONAL = "pandas"  # whatever handles frames imports it again


def load_estimators() -> None:
    """Import the estimators; a third of a processor second less than an import statement takes, in a new process.

    No collection of garbage begins meanwhile: there is none, and looking through all that was imported takes long.
    """
    with collector_off:
        if "sklearn" not in sys.modules and _OPTIONAL not in sys.modules:
            sys.modules[_OPTIONAL] = None  # type: ignore[assignment] # so that importing it is an ImportError
            try:
                import streamkm.estimators
            finally:
                del sys.modules[_OPTIONAL]
        import streamkm.estimators.kernel_kmeans
        import streamkm.estimators.kmeans  # noqa: F401
