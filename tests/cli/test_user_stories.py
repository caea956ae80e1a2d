"""What a new user does, from an empty folder: a file, one command, what must come out."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
import zarr
from click.testing import CliRunner
from scipy.io import mmwrite
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKMeans
from streamkm.cli.main import main

N = 600
GROUP = np.arange(N) % 3
RNG = np.random.default_rng(0)
ROWS = (RNG.normal(size=(N, 5)) + 9 * GROUP[:, None] * (np.arange(5) % 2 + 1)).astype(np.float32)
SCALED = (ROWS * [1, 1e5, 1e-3, 1, 1] + RNG.normal(size=(N, 1)) * [0, 0, 0, 0, 1e6]).astype(np.float32)
COUNTS = sp.csr_matrix(RNG.poisson(RNG.gamma(0.3, 2, (3, 90))[GROUP] * RNG.integers(1, 9, (N, 1))).astype(np.float32))
TRIPS = pd.DataFrame({
    "trip_id": [f"T{i:04}" for i in range(N)],
    "miles": (2 + 8 * (GROUP == 1) + RNG.normal(size=N) / 4).round(3),
    "fare": (9 + 40 * (GROUP == 1) + RNG.normal(size=N)).round(2),
    "payment": np.where(GROUP == 2, "cash", "card"),
})  # fmt: skip
TRIPS.loc[[4, 500], "fare"] = np.nan
WORDS = ("orbit rocket moon launch probe", "goal puck league ice playoff", "doctor drug virus clinic dose")
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS[i % 3].split(), 9)) for i in range(N)]


def labels(path: str = "out/labels.npy") -> Any:
    return np.load(path)


def found(path: str = "out/labels.npy", wanted: Any = GROUP) -> None:
    """The labels of a file are the groups."""
    assert adjusted_rand_score(wanted, labels(path)) == 1


def trips_found(path: str = "out/labels.npy") -> None:
    got = labels(path)
    assert np.flatnonzero(got < 0).tolist() == [4, 500]
    assert adjusted_rand_score(GROUP[got >= 0], got[got >= 0]) == 1


def folder_of_tables() -> None:
    Path("parts").mkdir()
    for part in range(3):
        pd.DataFrame(ROWS[part * 200 : part * 200 + 200], columns=list("abcde")).to_parquet(f"parts/{part}.parquet")


def sparse_text(path: str) -> None:
    dump_svmlight_file(COUNTS, GROUP, path)


def h5ad() -> None:
    anndata.AnnData(COUNTS).write_h5ad("cells.h5ad")


def trips_named() -> None:
    table = pd.read_csv("later.csv")
    assert table["trip_id"].tolist() == TRIPS["trip_id"].tolist()
    assert {"label", "distance", "second_label", "second_distance"} < set(table.columns)


def trips_without_ids() -> None:
    fitted_trips()
    TRIPS.drop(columns="trip_id").to_csv("later-trips.csv", index=False)


def matrix_market() -> None:
    mmwrite("x.mtx", sp.csr_matrix(ROWS))


def dataset() -> None:
    with h5py.File("x.h5", "w") as file:
        file["runs/X"] = ROWS


def fitted_trips() -> None:
    TRIPS.to_csv("trips.csv", index=False)
    command(f"fit trips.csv -k 3 -q --no-report {TRIP_FLAGS}")


def fitted() -> None:
    np.save("x.npy", ROWS)
    command("fit x.npy -k 3 --seed 0 -q")


def store() -> None:
    np.save("x.npy", ROWS)
    command("sketch x.npy -o s.zarr -q")


def command(line: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, shlex.split(line))
    assert result.exit_code == code, result.output
    return result.output


@dataclass(frozen=True)
class Story:
    """What is there, what is typed, the exit code, texts that must be said, and what must have come of it."""

    there: Callable[[], Any]
    typed: str
    says: tuple[str, ...] = ()
    came: Callable[[], Any] = found
    code: int = 0


TRIP_FLAGS = "--id-column trip_id --categories onehot --invalid skip --preprocess standardize --seed 0"
TABLE = pd.DataFrame(ROWS, columns=list("abcde"))
STORIES = {
    "trips with ids, nulls and categories": Story(
        lambda: TRIPS.to_csv("trips.csv", index=False), f"fit trips.csv -k 3 -o out {TRIP_FLAGS}", ("600",), trips_found
    ),
    "later trips, by the same columns and steps": Story(
        fitted_trips,
        "assign streamkm-out/model.npz trips.csv -o later.npy",
        ("2 skipped",),
        lambda: trips_found("later.npy"),
    ),
    "columns of text are refused by name": Story(
        lambda: TRIPS.to_csv("trips.csv", index=False),
        "fit trips.csv -k 3",
        ("'trip_id'", "streamkm: error:"),
        lambda: None,
        2,
    ),
    "a compressed table": Story(
        lambda: Path("x.csv.gz").write_bytes(gzip.compress(TABLE.to_csv(index=False).encode())),
        "fit x.csv.gz -k 3 -o out --seed 0",
    ),
    "tabs between fields": Story(
        lambda: TABLE.to_csv("x.tsv", sep="\t", index=False), "fit x.tsv -k 3 -o out --seed 0"
    ),
    "a folder of Parquet files below a limit": Story(
        folder_of_tables, "fit parts -k 3 -o out --memory-limit '500 MiB, process 300 MiB' --seed 0"
    ),
    "features of very different scales": Story(
        lambda: np.save("x.npy", SCALED[:, :4]),
        "fit x.npy -k 3 -o out --preprocess standardize --seed 0",
    ),
    "a single-cell file": Story(
        h5ad,
        "fit cells.h5ad -k 3 -o out --preprocess total,log1p --metric cosine --seed 0",
    ),
    "labels beside the ids of the fit": Story(
        fitted_trips, "assign streamkm-out/model.npz trips.csv -o later.csv", ("600",), trips_named
    ),
    "later trips without ids": Story(
        trips_without_ids,
        "assign streamkm-out/model.npz later-trips.csv -o later.npy",
        ("600",),
        lambda: trips_found("later.npy"),
    ),
    "JSON lines": Story(
        lambda: Path("x.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS)),
        "fit x.jsonl -k 3 -o out --set text.field=body --set text.sublinear_tf=true --seed 0",
    ),
    "lines of text": Story(
        lambda: Path("x.txt").write_text("\n".join(TEXTS)), "fit x.txt -k 3 -o out --set data.format=lines --seed 0"
    ),
    "svmlight text": Story(lambda: sparse_text("x.svm"), "fit x.svm -k 3 -o out --metric cosine --seed 0"),
    "a dataset in HDF5": Story(dataset, "fit x.h5:/runs/X -k 3 -o out --seed 0"),
    "a Zarr array": Story(lambda: zarr.save_array("x.zarr", ROWS), "fit x.zarr -k 3 -o out --seed 0"),
    "Matrix Market": Story(matrix_market, "fit x.mtx -k 3 -o out --seed 0"),
    "what would be read, before it is": Story(
        lambda: np.save("x.npy", ROWS),
        "plan x.npy -k 3 --preprocess standardize",
        ("3, the first for standardize", "memory"),
        lambda: None,
    ),
    "what is in a file": Story(lambda: TABLE.to_csv("x.csv", index=False), "inspect x.csv", ("CSV", "5"), lambda: None),
    "how many clusters": Story(
        lambda: np.save("x.npy", ROWS),
        "sweep x.npy -k 2:6 --seed 0",
        ("advice", "k = 3"),
        lambda: Path("streamkm-sweep/sweep.csv").read_text(),
    ),
    "a store, clustered without its data": Story(store, "fit s.zarr -k 3 -o out --seed 0"),
    "rows that come later": Story(
        fitted, "assign streamkm-out/model.npz x.npy -o later.npy", ("600", "later.npy"), lambda: found("later.npy")
    ),
    "results are not replaced by accident": Story(
        fitted,
        "fit x.npy -k 3",
        ("holds results of an earlier run", "--overwrite"),
        lambda: found("streamkm-out/labels.npy"),
        2,
    ),
    "a misspelt step": Story(
        lambda: np.save("x.npy", ROWS),
        "fit x.npy -k 3 --preprocess standardise",
        ("standardize, robust",),
        lambda: None,
        2,
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_story(story, tmp_path, monkeypatch):
    told = STORIES[story]
    monkeypatch.chdir(tmp_path)
    told.there()
    said = command(told.typed, told.code)
    for text in told.says:
        assert text in said
    if told.code:
        assert sum(line.startswith("streamkm: error:") for line in said.splitlines()) == 1
    told.came()


def test_frames_and_lazy_frames():
    for frame in (TABLE, pl.DataFrame(TABLE), pl.DataFrame(TABLE).lazy()):
        kmeans = StreamKMeans(3, preprocess=["standardize"], random_state=0).fit(frame)
        assert adjusted_rand_score(GROUP, kmeans.labels_) == 1
        assert kmeans.feature_names_in_.tolist() == list("abcde")


@pytest.mark.slow
def test_five_million_rows_of_parquet_below_a_limit(tmp_path, monkeypatch, reduced):
    monkeypatch.chdir(tmp_path)
    Path("rows").mkdir()
    parts = 5 if reduced else 50
    for part in range(parts):
        rng = np.random.default_rng(part)
        rows = rng.normal(size=(100_000, 12)) + 5 * (np.arange(100_000) % 8)[:, None]
        pd.DataFrame(rows.astype(np.float32)).rename(columns=str).to_parquet(f"rows/{part}.parquet")
    command("fit rows -k 8 -o out --memory-limit '500 MiB, process 300 MiB' --seed 0 --no-report")
    assert adjusted_rand_score(np.tile(np.arange(100_000) % 8, parts), labels()) > 0.99
