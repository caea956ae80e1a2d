"""Checkpoints: records are whole or absent and come back bit by bit; locks, refusals by name, a full disk, kills."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from streamkm.core import locks
from streamkm.core.atomic_io import partial_name, remove_rests, replace_file, try_lock
from streamkm.core.exceptions import CheckpointError, DiskFullError, InUseError, OutputError
from streamkm.core.locks import LOCK, Lock
from streamkm.core.matrix import Matrix
from streamkm.engine import Folded, checkpoint
from streamkm.engine.checkpoint import FORMAT, LABELS, MARKER, Checkpoint, CheckpointWriter, records
from streamkm.engine.records import pack, unpack
from streamkm.sketches import Sketch
from streamkm.sources.fingerprints import differences
from tests import children
from tests.children import tree
from tests.programs import forking
from tests.tables import cases

RUN = {"source": {"name": "x.svm", "files": [{"bytes": 100}]}, "settings": {"n_clusters": 20, "tol": 1e-4}}


def assert_refused(place, message):
    """Demand that nothing opens a checkpoint there, and that all files stay."""

    def contents():
        found = sorted(place.rglob("*"))
        return [(path, path.is_symlink(), path.read_bytes() if path.is_file() else None) for path in found]

    before = contents()
    for restart in (False, True):
        with pytest.raises(CheckpointError, match=message), Checkpoint.open(place, RUN, restart=restart):
            pass
    assert contents() == before


class TestRecords:
    def test_come_back_after_the_process(self, tmp_path):
        arrays = {"centers": np.random.default_rng(0).random((3, 4)), "file": np.arange(5), "none": np.empty(0)}
        with Checkpoint.open(tmp_path / "c", RUN) as saved:
            assert saved.load("lloyd") is None
            assert records(tmp_path / "c") == set()
            saved.save("lloyd", {"centers": np.zeros(4)}, {})  # the later one replaces it
            saved.save("lloyd", arrays, {"iteration": 3, "history": [1.5, 0.5]})
            assert records(tmp_path / "c") == {"lloyd"}
        assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [MARKER, "lloyd.record", LOCK]
        with Checkpoint.open(tmp_path / "c", RUN) as saved:
            found, meta = saved.load("lloyd")
            assert meta == {"iteration": 3, "history": [1.5, 0.5]}
            assert found.keys() == arrays.keys()
            for name, array in arrays.items():
                np.testing.assert_array_equal(found[name], array, strict=True)

    def test_one_with_other_arrays_than_it_says_is_damaged(self, tmp_path):
        def write(**arrays):
            with (tmp_path / "a.record").open("wb") as file:
                np.savez(file, header=np.array(json.dumps({"name": "a", "arrays": ["x"], "meta": {}})), **arrays)

        with Checkpoint.open(tmp_path, RUN) as saved:
            write(array_x=np.arange(3))
            assert saved.load("a")[0]["x"].tolist() == [0, 1, 2]
            (tmp_path / "a.record").rename(tmp_path / "b.record")
            assert saved.load("b") is None  # nor does one of another name count
            write(array_x=np.arange(3), array_y=np.arange(3))
            assert saved.load("a") is None

    def test_restart_forgets_and_half_of_them_are_no_state(self, tmp_path, monkeypatch):
        """Killed when it had removed some, or none yet: what is left is of no run."""
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {"x": np.arange(3)}, {})
            saved.write_labels(0, np.zeros(5, np.int32))

        def killed(_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "sync", killed)
            with pytest.raises(KeyboardInterrupt), Checkpoint.open(tmp_path, RUN, restart=True):
                pass
        assert records(tmp_path) == set()
        with Checkpoint.open(tmp_path, {"source": None}) as saved:  # no other run is there
            assert saved.load("a") is None
            saved.save("a", {}, {})
        with Checkpoint.open(tmp_path, RUN, restart=True) as saved:
            assert saved.load("a") is None
        assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, LOCK]

    def test_no_byte_changes_unnoticed(self, tmp_path, caplog):
        with Checkpoint.open(tmp_path, RUN) as saved:
            wanted = np.random.default_rng(0).random(50)
            saved.save("a", {"x": wanted}, {"n": 12345})
            path = tmp_path / "a.record"
            whole, rng = path.read_bytes(), random.Random(0)
            refused = 0
            for at in sorted(rng.sample(range(len(whole)), 300)):
                path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :])
                found = saved.load("a")
                refused += found is None
                # a date or a version in a header of the archive does not matter
                assert found is None or (found[1] == {"n": 12345} and np.array_equal(found[0]["x"], wanted)), at
            assert refused > 200
            for kept in (0, 1, 100, -1):
                caplog.clear()
                path.write_bytes(whole[:kept])
                assert saved.load("a") is None
                assert "a.record is damaged and counts as not there" in caplog.text


class TestWhoseItIs:
    def test_another_source_or_setting_is_named(self, tmp_path):
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {}, {"n": 1})
        other = {"source": {"name": "x.svm", "files": [{"bytes": 120}]}, "settings": {"n_clusters": 50, "tol": 1e-4}}
        message = r"source.files\[0\].bytes is 120, was 100; settings.n_clusters is 50, was 20"
        with pytest.raises(CheckpointError, match=message), Checkpoint.open(tmp_path, other):
            pass
        assert differences({"a": [1, 2], "b": 1}, {"a": [1, 3], "c": None}) == ["a[1] is 3, was 2", "b is null, was 1"]
        assert differences(RUN, RUN) == []
        with Checkpoint.open(tmp_path, RUN) as saved:  # it was left alone
            assert saved.load("a") == ({}, {"n": 1})

    def test_an_unknown_version_and_a_damaged_marker_are_refused(self, tmp_path):
        """Nothing tells which files are the checkpoint's, so it does not start anew either."""
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {}, {})
        marked = json.loads((tmp_path / MARKER).read_text())
        unknown, other = json.dumps(marked | {"format": FORMAT + 1}), json.dumps(marked | {"fingerprint": 3})
        (tmp_path / MARKER).write_text(unknown)
        assert_refused(tmp_path, f"format {FORMAT + 1}; this release reads {FORMAT}")
        for text in ("", "[]", '{"format": 1}', other):
            (tmp_path / MARKER).write_text(text)
            assert_refused(tmp_path, "is damaged")

    @cases("name", ["labels.npy", "lock", ".x.partial", "folder/x"])
    def test_a_directory_of_other_files_is_refused(self, tmp_path, name):
        (tmp_path / "d" / name).parent.mkdir(parents=True)
        (tmp_path / "d" / name).write_text("x" * 1000)
        (tmp_path / "link").symlink_to(tmp_path / "d")
        for place in (tmp_path / "d", tmp_path / "link"):
            assert_refused(place, rf"holds other files \({name.partition('/')[0]}\)")

    @cases("name", ["a.record", f"{LABELS}.growing"])
    def test_nothing_is_written_or_removed_behind_a_link(self, tmp_path, name):
        np.save(tmp_path / "mine", np.full(5, 7, np.int32))
        with Checkpoint.open(tmp_path / "c", RUN) as saved:
            (tmp_path / "c" / name).symlink_to(tmp_path / "mine.npy")
            saved.save("a", {}, {})
            saved.write_labels(0, np.zeros(5, np.int32))
            saved.discard()
        (tmp_path / "lock").symlink_to(tmp_path / "mine.npy")
        with pytest.raises(OutputError, match="cannot be written"):
            Lock(tmp_path / "lock", "it")
        assert np.load(tmp_path / "mine.npy").tolist() == [7] * 5

    def test_discard_leaves_what_is_not_its_own(self, tmp_path):
        (tmp_path / "d").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "d")
        with Checkpoint.open(tmp_path / "link", RUN) as saved:
            saved.save("a", {}, {})
            saved.discard()
        assert list((tmp_path / "link").iterdir()) == []
        for others in ([], ["mine", "b.npz", "labels.npy", "manifest.json"]):
            with Checkpoint.open(tmp_path / "c", RUN) as saved:
                saved.save("a", {}, {})
                (tmp_path / "c" / partial_name("late.record")).write_text("")  # of a save that was killed
                for name in others:
                    (tmp_path / "c" / name).write_text("mine")
                saved.discard()
            assert (tmp_path / "c").exists() == bool(others)
        assert sorted(path.name for path in (tmp_path / "c").iterdir()) == sorted(others)


