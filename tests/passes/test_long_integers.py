"""Integers of 64 bits that float64 rounds: one warning a fit."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans
from streamkm.core.exceptions import StreamkmWarning

NEAR = np.random.default_rng(0).integers(0, 1000, (600, 2))


def told(X: object, **options: object) -> list[str]:
    """Gather the warnings of a fit."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        StreamKMeans(3, random_state=0, **options).fit(X)
    return [str(each.message) for each in seen if issubclass(each.category, StreamkmWarning) and "2^53" in str(each)]


def stored(X: np.ndarray, kind: str, folder) -> object:
    """Store rows, or hold them, in one of several ways."""
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1] % 7 / 2})
    if kind == "npy":
        np.save(folder / "x.npy", X)
        return folder / "x.npy"
    if kind == "parquet":
        frame.to_parquet(folder / "x.parquet")
        return folder / "x.parquet"
    if kind == "csv":
        frame.to_csv(folder / "x.csv", index=False)
        return folder / "x.csv"
    return {"array": X, "sparse": sp.csr_array(X)}[kind]


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("array", "uint64"), ("sparse", "int64"), ("npy", "int64"), ("parquet", "uint64"), ("csv", "int64")],
)
def test_rounded_integers_are_told_once(tmp_path, kind: str, dtype: str) -> None:
    X = NEAR.astype(dtype) + np.array(2**55, dtype)
    (message,) = told(stored(X, kind, tmp_path), chunk_bytes=4096)
    assert ("x." + kind if kind in ("npy", "parquet", "csv") else kind) in message


def test_rounded_integers_are_told_of_a_cluster(client) -> None:
    assert len(told(da.from_array(NEAR + 2**60, chunks=(100, 2)), executor=client)) == 1
