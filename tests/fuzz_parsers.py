"""Random texts and matrices through every compiled parser, compared with scikit-learn, csv, json and SciPy.

Run as a program, ``python -m tests.fuzz_parsers SEED EXAMPLES``, in an environment with ``NUMBA_BOUNDSCHECK=1`` and a
cache of its own for what is compiled so: a kernel that leaves its arrays then raises IndexError. Texts are in pieces,
so that what is cut between chunks is met. Prints how many examples were sound and how many were refused.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_svmlight_file

from streamkm.cluster.rows import row_d2norms
from streamkm.core.exceptions import InvalidInputError
from streamkm.sketches import CountSketch
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.documents.text_files import TextFiles
from streamkm.sources.svmlight_text import SvmlightSource
from streamkm.text import FeatureHashing
from tests.naive_svmlight import MalformedError, as_lists, bits, rows_of
from tests.sources.counting import counting_csr

PIECES = [b" ", b"\n", b"\t", b"\r\n", b"1", b"-1", b"2.5", b"1:2", b"3:-0.5", b"12:1e-5", b":", b"#x", b",", b"qid:1"]
PIECES += [b"nan", b"9" * 25, b".", b"7:12345678901234567", b"8:0." + b"7" * 40, b"\0", b"\xff", b"4:1e400"]
CELLS = ["", "a", "two words", 'say "so"', "a,b", "two\nlines", "two\r\nlines", "ä€", "x" * 90, '"', '""', "\n"]


def number(rng: np.random.Generator) -> str:
    """A decimal number, written in one of many ways."""
    value = float(rng.normal()) * 10.0 ** int(rng.integers(-12, 12))
    return str(
        rng.choice([f"{value:.{rng.integers(0, 18)}g}", f"{value:.{rng.integers(0, 25)}f}", repr(value), "0", "-0"])
    )


def fuzz_svmlight(rng: np.random.Generator, folder: Path) -> bool:
    """Rows that scikit-learn reads the same, chosen rows of indexed text too."""
    lines = []
    for _ in range(rng.integers(1, 60)):
        columns = np.unique(rng.integers(0, 10 ** rng.integers(1, 7), rng.integers(0, 12)))
        values = " ".join(f"{column}:{number(rng)}" for column in columns)
        lines.append(f"{rng.integers(-1, 3)} {values}{rng.choice(['', ' ', ' # note', chr(13)])}\n")
    path = folder / "x.svm"
    path.write_text("".join(lines), newline="")
    source = SvmlightSource([path], zero_based=True, n_features=10**6)
    wanted, _ = load_svmlight_file(str(path), n_features=10**6, zero_based=True)
    wanted = sp.csr_array(wanted)
    at = 0
    for chunk in source.chunks(int(rng.integers(1, 2_000))):
        X = source.read(chunk).X
        same(X, wanted[at : at + X.shape[0]])
        indexed = source.index_rows(chunk)
        if indexed is not None and X.shape[0]:
            rows = np.sort(rng.integers(0, X.shape[0], 3))
            same(sp.csr_array(indexed.take(rows)), X[rows])
        at += X.shape[0]
    assert at == wanted.shape[0]
    return True


def fuzz_any_bytes(rng: np.random.Generator, folder: Path) -> bool:
    """Any bytes: the rows of the reader in loops, or a refusal where that refuses."""
    text = b"".join(rng.choice(np.array(PIECES, object), rng.integers(1, rng.choice([4, 12, 60]))))
    path = folder / "any.svm"
    path.write_bytes(text)
    try:
        wanted = bits(rows_of(text, 0))
    except MalformedError:
        wanted = None
    try:
        source = SvmlightSource([path], zero_based=True)
        got = [row for rows in source.stream(int(rng.integers(1, 500))) for row in bits(as_lists(rows.X, rows.places))]
    except InvalidInputError:
        assert wanted is None
        return False
    assert got == wanted
    return True


def fuzz_csv(rng: np.random.Generator, folder: Path) -> bool:
    """Records that Python's csv module finds in the whole text, in any pieces."""
    delimiter, text = str(rng.choice([",", ";", "\t"])), io.StringIO(newline="")
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    writer = csv.writer(text, delimiter=delimiter, quoting=int(quoting), lineterminator=str(rng.choice(["\n", "\r\n"])))
    rows = [[str(cell) for cell in rng.choice(CELLS, 3)] for _ in range(rng.integers(1, 60))]
    writer.writerows(rows)
    path = folder / "x.csv"
    path.write_bytes(text.getvalue().encode())
    wanted = [row[1] for row in csv.reader(io.StringIO(text.getvalue(), newline=""), delimiter=delimiter) if row]
    documents = TextFiles([str(path)], FeatureHashing(), "csv", (1,), delimiter=delimiter, header=False)
    got = [each for batch in documents.batches(int(rng.integers(1, 400))) for each in batch.documents]
    assert [each.replace("\r\n", "\n") for each in got] == [each.replace("\r\n", "\n") for each in wanted]
    return True