class TestLocks:
    def test_another_process_is_refused_with_its_number_and_let_in_when_it_is_killed(self, tmp_path):
        context = forking()
        ready = context.Queue()
        holder = context.Process(target=children.hold, args=(tmp_path, RUN, ready))
        holder.start()
        assert ready.get(timeout=60) == "held"
        message = f"checkpoint {tmp_path} is in use by process {holder.pid};"
        with pytest.raises(InUseError, match=message), Checkpoint.open(tmp_path, RUN):
            pass
        holder.kill()
        holder.join()
        with Checkpoint.open(tmp_path, RUN), pytest.raises(InUseError), Checkpoint.open(tmp_path, RUN):
            pass

    def test_a_lock_that_is_removed_while_another_waits_guards_nothing(self, tmp_path, monkeypatch):
        """Its last holder goes between the moments when the file is opened and when it is locked."""
        holders, try_lock = [Lock(tmp_path / "lock", "it")], locks.try_lock

        def late(handle):
            if holders:
                holders.pop().release(remove=True)
            return try_lock(handle)

        with monkeypatch.context() as patch:
            patch.setattr(locks, "try_lock", late)
            second = Lock(tmp_path / "lock", "it")
        assert (tmp_path / "lock").read_text() == str(os.getpid())
        with pytest.raises(InUseError):
            Lock(tmp_path / "lock", "it")
        second.release()


