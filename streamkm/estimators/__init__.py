"""The scikit-learn estimators: parameters come in, fitted attributes go out; nothing here reads files or prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from streamkm.core.process import deferred

if TYPE_CHECKING:
    from streamkm.estimators.kmeans import StreamKMeans

# what scikit-learn's base classes, and what of SciPy they need, import and hardly use: half of the time for imports
with deferred("pandas", "scipy.stats", "scipy.special", "numpy.f2py", "numpy.testing"):
    import sklearn.base  # noqa: F401


def fit_tiny() -> Iterator[StreamKMeans]:
    """Estimators fitted to made rows of CSV, float32 and svmlight text: they compile what most fits call."""
    import numpy as np

    from streamkm.estimators.kmeans import StreamKMeans

    random = np.random.default_rng(0)
    dense = random.random((5_000, 80))  # enough rows to take the same way as more of them
    fit = StreamKMeans(10, random_state=0, progress=False, executor=1).fit
    yield fit(dense.astype(np.float32))
    with TemporaryDirectory(prefix="streamkm-") as folder:
        table, text = Path(folder, "rows.csv"), Path(folder, "rows.svm")
        np.savetxt(table, dense, "%.3f", ",", header=",".join(f"x{j}" for j in range(80)), comments="")
        yield fit(table)
        indices = np.sort(random.integers(1, 5_000, (3_000, 50)))
        text.write_text("".join(f"0 {' '.join(f'{j}:0.5' for j in dict.fromkeys(row))}\n" for row in indices.tolist()))
        yield fit(text)