def fuzz_json(rng: np.random.Generator, folder: Path) -> bool:
    """Objects that Python's json module reads, line by line, in any pieces."""
    wanted = [str(cell) for cell in rng.choice(CELLS, rng.integers(1, 60))]
    ascii_only = bool(rng.integers(2))
    lines = [json.dumps({"t": cell, "n": number(rng)}, ensure_ascii=ascii_only) for cell in wanted]
    path = folder / "x.jsonl"
    path.write_bytes(str(rng.choice(["\n", "\r\n", "\n\n"])).join(lines).encode())
    documents = TextFiles([str(path)], FeatureHashing(), "jsonl", ("t",))
    assert [each for batch in documents.batches(int(rng.integers(1, 400))) for each in batch.documents] == wanted
    return True


def fuzz_csr(rng: np.random.Generator, folder: Path) -> bool:
    """CSR groups, sound and damaged ones: SciPy's rows, or a refusal; kernels stay inside what is given."""
    n_rows, n_features = int(rng.integers(1, 40)), int(rng.integers(1, 30))
    X = sp.random_array((n_rows, n_features), density=rng.random(), format="csr", rng=rng, dtype=np.float32)
    if X.nnz and rng.random() < 0.6:
        array, at = rng.choice(["indices", "indptr"]), rng.integers(0, 10**6)
        values = getattr(X, array).copy()
        values[at % len(values)] = rng.choice(
            [-1, 0, 1, n_features - 1, n_features, X.nnz, X.nnz + 1, 2**31 - 1, -(2**31)]
        )
        setattr(X, array, values)
    arrays = counting_csr(X, int(rng.integers(1, 50)))
    try:
        source = CsrSource(*arrays, shape=(n_rows, n_features), name="X")
        read = [rows.X for rows in source.stream(int(rng.integers(1, 500)))]
    except InvalidInputError:
        return False
    whole = sp.csr_array(sp.vstack(read))
    wanted = np.zeros((n_rows, n_features))
    rows = np.repeat(np.arange(n_rows), np.diff(X.indptr))
    np.add.at(wanted, (rows, X.indices[: len(rows)]), X.data[: len(rows)])
    np.testing.assert_allclose(whole.toarray(), wanted, rtol=1e-6)
    np.testing.assert_allclose(row_d2norms(whole), (wanted**2).sum(1), rtol=1e-5)
    sketched = CountSketch(8, 3).apply(whole)
    dense = CountSketch(8, 3).apply(np.asarray(whole.toarray()))
    np.testing.assert_allclose(sketched.toarray() if sp.issparse(sketched) else sketched, dense, rtol=1e-4, atol=1e-5)
    return True


PARSERS: tuple[Callable[[np.random.Generator, Path], bool], ...] = (
    fuzz_svmlight, fuzz_any_bytes, fuzz_csv, fuzz_json, fuzz_csr,
)  # fmt: skip


def same(got: sp.csr_array, wanted: sp.csr_array) -> None:
    """See to it that two matrices hold the same bits."""
    np.testing.assert_array_equal(got.indptr - got.indptr[0], wanted.indptr - wanted.indptr[0])
    np.testing.assert_array_equal(got.indices, wanted.indices)
    np.testing.assert_array_equal(got.data.view(np.int64), wanted.data.view(np.int64))


def main(seed: int, n_examples: int) -> None:
    """Try examples of each kind; whoever fails is named with the seed that makes it again."""
    assert numba.config.BOUNDSCHECK, "set NUMBA_BOUNDSCHECK=1, and NUMBA_CACHE_DIR to a place of its own"
    counted: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in PARSERS:
            for example in range(seed, seed + n_examples):
                try:
                    sound = each(np.random.default_rng(example), Path(folder))
                except Exception as error:
                    error.add_note(f"{each.__name__}, seed {example}")
                    raise
                counted[f"{each.__name__} {'sound' if sound else 'refused'}"] += 1
    sys.stdout.write(f"{json.dumps(counted)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
