"""Results of an update, and models that go on: which there are, how they are told from others, where they may go.

Never prints. The order in which an update writes them is that of `update`.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamkm.cli.data import TEXT
from streamkm.cli.results import INCREMENTAL, LABELS
from streamkm.core.atomic_io import check_new
from streamkm.core.exceptions import ConfigError, ModelFileError, OutputError
from streamkm.estimators.continued import unfitted_incremental
from streamkm.estimators.incremental import IncrementalKMeans
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.estimators.model_files import load_estimator
from streamkm.sources.fingerprints import fingerprint

if TYPE_CHECKING:
    from streamkm.cli.config import Run
    from streamkm.planning.plan import Plan
    from streamkm.sources.base import RowSource

UPDATE, UPDATE_PAGE, DRIFT, DRIFT_PAGE = "update.json", "update.html", "drift.json", "drift.html"
# in the order in which they appear: by the first, a call knows what it left when it was interrupted at a later one
UPDATE_RESULTS = (UPDATE, UPDATE_PAGE, *LABELS)
DRIFT_RESULTS = (DRIFT, DRIFT_PAGE)
RUN = "run"
"""In `UPDATE`: what tells whether a call is one that was made before."""


def planned(run: Run) -> Plan:
    """What a fit will do; refused before it reads a row where a model that goes on is wanted and cannot be made."""
    plan = run.plan()
    if not run.output.incremental:
        if run.output.half_life is not None:
            raise ConfigError("--half-life is of use with --incremental only; pass both, or leave it out")
        return plan
    if not isinstance(run.estimator, StreamKMeans):
        raise ConfigError("--incremental is for k-means alone; leave it out, or the section kernel")
    unfitted_incremental(run.estimator, half_life=run.output.half_life)
    if plan.expected_space == "sketch":
        raise ConfigError(
            "--incremental needs clusters in the original space, and this fit will have them in the sketch alone; "
            "raise --memory-limit, pass --set estimator.assign_space=original, or leave --incremental out"
        )
    return plan


def load_incremental(path: str) -> IncrementalKMeans:
    """The model that a command goes on with; an error says how one is made."""
    begin = (
        "streamkm fit DATA -k {} --incremental -o out leaves such a model, out/incremental.npz; in Python "
        "StreamKMeans.incremental() makes one, and save() writes it"
    )
    if not os.path.isfile(path):
        raise ModelFileError(f"{path} is no file; updates go on with a model of IncrementalKMeans: {begin.format(10)}")
    estimator = load_estimator(path)
    if isinstance(estimator, IncrementalKMeans):
        return estimator
    begin = begin.format(len(estimator.model_.centers))
    beside = Path(path).with_name(INCREMENTAL)
    there = f"{beside} can; give it" if beside.is_file() else begin
    raise ModelFileError(f"{path} is a model of {type(estimator).__name__}, which cannot go on with more rows: {there}")


def check_model_place(model: str, target: str, *, overwrite: bool) -> None:
    """Refuse a place of the updated model that has something else, or where it would be without its settings."""
    is_same = os.path.realpath(model) == os.path.realpath(target)
    check_new(target, overwrite=overwrite or is_same)
    there = Path(model).parent
    if not is_same and Path(target).parent.resolve() != there.resolve() and (there / TEXT).exists():
        raise OutputError(
            f"{there} says how later data of {model} are opened ({TEXT}); choose a name there with --model-to"
        )


def earlier_run(path: Path) -> dict[str, str]:
    """What an update that has written its results says of itself; nothing where there is none."""
    try:
        run = json.loads(path.read_text("utf-8"))[RUN]
    except (OSError, ValueError, KeyError, TypeError):  # not written, or by something else: `check_target` judges
        return {}
    return run if isinstance(run, dict) else {}


def data_digest(source: RowSource) -> str:
    """What tells data from others, without their names."""
    return json_digest(fingerprint(source))


def json_digest(values: Any) -> str:
    """What tells JSON values from others."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def state_digest(estimator: IncrementalKMeans) -> str:
    """What tells the state of a model from that before or after an update."""
    stream = estimator.stream_
    state = hashlib.sha256(f"{stream.n_rows} {stream.next_row}".encode())
    if stream.followed is not None:
        clusters = stream.followed.clusters
        for array in (clusters.ids, clusters.centers, clusters.counts):
            state.update(array.tobytes())
    return state.hexdigest()


def file_version(path: str) -> tuple[int, int, int] | None:
    """What changes when a file is replaced; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def json_text(values: dict[str, Any]) -> str:
    """JSON of results, indented, with a line end."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"
