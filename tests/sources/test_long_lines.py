"""Long lines without room in the plan are refused as they are read; every container gives equal fits, damage none."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKMeans, open_documents, open_source
from streamkm.core.exceptions import MemoryLimitError
from streamkm.sources.text_lines import BLOCK_BYTES, LineLimit
from tests.containers import ALL, EQUAL, NAMES, values
from tests.contracts import assemble
from tests.limits import limited
from tests.programs import run_program
from tests.tables import cases, row

SHORT = {"lines": b"w1 x2\n", "svmlight": b"1 1:1 3:2\n"}
PACKERS = {"": bytes, ".gz": gzip.compress}
NO_ROOM, ROOM = LineLimit(500 << 20, 0, 1), LineLimit(500 << 20, 1 << 30, 1)


def long_line(kind: str, n_bytes: int) -> bytes:
    if kind == "lines":
        return b"word " * (n_bytes // 5) + b"\n"
    n = n_bytes // 10
    return b"1" + (b" %d:1.5" * n) % tuple(range(1, n + 1)) + b"\n"


def opened(path, kind):
    return open_documents(path, format="lines", tfidf=False) if kind == "lines" else open_source(path)


def rows(source, target_bytes=1 << 16):
    """All rows, as text that tells every bit."""
    pieces = list(source.stream(target_bytes))
    width = max(piece.X.shape[1] for piece in pieces)
    for piece in pieces:
        piece.X.resize((piece.X.shape[0], width))
    X = sp.vstack([piece.X for piece in pieces], format="csr")
    places = np.concatenate([piece.row_ids for piece in pieces])
    return [array.tobytes() for array in (X.data, X.indices, X.indptr, places)]


@pytest.mark.parametrize(("kind", "suffix"), [("lines", ""), ("svmlight", ".gz")])
def test_refused_by_file_line_and_byte_where_there_is_no_room(tmp_path, kind, suffix):
    path, short = tmp_path / f"x{suffix}", SHORT[kind]
    line = long_line(kind, 3 << 19)
    path.write_bytes(PACKERS[suffix](short * 1000 + line + short * 1000))
    source = opened(path, kind)
    wanted = rows(source)
    assert rows(source.with_line_limit(ROOM)) == wanted
    bounded = pickle.loads(pickle.dumps(source.with_line_limit(NO_ROOM)))
    place = rf"{re.escape(str(path))}, line 1,001 \(byte {1000 * len(short):,}\)"
    with pytest.raises(MemoryLimitError, match=rf"{place}, of {len(line) - 1:,} bytes, takes up to"):
        rows(bounded)
    assert rows(source) == wanted  # the source that was given is not bound


@cases("kind, end, n_between, larger_first", [("lines", b"", 1, False), ("svmlight", b"\n", 180_000, True)])
def test_every_long_line_is_looked_at(tmp_path, kind, end, n_between, larger_first):
    """One behind another finds a buffer that has grown; nothing ends the last one."""
    short, lines = SHORT[kind], [long_line(kind, 2 << 20), long_line(kind, 5 << 20)]
    if larger_first:
        lines.reverse()
    (tmp_path / "x.gz").write_bytes(gzip.compress(lines[0] + short * n_between + lines[1].rstrip(b"\n") + end, 1))
    source = opened(tmp_path / "x.gz", kind)
    between = LineLimit(500 << 20, (120 if kind == "lines" else 40) << 20, 1)  # of what the two take
    assert rows(source.with_line_limit(ROOM)) == rows(source)
    for room, refused in ((NO_ROOM, 0), (between, 0 if larger_first else 1)):
        number, n_bytes = (1, n_between + 2)[refused], len(lines[refused]) - 1
        with pytest.raises(MemoryLimitError, match=rf"line {number:,} \(byte [\d,]+\), of {n_bytes:,} bytes"):
            rows(source.with_line_limit(room))


@cases("kind", SHORT)
def test_chunks_of_plain_text_refuse_what_probes_do_not_see(tmp_path, kind):
    path = str(tmp_path / "x.txt")
    (tmp_path / "x.txt").write_bytes(SHORT[kind] * 60_000 + long_line(kind, 2 << 20) + SHORT[kind] * 60_000)
    source = opened(path, kind)
    bounded = source.with_line_limit(NO_ROOM)
    refused = []
    for chunk in source.chunks(1 << 17):
        try:
            bounded.read(chunk)
        except MemoryLimitError as error:
            refused.append(str(error))
            if kind == "svmlight":
                assert bounded.index_rows(chunk) is None
    assert len(refused) == 1
    assert f"{path}, line 60,001 (byte " in refused[0]


@cases("kind, first, packed", [("lines", True, False), ("svmlight", False, True)])
def test_a_look_at_the_head_holds_no_long_line(tmp_path, kind, first, packed):
    """What is known of text before anything is planned takes no memory that goes with its longest line."""
    path, short = tmp_path / ("x.gz" if packed else "x.txt"), SHORT[kind] * 100
    line = long_line(kind, 20 << 20)
    text = line + short if first else short + line
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    source = opened(path, kind)
    tracemalloc.start()
    assert source.estimated_rows
    assert source.details()
    assert source.estimated_features
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * BLOCK_BYTES


@cases("index, packed", [(0, True), (1, False)])
def test_the_beginning_of_a_long_line_tells_which_base_indices_have(tmp_path, index, packed):
    path = tmp_path / ("x.gz" if packed else "x.svm")
    # behind a byte order mark, which is no part of the first row
    text = b"\xef\xbb\xbf1 " + b" ".join(b"%d:1" % i for i in range(index, 400_000)) + b"\n"
    path.write_bytes(gzip.compress(text, 1) if packed else text)
    source = open_source(path)
    assert source.details()["indices"].startswith("zero-based" if index == 0 else "one-based")
    assert next(source.stream(1 << 30)).X.indices[0] == 0
    assert source.estimated_features >= 100_000


def test_workers_refuse_what_their_client_has_no_room_for(tmp_path, client):
    path, short = tmp_path / "x.svm", SHORT["svmlight"]
    path.write_bytes(short * 3000 + long_line("svmlight", 24 << 20) + short * 3000)
    fitted = StreamKMeans(2, memory_limit=limited("400 MiB"), executor=client, progress=False, random_state=0)
    with pytest.raises(MemoryLimitError, match=rf"{re.escape(str(path))}, line 3,001 \(byte [\d,]+\), of [\d,]+ bytes"):
        fitted.fit(str(path))


TOP = Path(__file__).parents[2]


def test_equal_values_give_equal_rows_and_labels(tmp_path):
    X = values()
    wanted = StreamKMeans(3, random_state=0, progress=False).fit(X)
    for name, write in EQUAL.items():
        with row(name=name):
            write(tmp_path / name, X)
            source = open_source(tmp_path / name)
            found = np.asarray(assemble(source.stream(1 << 11), len(NAMES)), np.float64)
            np.testing.assert_array_equal((found + 0.0).view(np.int64), (X + 0.0).view(np.int64))
            model = StreamKMeans(3, random_state=0, progress=False).fit(tmp_path / name)
            assert adjusted_rand_score(model.labels_, wanted.labels_) == 1
            assert model.inertia_ == pytest.approx(wanted.inertia_, rel=1e-12)


LONG = (pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(3_600))


@pytest.mark.parametrize("n_mutants", [10, pytest.param(150, marks=LONG)])
def test_damage_is_refused(n_mutants, tmp_path):
    command = ["-m", "tests.containers", str(tmp_path), str(n_mutants), str(n_mutants)]
    try:
        done = run_program(command, folder=TOP, timeout=60 + 5 * n_mutants)
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs: {(tmp_path / 'last').read_text()}")
    assert done.returncode == 0, f"{(tmp_path / 'last').read_text()}\n{done.stderr}"
    counted = json.loads(done.stdout)
    assert sum(counted.values()) == len(ALL) * n_mutants
    assert {each.partition(" ")[2] for each in counted} == {"read", "refused"}, done.stdout
    for name in EQUAL:
        assert counted.get(f"{name} refused")


PARSERS = ("test_svmlight_any_bytes", "test_csv_fuzzing", "test_tables", "test_documents", "test_csr_groups")


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_no_parser_leaves_its_arrays(tmp_path):
    """Tests of all compiled parsers once more, with kernels that raise IndexError outside of their arrays."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(TOP)}
    command = [sys.executable, "-m", "pytest", "-q", *(f"tests/sources/{name}.py" for name in PARSERS)]
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
