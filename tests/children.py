"""What tests run in processes of their own, to be killed, limited or locked out; fits that are stopped, and compared.

Imported in those processes: no fixtures here.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from streamkm import IncrementalKMeans, StreamKernelKMeans, StreamKMeans
from streamkm.cli.main import main
from streamkm.cluster.held_rows import Spill
from streamkm.cluster.rows import Block
from streamkm.core.progress import Stage
from streamkm.engine import checkpoint, open_executor
from streamkm.engine import checkpoint as saving
from streamkm.kernels.cluster import totals
from streamkm.passes import assign
from streamkm.passes.reader import RowReader
from streamkm.sketches import CountSketch
from streamkm.sources import open_source
from streamkm.sources.dense import DenseSource
from streamkm.stores import writer as store
from tests.programs import forking

SKETCH = CountSketch(300, 7)  # sparse rows stay sparse, dense ones do not


def reader_of(X, *, chunk_bytes=20_000, metric="euclidean", invalid="raise"):
    return RowReader(open_source(X), chunk_bytes, metric, invalid)


def small_chunks():
    """Storage chunks so short that little data make many of them."""
    store.CHUNK_BYTES = 1 << 15


def run(operation, path, data):
    """Write or extend a store."""
    small_chunks()
    do = {"write": store.write_store, "rows": store.append_rows}[operation]
    sketch = (SKETCH,) if operation == "write" else ()
    with open_executor(2) as executor:
        do(path, reader_of(data), *sketch, executor, Stage(operation))


def killed_at(moment, function, *args):
    """Call a function; killed before it changes a name in a directory: after so many changes, or that of a file whose
    name begins so.
    """
    seen = []

    def dying(change):
        def change_or_die(path, *rest, **options):
            if len(seen) == moment or (isinstance(moment, str) and os.path.basename(path).startswith(moment)):
                os.kill(os.getpid(), signal.SIGKILL)
            seen.append(path)
            return change(path, *rest, **options)

        return change_or_die

    for name in ("replace",) if isinstance(moment, str) else ("replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, dying(getattr(os, name)))
    return function(*args)


def hold(directory, fingerprint, ready, seconds=60):
    """Hold a checkpoint."""
    with checkpoint.Checkpoint.open(directory, fingerprint):
        ready.put("held")
        time.sleep(seconds)


def save_within(directory, most_bytes, n_values, problem):
    """Save a record while files may have only so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        with checkpoint.Checkpoint.open(directory, {}) as saved:
            saved.save("state", {"values": np.arange(n_values)}, {"of": n_values})
        problem.put(None)
    except OSError as error:
        problem.put(f"{type(error).__name__}: {error}")


def save_and_end(directory):
    """Take a checkpoint, save twice, end; an earlier call may have been killed anywhere in this."""
    with checkpoint.Checkpoint.open(directory, {"run": 1}) as saved:
        for n in range(2):
            saved.save("state", {"values": np.arange(10 ** (n + 1))}, {"n": n})
        saved.write_labels(0, np.zeros(10, np.int32))
        saved.discard()


def save_killed_everywhere(directory):
    """Do `save_and_end` in processes that are killed at every moment in turn, and again; ends with how many came."""
    n_killed = 0
    while True:
        place = directory / str(n_killed)
        child = os.fork()
        if child == 0:
            killed_at(n_killed, save_and_end, place)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            sys.exit(n_killed)
        save_and_end(place)
        if place.exists():
            sys.exit(f"killed at {n_killed}: {sorted(place.iterdir())} is left")
        n_killed += 1


def fit(path, checkpoint, out, options, begun):
    """Fit with a checkpoint that is written all the time; says on `begun`, a connection, that imports are done."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    saving.INTERVAL_S, saving.SHARE = 0.0, 0.3
    begun.send("begun")
    estimator = StreamKernelKMeans if "kernel" in options else StreamKMeans
    np.savez(out, **outcome(estimator(progress=False, **options).fit(str(path), checkpoint=checkpoint)))


def fit_killed_within_epochs(path, checkpoint, options, n_batches):
    """Fit with a checkpoint that is written after every batch; killed as centers move for a batch after so many."""
    saving.INTERVAL_S, saving.SHARE = 0.0, 1.0
    seen, moved = [], totals.moved_towards

    def dying(*given):
        if len(seen) == n_batches:
            os.kill(os.getpid(), signal.SIGKILL)
        seen.append(None)
        moved(*given)

    totals.moved_towards = dying
    StreamKMeans(progress=False, **options).fit(str(path), checkpoint=checkpoint)


def outcome(fitted):
    """What a fit found, as arrays and numbers."""
    return {
        "labels": fitted.labels_,
        "centers": fitted.cluster_centers_,
        "means": fitted.cluster_means_,
        "inertia": fitted.inertia_,
        "history": [step["inertia"] for step in fitted.history_],
        "distortion": -1 if fitted.distortion_ is None else fitted.distortion_,
    }


def assert_same_fit(found, wanted):
    """Demand that an `outcome`, or the file of one, is to the bit that of a fitted estimator."""
    for name, value in outcome(wanted).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def started_fit(path, checkpoint, out, options):
    """A process that fits, past its imports; see `fit`."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = forking().Process(target=fit, args=(path, checkpoint, out, options, there))
    child.start()
    assert here.recv() == "begun"
    return child


