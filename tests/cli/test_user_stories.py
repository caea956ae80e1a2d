"""What a new user does, from an empty folder: a file, one command, what must come out."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.io import mmwrite
from sklearn.metrics import adjusted_rand_score

from tests.cli.test_cli import run
from tests.tables import slow_but

N = 600
GROUP = np.arange(N) % 3
RNG = np.random.default_rng(0)
ROWS = (RNG.normal(size=(N, 5)) + 9 * GROUP[:, None] * (np.arange(5) % 2 + 1)).astype(np.float32)
SCALED = (ROWS * [1, 1e5, 1e-3, 1, 1] + RNG.normal(size=(N, 1)) * [0, 0, 0, 0, 1e6]).astype(np.float32)
COUNTS = sp.csr_matrix(RNG.poisson(RNG.gamma(0.3, 2, (3, 90))[GROUP] * RNG.integers(1, 9, (N, 1))).astype(np.float32))
TABLE = pd.DataFrame(ROWS, columns=list("abcde"))


def folder_of_tables() -> None:
    Path("parts").mkdir()
    for part in range(3):
        TABLE[part * 200 : part * 200 + 200].to_parquet(f"parts/{part}.parquet")


STORIES = {
    "a compressed table": (
        lambda: Path("x.csv.gz").write_bytes(gzip.compress(TABLE.to_csv(index=False).encode())), "x.csv.gz"
    ),
    "a folder of Parquet files below a limit": (
        folder_of_tables, "parts --memory-limit '500 MiB, process 300 MiB'"
    ),
    "features of very different scales": (
        lambda: np.save("x.npy", SCALED[:, :4]), "x.npy --preprocess standardize"
    ),
    "a single-cell file": (
        lambda: anndata.AnnData(COUNTS).write_h5ad("cells.h5ad"),
        "cells.h5ad --preprocess total,log1p --metric cosine",
    ),
    "Matrix Market": (lambda: mmwrite("x.mtx", sp.csr_matrix(ROWS)), "x.mtx"),
}  # fmt: skip


@pytest.mark.parametrize("story", slow_but(["a folder of Parquet files below a limit", "Matrix Market"], STORIES))
def test_story(story, tmp_path, monkeypatch):
    there, typed = STORIES[story]
    monkeypatch.chdir(tmp_path)
    there()
    run("fit", *shlex.split(typed), "-k", 3, "-o", "out", "--seed", 0)
    assert adjusted_rand_score(GROUP, np.load("out/labels.npy")) == 1
