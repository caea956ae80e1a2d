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
    """Estimators fitted to made rows of float32, CSV and text, and many clusters: they compile what most fits call."""
    import numpy as np

    from streamkm.estimators.kmeans import StreamKMeans

    dense = np.random.default_rng(0).random((5_000, 80), np.float32)  # enough rows to take the same way as more
    fit = StreamKMeans(10, random_state=0, progress=False, executor=1).fit
    yield fit(dense)
    with TemporaryDirectory(prefix="streamkm-") as folder:
        table, text = Path(folder, "rows.csv"), Path(folder, "rows.svm")
        np.savetxt(table, dense, "%.3f", ",", header=",".join(f"x{j}" for j in range(80)), comments="")
        yield fit(table)
        rows = (" ".join(f"{j}:0.5" for j in range(1 + i % 97, 5_000, 97)) for i in range(3_000))
        text.write_text("".join(f"0 {row}\n" for row in rows))
        yield fit(text)
    yield StreamKMeans(4_500, max_iter=1, random_state=0, progress=False, executor=1).fit(dense.repeat(2, axis=0))