def test_what_killed_processes_left_goes_with_the_next_of_its_name(tmp_path):
    """And nothing else: not what others are at, nor what only looks like it."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    word = "0123456789abcdef"
    dead, alive = f".x.{ended.pid}", f".x.{os.getppid()}"
    locked = f"{dead}-{word[::-1]}.partial"
    stay = {
        f"{alive}-{word}.partial", f".y.{ended.pid}-{word}.partial", f"{dead}.partial.bak", f"{dead}.partial",
        f"{dead}-0123.partial/x", ".x.partial", ".x.1e3.partial", f"{locked}/0",
    }  # fmt: skip
    go = {f"{dead}-{word}.partial", f"{dead}-{'0' * 16}.partial/labels/0", f"{dead}-{'0' * 16}.partial/replaced/0"}
    for name in go | stay:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    link = f".z.{ended.pid}-{word}.partial"
    (tmp_path / link).symlink_to(tmp_path / ".x.partial")
    handle = os.open(tmp_path / locked, os.O_RDONLY)  # as of a process on another machine
    assert try_lock(handle)
    remove_rests(tmp_path / "x")
    remove_rests(tmp_path / "z")
    os.close(handle)
    assert tree(tmp_path).keys() == {"x/0", link, *stay}
    shutil.rmtree(tmp_path / "x")
    (tmp_path / f"{dead}-{word}.partial").write_text("")
    replace_file(tmp_path / "x", lambda file: file.write(b"new"))
    assert tree(tmp_path).keys() == {"x", link, *(stay - {f"{locked}/0"})}


def test_labels_are_written_by_chunk_and_read_as_far_as_they_go(tmp_path):
    wanted, found = np.arange(1000, dtype=np.int32), np.empty(1000, np.int32)
    with Checkpoint.open(tmp_path, RUN) as saved:
        assert not saved.read_labels(found[:1])
        saved.write_labels(0, wanted[:300])
    with Checkpoint.open(tmp_path, RUN) as saved:
        assert saved.read_labels(found[:300])
        assert not saved.read_labels(found)
        saved.write_labels(300, wanted[300:])
        saved.write_labels(0, wanted[:10])
        assert saved.read_labels(found)
    np.testing.assert_array_equal(found, wanted)


def test_saves_as_soon_as_its_share_allows(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(checkpoint, "INTERVAL_S", 1.0)
    monkeypatch.setattr(checkpoint, "SHARE", 0.1)
    writer = CheckpointWriter()

    def save():
        now[0] += 2

    for at, due in ((0.99, False), (1.0, True), (20.9, False), (21.0, True)):  # 2 of 3 to 21 + 2 are a tenth
        now[0] = at
        writer.when_due(save)
        assert (now[0] > at) == due


class TestFullDisk:
    def test_the_earlier_state_stays_and_it_goes_on_after_space_is_made(self, tmpfs):
        place, make_space = tmpfs
        small, large = np.arange(1000), np.random.default_rng(0).random(1 << 18)
        with Checkpoint.open(place / "c", RUN) as saved:
            saved.save("state", {"x": small}, {"n": 1})
            with pytest.raises(DiskFullError, match=r"state\.record: no space for 2,097,152 bytes .*make") as caught:
                saved.save("state", {"x": large}, {"n": 2})
            assert isinstance(caught.value, OSError)
            with pytest.raises(DiskFullError, match=r"labels\.growing: no space for 4,000,000 bytes"):
                saved.write_labels(0, np.zeros(1_000_000, np.int32))
            (place / "c" / "labels.growing").unlink()
            assert saved.load("state")[1] == {"n": 1}
            assert not [path for path in (place / "c").iterdir() if "partial" in path.name]
        make_space()
        with Checkpoint.open(place / "c", RUN) as saved:
            assert saved.load("state")[1] == {"n": 1}
            saved.save("state", {"x": large}, {"n": 2})
            assert saved.load("state")[1] == {"n": 2}
            saved.write_labels(0, np.zeros(1_000_000, np.int32))

    def test_a_limit_of_the_size_of_files(self, tmp_path):
        context = forking()
        problem = context.Queue()
        for n_values, full in ((1000, False), (10_000, True)):
            child = context.Process(target=children.save_within, args=(tmp_path / "c", 50_000, n_values, problem))
            child.start()
            said = problem.get(timeout=60)
            child.join()
            assert (said is not None) == full
        assert said.startswith("DiskFullError")
        assert "for 80,000 bytes" in said
        with Checkpoint.open(tmp_path / "c", {}) as saved:
            assert saved.load("state")[1] == {"of": 1000}

    def test_what_cannot_be_written_at_all(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="cannot be written"), Checkpoint.open(tmp_path / "file", RUN):
            pass
        with pytest.raises(OutputError, match="cannot be written"):
            replace_file(tmp_path / "none" / "x", lambda file: file.write(b"x"))


def test_a_kill_before_any_change_of_a_name_leaves_what_can_be_taken_again(tmp_path):
    child = forking().Process(target=children.save_killed_everywhere, args=(tmp_path,))
    child.start()
    child.join()
    assert child.exitcode > 10


NUMBERS = st.floats(width=64) | st.sampled_from([np.inf, -np.inf, np.nan, -0.0, 5e-324])
ARRAYS = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5),
)


@dataclass(frozen=True, slots=True)
class Inner:
    X: Matrix
    limit: float
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner | None
    pieces: tuple[NDArray[Any], ...]
    nodes: tuple[tuple[int, bool, Inner], ...]
    history: list[dict[str, Any]]
    sketch: Sketch | None = None
    derived: int = field(init=False, default=3)


def through_a_file(value, kind, path):
    """What comes back of a value that a checkpoint holds: through JSON and .npz, not in memory alone."""
    with Checkpoint.open(path, {"of": "test"}) as checkpoint:
        checkpoint.save("value", *pack(value))
        return unpack(kind, checkpoint.load("value"))


def check_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.tobytes() == wanted.tobytes()
    elif sp.issparse(wanted):
        for name in ("data", "indices", "indptr"):
            check_same(getattr(found, name), getattr(wanted, name))
        assert found.shape == wanted.shape
    elif isinstance(wanted, float):
        assert np.float64(found).tobytes() == np.float64(wanted).tobytes() or (np.isnan(found) and np.isnan(wanted))
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for each, other in zip(found, wanted, strict=True):
            check_same(each, other)
    elif isinstance(wanted, dict):
        check_same(list(found.items()), list(wanted.items()))
    elif hasattr(wanted, "__dataclass_fields__"):
        for each in fields(wanted):
            check_same(getattr(found, each.name), getattr(wanted, each.name))
    else:
        assert found == wanted


@settings(max_examples=30, deadline=None)
@given(ARRAYS, NUMBERS, st.integers(-(2**63), 2**63), st.lists(ARRAYS, max_size=4), st.text(max_size=5))
def test_values_come_back_bit_by_bit(tmp_path_factory, array, number, whole, pieces, text):
    X = sp.csr_array(np.eye(3)) if len(pieces) % 2 else np.asarray(array)
    inner = Inner(X, number, text or None)
    history = [{"stage": text, "iteration": whole, "inertia": number}]
    value = Outer(inner, tuple(pieces), ((whole, True, inner),), history)
    check_same(through_a_file(value, Outer, tmp_path_factory.mktemp("checkpoint") / "c"), value)


def test_states_and_many_short_arrays_come_back(tmp_path):
    folded = Folded(7, ((2, (Inner(np.ones((1, 2)), np.inf),)), (1, ())))
    check_same(through_a_file(folded, Folded[Inner], tmp_path / "c"), folded)
    pieces = [np.full(n, n, np.int32) for n in (3, 0, 5)]
    _, meta = pack(pieces)
    assert json.loads(json.dumps(meta)) == meta
    check_same(through_a_file(pieces, list[NDArray[Any]], tmp_path / "d"), pieces)
    weights = np.arange(4.0)  # one that occurs twice is held once
    arrays, _ = pack([weights.reshape(2, 2), {"again": weights}, Inner(weights, 1.0)])
    assert sum(array.nbytes for array in arrays.values()) <= 2 * weights.nbytes


@cases("value", [object(), {"a": {1, 2}}, [1, lambda: 2]])
def test_other_values_are_refused_by_name_and_place(value):
    with pytest.raises(TypeError, match=r"(object|set|function) at value.*records do not hold"):
        pack(value)
