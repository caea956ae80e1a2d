"""Labels beside the data that they are of: a column of a frame, in memory or lazy, or of `obs` of AnnData.

Only what such objects offer is used, so that neither pandas, polars nor anndata is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError

Predict = Callable[[Any], Any]


def with_labels(X: Any, column: str, predict: Predict, features: Sequence[str], *, overwrite: bool = False) -> Any:
    """See `BaseKMeans.with_labels`. `predict`: labels of rows, lazy for Dask's. `features`: names of the fit's."""
    if hasattr(X, "obs") and hasattr(X, "n_obs"):
        _refuse_twice(column, X.obs.columns, overwrite=overwrite)
        X.obs[column] = _categories(predict(X))
        return X
    # lazy frames of polars say their columns no other way without a warning
    columns = X.collect_schema().names() if hasattr(X, "collect_schema") else getattr(X, "columns", None)
    if columns is None:
        raise InvalidInputError(
            f"{type(X).__name__} takes no column of labels; pass a frame of pandas, polars or Dask or an AnnData "
            f"object, or use predict"
        )
    _refuse_twice(column, columns, overwrite=overwrite)
    named = len(features) > 0 and set(features) <= set(columns)
    chosen = list(features) if named else [name for name in columns if name != column]
    if hasattr(X, "with_columns"):
        import polars as pl

        return X.with_columns(pl.Series(column, predict(X.select(chosen)), dtype=pl.Int32))
    return X.assign(**{column: predict(X[chosen])})


def _refuse_twice(column: str, columns: Any, *, overwrite: bool) -> None:
    if column in list(columns) and not overwrite:
        raise InvalidInputError(f"there is a column {column!r} already; choose another, or allow to overwrite")


def _categories(labels: NDArray[np.int32]) -> Any:
    """Labels as categories named by number, nothing for -1."""
    import pandas as pd

    n_categories = int(labels.max(initial=-1)) + 1
    return pd.Categorical.from_codes(labels, categories=[str(label) for label in range(n_categories)])