def killed_until_done(start, seconds):
    """Kill what `start` starts after each of some times in turn, then let it end; how often it was killed before."""
    waits, n_killed = [*seconds, None], 0
    while waits:
        child = start()
        child.join(waits[0])
        child.kill()
        child.join()
        if child.exitcode == 0 and (n_killed or waits[0] is None):
            return n_killed
        if child.exitcode == 0:
            waits[0] /= 2
            continue
        assert child.exitcode == -signal.SIGKILL
        waits.pop(0)
        n_killed += 1
    raise AssertionError("the last run was to end by itself")


class StoppedError(Exception):
    """What tests stop a fit with, in their own process."""


def stopped_after(monkeypatch, name, times=1):
    """Stop a fit behind the save of a record."""
    original, seen = saving.Checkpoint.save, []

    def save(self, record, *rest):
        original(self, record, *rest)
        seen.append(record)
        if seen.count(name) == times:
            raise StoppedError(name)

    monkeypatch.setattr(saving.Checkpoint, "save", save)


def command(arguments):
    """Run a command, which saves what it has done all the time; gives its exit code."""
    small_chunks()
    saving.INTERVAL_S, saving.SHARE = 0.0, 0.3
    try:
        main(list(arguments))
    except SystemExit as ended:
        return ended.code
    return 0


def command_killed(folder, moment, arguments):
    """Run a command in a folder, killed at a moment; see `killed_at`."""
    os.chdir(folder)
    killed_at(moment, command, arguments)


def commands_killed(folder, arguments, moments, told):
    """Run a command in fresh copies of a folder, `run` beside it: killed at another moment each, and again to its end.

    Moments are those of `killed_at`, or seconds, as floats. Says on `told`, a connection, for each whether the command
    was killed, the files that it left, and the exit code of the second run, and waits for an answer.
    """
    place = folder.with_name("run")
    for moment in moments:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder, place)
        seconds = moment if isinstance(moment, float) else None
        first = _forked(place, arguments, None if seconds is not None else moment, seconds)
        left = {*tree(place)}
        told.send((first == -signal.SIGKILL, left, _forked(place, arguments)))
        told.recv()
    told.send(None)


def _forked(place, arguments, moment=None, seconds=None):
    """Exit code of a command in a process of its own, in a folder: killed at a moment, or after so many seconds."""
    child = os.fork()
    if child == 0:
        os.chdir(place)
        with open("../said.txt", "a") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        os._exit(command(arguments) if moment is None else killed_at(moment, command, arguments) or 0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def chunks_read(monkeypatch):
    """A list that gets each chunk of a stored array that is read from now on, in this process."""
    original, seen = DenseSource.read, []

    def read(self, chunk):
        seen.append(chunk)
        return original(self, chunk)

    monkeypatch.setattr(DenseSource, "read", read)
    return seen


def tree(directory):
    """Contents of every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in Path(directory).rglob("*") if path.is_file()
    }


def update_of(model, path, checkpoint, out, dies, call="update"):
    """Update a saved model by rows of a file, or call another method; killed in a pass after so many chunks by `dies`.

    Writes what is known afterwards, and how many chunks each pass read.
    """
    saving.INTERVAL_S, saving.SHARE = 0.0, 1.0
    n_read = {"observe": 0, "assign": 0}

    def counted(kind, name, step):
        def count_or_die(self, state, rows):
            if dies == (name, n_read[name]):
                os.kill(os.getpid(), signal.SIGKILL)
            n_read[name] += 1
            return step(self, state, rows)

        kind.step = count_or_die

    counted(assign.Observe, "observe", assign.Observe.step)
    counted(assign.Assign, "assign", assign.Assign.step)
    kmeans = IncrementalKMeans.load(model).set_params(executor=1, progress=False)
    getattr(kmeans, call)(str(path), checkpoint=checkpoint)
    np.savez(out, n_read=np.array([*n_read.values()]), **update_outcome(kmeans))


def update_outcome(kmeans):
    """What is known after an update, as arrays and numbers."""
    return {
        "labels": kmeans.labels_,
        "ids": kmeans.cluster_ids_,
        "centers": kmeans.cluster_centers_,
        "means": kmeans.cluster_means_,
        "counts": kmeans.counts_,
        "inertia": kmeans.inertia_,
        "changed": kmeans.changed_share_,
        "rows": kmeans.updates_[-1].rows,
        "coreset": kmeans.stream_.coreset().weights,
    }


def fit_killed_behind(path, state, options, record, times, room):
    """Fit in a checkpoint, with so much room for sketched rows; killed behind a save of a record."""
    saving.INTERVAL_S, saving.SHARE = 0.0, 1.0
    original, seen = saving.Checkpoint.save, []

    def save(self, name, *rest):
        original(self, name, *rest)
        seen.append(name)
        if seen.count(record) == times:
            os.kill(os.getpid(), signal.SIGKILL)

    saving.Checkpoint.save = save
    begin = Spill.__init__
    Spill.__init__ = lambda self, _, *rest: begin(self, room, *rest)
    StreamKMeans(progress=False, **options).fit(str(path), checkpoint=state)


def spill_and_wait(folder, ready):
    """Put rows into a temporary folder, say so, and wait."""
    tempfile.tempdir = str(folder)
    spilled = Spill(0)
    spilled.keep(Block(np.ones((1000, 4)), np.ones(1000), np.ones(0)))
    ready.send("spilled")
    time.sleep(60)
