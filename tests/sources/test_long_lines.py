"""Long lines of text that a plan has no room for: refused as they are read, wherever they are; see test_memory too."""

from __future__ import annotations

import gzip
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
from tests.tables import cases

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
    places = np.concatenate([piece.places for piece in pieces])
    return [array.tobytes() for array in (X.data, X.indices, X.indptr, places)]


@pytest.mark.parametrize("kind", SHORT)
@pytest.mark.parametrize("suffix", PACKERS)
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
