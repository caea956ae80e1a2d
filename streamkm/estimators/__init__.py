"""The scikit-learn estimators: parameters come in, fitted attributes go out; `validation` checks what users pass.

Fits, planning and passes do the work. Nothing here reads files, moves rows or prints.
"""

from __future__ import annotations

from streamkm.core.lazy_imports import deferred

# what scikit-learn's base classes, and what of SciPy they need, import and hardly use: half of the time for imports
with deferred("pandas", "scipy.stats", "scipy.special", "numpy.f2py", "numpy.testing"):
    import sklearn.base  # noqa: F401
