"""Commands that are killed, at a moment or before a name changes on disk, and called again: as if nothing had happened.

Files that are not streamkm's, where it writes and beside, are as they were.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm import IncrementalKMeans
from tests import children
from tests.children import tree
from tests.cli.test_cli import run
from tests.programs import forking

COMMANDS = {
    "sketch": ["sketch", "x.npy", "-o", "new.zarr", "-m", "8", "--sketch", "countsketch"],
    "append": ["sketch", "--append", "s.zarr", "y.npy"],
    "sparse": ["sketch", "--append", "s.zarr", "y.npz"],
    "cluster": ["fit", "s.zarr", "-k", "4", "-o", "out", "--resume"],
    "fit": ["fit", "x.npy", "-k", "4", "-o", "out", "--resume", "--labels-format", "zarr"],
    "first": ["fit", "x.npy", "-k", "4", "-o", "first", "--resume", "--labels-format", "parquet"],
    "dedupe": ["dedupe", "x.npy", "--threshold", "0.999", "-o", "keep.npy", "--overwrite"],
    "update": ["update", "m.npz", "x.npy", "-o", "new"],
    "sweep": ["sweep", "x.npy", "-k", "2:3", "--random-state", "0", "-o", "scores", "--overwrite"],
    "scores": ["sweep", "x.npy", "-k", "2:3", "--random-state", "0", "-o", "new-scores"],
}
DONE = ("already", "exists", "holds results of an earlier run")
NEW = ("first/", "new-scores/", "new/")
SEED = ["--set", "estimator.random_state=0", "--no-report"]
MINE = ("mine.npz", "out/mine.npz", "out/labels.bak", "scores/mine.csv", "s.zarr/mine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows, a store, and files of somebody else."""
    folder = tmp_path_factory.mktemp("commands") / "before"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, shape in (("x", (4000, 6)), ("y", (3000, 6))):
        np.save(folder / f"{name}.npy", rng.normal(size=shape).astype("f4") + 9 * rng.integers(0, 4, (shape[0], 1)))
    sp.save_npz(folder / "y.npz", sp.csr_array(np.load(folder / "y.npy")))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr("streamkm.stores.writer.CHUNK_BYTES", 1 << 15)
        run("sketch", "x.npy", "-o", "s.zarr", "-m", "8", "--sketch", "countsketch")
    kmeans = IncrementalKMeans((2, 8), random_state=0)
    kmeans.update(np.load(folder / "y.npy"))
    kmeans.save(folder / "m.npz")
    for name in MINE:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    return folder


def outcome(place):
    """What the results say, without what differs from run to run."""
    files = {
        name: content
        for name, content in tree(place).items()
        if not name.endswith(("streamkm.json", "sweep.svg", "update.html"))
    }
    if "new/update.json" in files:
        files["new/update.json"] = {**json.loads(files["new/update.json"]), "seconds": None, "run": None}
    for name in [name for name in files if "scores/sweep." in name]:
        text = files[name].decode()
        if name.endswith(".csv"):
            files[name] = [line.rpartition(",")[0] for line in text.splitlines()]
        else:
            files[name] = [{**row, "seconds": None} for row in json.loads(text)["rows"]]
    return files


def kill(folder, tmp_path, name, moments):
    """Kill a command at moments in turn; how often it was killed before its end."""
    before = shutil.copytree(folder, tmp_path / "before")
    arguments = COMMANDS[name] + (SEED if name in ("cluster", "fit", "first") else [])
    here, there = multiprocessing.Pipe()
    moments = [10**9, *moments]  # the first is not killed
    child = forking().Process(target=children.commands_killed, args=(before, arguments, moments, there))
    child.start()
    there.close()
    wanted, n_killed = None, 0
    while (told := here.recv()) is not None:
        killed, left, code = told
        place = tmp_path / "run"
        said = (tmp_path / "said.txt").read_text()[-2000:]
        found = outcome(place)
        # it may have been killed when all was done: the second run then finds it done
        assert code == 0 or (code == 2 and any(word in said for word in DONE)), said
        wanted = found if wanted is None else wanted
        for new in NEW:  # appear whole
            assert {name for name in left if name.startswith(new)} in (
                set(),
                {x for x in tree(place) if x.startswith(new)},
            )
        assert found.keys() == wanted.keys(), said
        assert found == wanted
        assert all((place / name).read_text() == name for name in MINE)
        n_killed += killed
        here.send("next")
    child.join()
    return n_killed


QUICK = ("append", "first")
FULL = (pytest.mark.slow, pytest.mark.full)  # reduced runs kill these before changes of names


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else FULL) for name in COMMANDS])
def test_a_few_times(folder, tmp_path, name):
    rng = np.random.default_rng(len(name))
    moments = rng.choice(12, 2, replace=False).tolist()
    if name not in QUICK:
        moments.append(float(rng.uniform(0.1, 0.6)))
    assert kill(folder, tmp_path, name, moments) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_before_every_change_of_a_name(folder, tmp_path, name, reduced):
    moments = range(0, 150, 30 if reduced else 1)
    assert kill(folder, tmp_path, name, moments) > len(moments) / 10
