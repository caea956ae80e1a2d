"""The same rows in every container, and damage to them: ``python -m tests.containers FOLDER SEED MUTANTS``.

Run as a program, it damages each container so many times and reads it. There must be no signal, no hang, no error but
of streamkm with the place, and no other values where all bytes have a checksum. Prints how many mutants were read and
how many were refused.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.sparse as sp
import zarr
from pyarrow import feather
from pyarrow import parquet as pq
from scipy.io import mmwrite
from sklearn.datasets import dump_svmlight_file

from streamkm import open_documents
from streamkm.core.exceptions import StreamkmError
from streamkm.core.progress import Stage
from streamkm.engine import open_executor
from streamkm.passes.reader import RowReader
from streamkm.sketches import IdentitySketch
from streamkm.sources import open_source
from streamkm.stores.writer import write_store

NAMES = [f"f{i}" for i in range(6)]
MOST_BYTES = 8 << 30  # of address space, so that a damaged size cannot take the memory
LIMITS = {
    "words": (0, 1, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**64 - 1),
    "bytes": (0, 255, 127, 128, 10, 34, 44),
}


def values(n_rows: int = 300) -> np.ndarray:
    """Rows around three centers, in quarters, which every container holds exactly; some are zero."""
    rng = np.random.default_rng(0)
    centers = 8 * rng.integers(-4, 5, (3, len(NAMES)))
    X = np.round(4 * (centers[rng.integers(0, 3, n_rows)] + rng.normal(size=(n_rows, len(NAMES))))) / 4
    X[rng.random(X.shape) < 0.2] = 0
    X[-1, -1] = 1  # svmlight tells the number of features by the largest
    return X


def _h5(path: Path, X: np.ndarray, version: str = "earliest", **options: Any) -> None:
    with h5py.File(path, "w", libver=version) as file:
        file.create_dataset("X", data=X, **options)


def _svmlight(path: Path, X: np.ndarray) -> None:
    dump_svmlight_file(sp.csr_array(X), np.zeros(len(X)), str(path), zero_based=False)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))


def _zarr(path: Path, X: np.ndarray, **options: Any) -> None:
    zarr.create_array(path, data=X, chunks=(64, X.shape[1]), **options)


def _json(path: Path, X: np.ndarray) -> None:
    path.write_text("".join(json.dumps({"text": f"ä {row[0]:.0f} word {row[1]:.0f}"}) + "\n" for row in X))


def _store(path: Path, X: np.ndarray) -> None:
    with open_executor(1) as executor:
        write_store(
            path,
            RowReader(open_source(X), 4_000, "euclidean", "raise"),
            IdentitySketch(len(NAMES)),
            executor,
            Stage("s"),
        )


def _frame(X: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(X, columns=NAMES)


CHECKED_ZARR = {"compressors": zarr.codecs.ZstdCodec(checksum=True)}
Write = Callable[[Path, np.ndarray], Any]
EQUAL: dict[str, Write] = {
    "x.npy": np.save,
    "x.npz": np.savez,
    "csr.npz": lambda path, X: sp.save_npz(path, sp.csr_array(X)),
    "x.h5": _h5,
    "x.h5ad": lambda path, X: anndata.AnnData(sp.csr_array(X)).write_h5ad(path),
    "2.zarr": lambda path, X: _zarr(path, X, zarr_format=2),
    "3.zarr": _zarr,
    "x.svm": _svmlight,
    "x.csv": lambda path, X: _frame(X).to_csv(path, index=False),
    "x.parquet": lambda path, X: _frame(X).to_parquet(path, row_group_size=100),
    "x.arrow": lambda path, X: feather.write_feather(_frame(X), path, compression="uncompressed"),
    "x.mtx": lambda path, X: mmwrite(path, sp.coo_array(X)),
}
"""Writers of containers, by the names of their files."""
CHECKED: dict[str, Write] = {
    "x.npz": np.savez,
    "packed.npz": np.savez_compressed,
    "csr.npz": EQUAL["csr.npz"],
    "checked.h5": lambda path, X: _h5(path, X, "latest", chunks=(64, 6), compression="gzip", fletcher32=True),
    "checked.zarr": lambda path, X: _zarr(path, X, **CHECKED_ZARR),
    "crc.zarr": lambda path, X: _zarr(path, X, compressors=[zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()]),
    "x.svm.gz": _svmlight,
    "x.csv.gz": lambda path, X: _frame(X).to_csv(path, index=False),
    "checked.parquet": lambda path, X: pq.write_table(
        pa.Table.from_pandas(_frame(X)), path, row_group_size=100, write_page_checksum=True
    ),
    "store.zarr": _store,
}
"""Those whose bytes all have a checksum, but for the metadata of Zarr."""
ALL: dict[str, Write] = {
    **EQUAL,
    **CHECKED,
    "gzip.h5": lambda path, X: _h5(path, X, chunks=(128, 6), compression="gzip", fletcher32=True),
    "mixed.csv": lambda path, X: _frame(X).assign(c=[f"v{row[0] > 0}" for row in X]).to_csv(path, index=False),
    "lz4.arrow": lambda path, X: feather.write_feather(_frame(X), path, compression="lz4"),
    "array.mtx": mmwrite,
    "x.jsonl": _json,
}
OPTIONS: dict[str, dict[str, Any]] = {"mixed.csv": {"categories": "onehot"}}


def damage(path: Path, drawn: random.Random) -> tuple[str, str]:
    """Damage a file, or one of a folder, in one of many ways; what was done and the name of the file."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    file = drawn.choice(files)
    text = bytearray(file.read_bytes())
    size, how = len(text), drawn.choice(["bit", "bit", "byte", "byte", "cut", "again", "zeros", "insert", "word"])
    at = drawn.choice(
        [drawn.randrange(size), drawn.randrange(min(size, 300)), size - 1 - drawn.randrange(min(size, 300))]
    )
    n_bytes = drawn.randrange(1, 64)
    if how == "bit":
        text[at] ^= 1 << drawn.randrange(8)
    elif how == "byte":
        text[at] = drawn.choice([*LIMITS["bytes"], drawn.randrange(256)])
    elif how == "cut":
        del text[at:]
    elif how == "again":
        text[at:at] = text[at : at + n_bytes]
    elif how == "zeros":
        text[at : at + n_bytes] = bytes(len(text[at : at + n_bytes]))
    elif how == "insert":
        text[at:at] = drawn.randbytes(n_bytes // 8 + 1)
    else:
        width = drawn.choice([4, 8])
        text[at : at + width] = drawn.choice(LIMITS["words"]).to_bytes(8, "little")[:width]
    file.write_bytes(bytes(text))
    return f"{how} at {at} of {size} bytes of {file.name}", file.name


def read(path: Path, options: dict[str, Any]) -> list[tuple[Any, ...]] | None:
    """What the rows of a container are, to be compared; None for more than a few features."""
    source = open_documents(path, field="text") if path.suffix == ".jsonl" else open_source(path, **options)
    if (getattr(source, "n_features", None) or 0) > 1 << 22:
        return None
    found: list[tuple[Any, ...]] = []
    for rows in source.stream(1 << 12):
        parts = (rows.X.data, rows.X.indices, rows.X.indptr) if sp.issparse(rows.X) else (rows.X,)
        found.append((rows.X.shape, *(part.tobytes() for part in parts)))
    return found


def main(folder: Path, seed: int, n_mutants: int) -> None:
    """Damage each container, and read it; what fails names the container, the seed and the damage."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    warnings.simplefilter("ignore")
    counted: Counter[str] = Counter()
    for name, write in ALL.items():
        path, whole, options = folder / "mutant" / name, folder / "whole" / name, OPTIONS.get(name, {})
        for each in (path, whole):
            each.parent.mkdir(exist_ok=True)
        write(whole, values())
        wanted = read(whole, options)
        for number in range(seed, seed + n_mutants):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            shutil.copytree(whole, path) if whole.is_dir() else shutil.copy(whole, path)
            how, file = damage(path, random.Random(f"{name} {number}"))
            (folder / "last").write_text(f"{name}, seed {number}: {how}")
            try:
                found = read(path, options)
            except StreamkmError as error:
                counted[f"{name} {'refused' if name in str(error) else f'names no place: {how}: {error}'}"] += 1
                continue
            except Exception as error:
                error.add_note(f"{name}, seed {number}: {how}")
                raise
            is_other = found != wanted and name in CHECKED and file != "zarr.json"
            counted[f"{name} {f'has other values, seed {number}: {how}' if is_other else 'read'}"] += 1
    sys.stdout.write(f"{json.dumps(counted)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
