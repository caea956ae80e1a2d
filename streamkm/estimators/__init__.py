"""scikit-learn's surface: parameters in, attributes out; `base`, `input_rows` and `model_files` are shared.

`planned` and `described` are parts of `StreamKMeans`, as `incremental` is; `validation` checks what users pass.

Fits, planning and passes come in; nothing here reads files, moves rows or prints.
"""

from __future__ import annotations

from streamkm.core.deferral import deferred

with deferred("scipy", "stats"):  # `sklearn.utils.fixes` asks for one function of it: a sixth of all time for imports
    import sklearn.base  # noqa: F401
