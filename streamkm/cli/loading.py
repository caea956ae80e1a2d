"""What commands import before they work: the estimators. Imports `core`."""

from __future__ import annotations

from streamkm.core.gc_guard import collector_off


def load_estimators() -> None:
    """Import the estimators.

    No collection of garbage begins meanwhile: there is none, and looking through all that was imported takes long.
    """
    with collector_off:
        import streamkm.estimators.kernel_kmeans
        import streamkm.estimators.kmeans  # noqa: F401
