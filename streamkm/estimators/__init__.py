"""scikit-learn's surface: parameters in, attributes out; `base`, `input_rows` and `model_files` are shared.

`planned` is a part of `StreamKMeans`, `describe` of `IncrementalKMeans` too; `validation` checks what users pass.

Fits, planning and passes come in; nothing here reads files, moves rows or prints.
"""

from __future__ import annotations

from streamkm.core.lazy_imports import deferred

# what scikit-learn's base classes, and what of SciPy they need, import and hardly use: half of the time for imports
with deferred("pandas", "scipy.stats", "scipy.special", "numpy.f2py", "numpy.testing"):
    import sklearn.base  # noqa: F401
