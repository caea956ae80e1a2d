"""Checkpoints: records that are whole or absent, labels, locks, refusals by name, a full disk, kills."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from streamkm.core import locks
from streamkm.core.atomic_io import remove_rests, replace_file, replace_tree, try_lock
from streamkm.core.exceptions import CheckpointError, DiskFullError, InUseError, OutputError
from streamkm.core.locks import LOCK, Lock
from streamkm.engine import checkpoint
from streamkm.engine.checkpoint import FORMAT, LABELS, MARKER, Checkpoint, CheckpointWriter, records
from streamkm.sources.fingerprints import differences
from tests import children
from tests.children import tree
from tests.programs import forking
from tests.tables import cases

RUN = {"source": {"name": "x.svm", "files": [{"bytes": 100}]}, "settings": {"n_clusters": 20, "tol": 1e-4}}


def contents(folder):
    """All that is below a folder: kinds, names and bytes."""
    found = sorted(folder.rglob("*"))
    return [(path, path.is_symlink(), path.read_bytes() if path.is_file() else None) for path in found]


class TestRecords:
    def test_come_back_after_the_process(self, tmp_path):
        arrays = {"centers": np.random.default_rng(0).random((3, 4)), "file": np.arange(5), "none": np.empty(0)}
        with Checkpoint.open(tmp_path / "c", RUN) as saved:
            assert saved.load("lloyd") is None
            saved.save("lloyd", arrays, {"iteration": 3, "history": [1.5, 0.5]})
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
            write(array_x=np.arange(3), array_y=np.arange(3))
            assert saved.load("a") is None

    def test_half_of_them_are_no_state(self, tmp_path, monkeypatch):
        """Killed when it had removed some, or none yet: what is left is of no run."""
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {"x": np.arange(3)}, {})

        def killed(_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "sync", killed)
            with pytest.raises(KeyboardInterrupt), Checkpoint.open(tmp_path, RUN, restart=True):
                pass
        assert records(tmp_path) == set()
        with Checkpoint.open(tmp_path, {"source": None}):  # no other run is there
            pass

    def test_a_later_one_replaces_it_and_leaves_nothing_beside(self, tmp_path):
        with Checkpoint.open(tmp_path, RUN) as saved:
            for n in range(3):
                saved.save("a", {"x": np.full(4, n)}, {})
            assert saved.load("a")[0]["x"].tolist() == [2, 2, 2, 2]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.record", MARKER, LOCK]

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

    @pytest.mark.parametrize("kept", [0, 1, 100, -1])
    def test_a_torn_one_counts_as_absent_and_is_told(self, tmp_path, kept, caplog):
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {"x": np.arange(100)}, {})
            path = tmp_path / "a.record"
            path.write_bytes(path.read_bytes()[:kept])
            with caplog.at_level(logging.WARNING):
                assert saved.load("a") is None
        assert "a.record is damaged and counts as not there" in caplog.text

    def test_of_another_name_does_not_count(self, tmp_path):
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {}, {})
            (tmp_path / "a.record").rename(tmp_path / "b.record")
            assert saved.load("b") is None


class TestWhoseItIs:
    def test_another_source_or_setting_is_named(self, tmp_path):
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {}, {"n": 1})
        other = {"source": {"name": "x.svm", "files": [{"bytes": 120}]}, "settings": {"n_clusters": 50, "tol": 1e-4}}
        with (
            pytest.raises(
                CheckpointError, match=r"source.files\[0\].bytes is 120, was 100; settings.n_clusters is 50, was 20"
            ),
            Checkpoint.open(tmp_path, other),
        ):
            pass
        with Checkpoint.open(tmp_path, RUN) as saved:  # it was left alone
            assert saved.load("a") == ({}, {"n": 1})

    def test_restart_forgets(self, tmp_path):
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {}, {})
            saved.write_labels(0, np.zeros(5, np.int32))
        with Checkpoint.open(tmp_path, {"source": None}, restart=True) as saved:
            assert saved.load("a") is None
        assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, LOCK]

    def test_an_unknown_version_is_refused(self, tmp_path):
        with Checkpoint.open(tmp_path, RUN) as saved:
            saved.save("a", {}, {})
        marked = json.loads((tmp_path / MARKER).read_text())
        (tmp_path / MARKER).write_text(json.dumps(marked | {"format": FORMAT + 1}))
        before = contents(tmp_path)
        for restart in (False, True):
            with (
                pytest.raises(CheckpointError, match=f"format {FORMAT + 1}; this release reads {FORMAT}"),
                Checkpoint.open(tmp_path, RUN, restart=restart),
            ):
                pass
        assert contents(tmp_path) == before

    @cases(
        "text",
        [
            "",
            "{",
            "[]",
            '{"format": 1}',
            json.dumps({"streamkm": "checkpoint", "format": FORMAT, "fingerprint": 3}),
        ],
    )
    def test_a_damaged_marker_is_refused(self, tmp_path, text):
        """Nothing tells then which files are the checkpoint's, so it does not start anew either."""
        (tmp_path / MARKER).write_text(text)
        before = contents(tmp_path)
        for restart in (False, True):
            with (
                pytest.raises(CheckpointError, match="is damaged"),
                Checkpoint.open(tmp_path, RUN, restart=restart),
            ):
                pass
        assert contents(tmp_path) == before

    @cases("name", ["thesis.tex", "train.npz", "labels.npy", "streamkm.json", "lock", ".x.partial", "folder/x"])
    def test_a_directory_of_other_files_is_refused(self, tmp_path, name):
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_text("x" * 1000)
        (tmp_path / "link").symlink_to(tmp_path / "d")
        before = contents(tmp_path)
        for place in (tmp_path / "d", tmp_path / "link"):
            for restart in (False, True):
                with (
                    pytest.raises(CheckpointError, match=rf"holds other files \({name.partition('/')[0]}\)"),
                    Checkpoint.open(place, RUN, restart=restart),
                ):
                    pass
        assert contents(tmp_path) == before

    @cases("name", ["a.record", f"{LABELS}.growing"])
    def test_nothing_is_written_or_removed_behind_a_link(self, tmp_path, name):
        np.save(tmp_path / "mine", np.full(5, 7, np.int32))
        with Checkpoint.open(tmp_path / "c", RUN) as saved:
            (tmp_path / "c" / name).symlink_to(tmp_path / "mine.npy")
            saved.save("a", {}, {})
            saved.write_labels(0, np.zeros(5, np.int32))
            saved.discard()
        assert np.load(tmp_path / "mine.npy").tolist() == [7] * 5

    def test_a_lock_that_leads_elsewhere_is_not_followed(self, tmp_path):
        (tmp_path / "mine").write_text("mine")
        (tmp_path / "lock").symlink_to(tmp_path / "mine")
        with pytest.raises(OutputError, match="cannot be written"):
            Lock(tmp_path / "lock", "it")
        assert (tmp_path / "mine").read_text() == "mine"

    def test_records_are_told_from_outside(self, tmp_path):
        assert records(tmp_path / "c") == set()
        with Checkpoint.open(tmp_path / "c", RUN) as saved:
            saved.save("a", {}, {})
            assert records(tmp_path / "c") == {"a"}

    def test_discard_leaves_what_is_not_its_own(self, tmp_path):
        for others in ([], ["mine", "b.npz", "labels.npy", "manifest.json"]):
            with Checkpoint.open(tmp_path / "c", RUN) as saved:
                saved.save("a", {}, {})
                for name in others:
                    (tmp_path / "c" / name).write_text("mine")
                saved.discard()
            assert (tmp_path / "c").exists() == bool(others)
        assert sorted(path.name for path in (tmp_path / "c").iterdir()) == sorted(others)

    def test_a_link_to_an_empty_directory_stays(self, tmp_path):
        (tmp_path / "d").mkdir()
        (tmp_path / "c").symlink_to(tmp_path / "d")
        with Checkpoint.open(tmp_path / "c", RUN) as saved:
            saved.save("a", {}, {})
            saved.discard()
        assert list((tmp_path / "c").iterdir()) == []

    def test_differences(self):
        assert differences({"a": [1, 2], "b": 1}, {"a": [1, 3], "c": None}) == ["a[1] is 3, was 2", "b is null, was 1"]
        assert differences(RUN, RUN) == []


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
        with Checkpoint.open(tmp_path, RUN):
            pass

    def test_this_process_is_refused_too(self, tmp_path):
        with Checkpoint.open(tmp_path, RUN), pytest.raises(InUseError), Checkpoint.open(tmp_path, RUN):
            pass

    def test_a_removed_lock_guards_nothing(self, tmp_path):
        first = Lock(tmp_path / "lock", "it")
        first.release(remove=True)
        assert not (tmp_path / "lock").exists()
        second = Lock(tmp_path / "lock", "it")
        with pytest.raises(InUseError):
            Lock(tmp_path / "lock", "it")
        second.release()

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


