"""Long lines of text that a plan has no room for: refused as they are read, wherever they are; see test_memory too."""

from __future__ import annotations

import bz2
import gzip
import itertools
import lzma
import pickle
import re
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import StreamKMeans, open_documents, open_source
from streamkm.core.exceptions import MemoryLimitError
from streamkm.sources.text_lines import BLOCK_BYTES, LineLimit
from tests.limits import limited
from tests.tables import slow_but

SHORT = {"lines": b"w1 x2\n", "svmlight": b"1 1:1 3:2\n"}
PACKERS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
NO_ROOM, ROOM = LineLimit(500 << 20, 0, 1), LineLimit(500 << 20, 1 << 30, 1)


def long_line(kind: str, n_bytes: int) -> bytes:
    unit = b"word " if kind == "lines" else b"2:1.5 "
    if kind == "lines":
        return unit * (n_bytes // len(unit)) + b"\n"
    return b"1 " + b" ".join(b"%d:1.5" % i for i in range(1, n_bytes // 10)) + b"\n"


def opened(path, kind):
    return open_documents(path, format="lines", tfidf=False) if kind == "lines" else open_source(path)


def rows(source, target_bytes=1 << 16):
    """All rows, as text that tells every bit."""
    pieces = list(source.stream(target_bytes))
    width = max(piece.X.shape[1] for piece in pieces)
    for piece in pieces:
        piece.X.resize((piece.X.shape[0], width))
    X = sp.vstack([piece.X for piece in pieces], format="csr")
    places = np.concatenate([piece.places for piece in pieces])
    return [array.tobytes() for array in (X.data, X.indices, X.indptr, places)]


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("suffix", slow_but(["", ".gz"], PACKERS))
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


EACH_ONCE = [("lines", b"", 1, False), ("svmlight", b"\n", 180_000, True)]
TWO_LINES = slow_but(EACH_ONCE, itertools.product(SHORT, [b"\n", b""], [1, 180_000], [True, False]))


@pytest.mark.parametrize(("kind", "end", "n_between", "larger_first"), TWO_LINES)
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


@pytest.mark.parametrize("kind", SHORT)
def test_lines_that_are_not_long_need_no_room(tmp_path, kind):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress((SHORT[kind] * 50 + long_line(kind, BLOCK_BYTES * 3 // 4)) * 3, 1))
    source = opened(path, kind)
    assert rows(source.with_line_limit(NO_ROOM)) == rows(source)


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("where", ["plain", "memory"])
def test_chunks_of_plain_text_refuse_what_probes_do_not_see(tmp_path, kind, where):
    text = SHORT[kind] * 60_000 + long_line(kind, 2 << 20) + SHORT[kind] * 60_000
    if where == "plain":
        path = str(tmp_path / "x.txt")
        (tmp_path / "x.txt").write_bytes(text)
    else:
        fsspec = pytest.importorskip("fsspec")
        path = f"memory://long/{kind}.txt"
        fsspec.filesystem("memory").pipe(f"/long/{kind}.txt", text)
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


def test_the_limit_that_is_named_counts_all_threads_that_read(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(SHORT["svmlight"] + long_line("svmlight", 3 << 20), 1))
    limits = []
    for n_readers in (1, 4):
        with pytest.raises(MemoryLimitError, match=r"raise memory_limit to ([\d,]+) MiB") as refusal:
            rows(opened(path, "svmlight").with_line_limit(LineLimit(500 << 20, 0, n_readers)))
        limits.append(int(re.search(r"memory_limit to (\d+) MiB", str(refusal.value))[1]) - 500)
    assert limits[1] == pytest.approx(4 * limits[0], abs=4)


@pytest.mark.parametrize("kind", SHORT)
def test_without_a_limit_nothing_is_refused(tmp_path, kind):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(SHORT[kind] * 50 + long_line(kind, 2 << 20), 1))
    StreamKMeans(2, progress=False, random_state=0).fit(opened(path, kind))


HEADS_ONCE = [("lines", True, False), ("svmlight", False, True)]
HEADS = slow_but(HEADS_ONCE, itertools.product(SHORT, [True, False], [True, False]))


@pytest.mark.parametrize(("kind", "first", "packed"), HEADS)
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


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("packed", [True, False])
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