class TestTrees:
    def test_one_that_cannot_be_replaced_is_where_it_was(self, tmp_path):
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "old").write_text("old")
        with pytest.raises(OutputError, match="x cannot be written"):
            replace_tree(tmp_path / "missing", tmp_path / "x", tmp_path / "aside")
        assert tree(tmp_path) == {"x/old": b"old"}

    def test_what_killed_processes_left_goes_with_the_next_of_its_name(self, tmp_path):
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


class TestIntervals:
    def test_saves_as_soon_as_its_share_allows(self, monkeypatch):
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


class TestKilledWhileWriting:
    def test_what_was_not_complete_goes_with_the_state(self, tmp_path):
        """A record that the second run does not write again."""
        place = tmp_path / "c"
        child = forking().Process(target=_killed_while_writing, args=(place,))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        (rest,) = (path for path in place.iterdir() if "late" in path.name)
        assert rest.name.endswith(".partial")
        with Checkpoint.open(place, RUN) as saved:
            assert saved.load("early")[1] == {"n": 1}
            saved.discard()
        assert not place.exists()


def _killed_while_writing(place):
    with Checkpoint.open(place, RUN) as saved:
        saved.save("early", {}, {"n": 1})
        os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        saved.save("late", {}, {"n": 2})


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


def test_a_kill_leaves_the_state_before_or_after(tmp_path):
    """Of a process that saves all the time: one of its states, and never an older one."""
    context, last, rng = forking(), 0, random.Random(0)

    def saved_state():
        path = tmp_path / "state.record"
        return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None

    for _ in range(3):
        before = saved_state()
        child = context.Process(target=children.save_for_ever, args=(tmp_path, 2000))
        child.start()
        while saved_state() == before:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.2))
        child.kill()
        child.join()
        labels = np.empty(2000, np.int32)
        with Checkpoint.open(tmp_path, {"size": 2000}) as saved:
            assert saved.read_labels(labels)
            arrays, meta = saved.load("state")
            assert meta["n"] > last
            last = meta["n"]
            assert (arrays["values"] == last).all()
            assert (labels >= last).all()
