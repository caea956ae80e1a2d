"""Results on disk: labels, the model, streamkm.json with the summary, the report. Never reads rows.

Files are written in a hidden directory, flushed and renamed: a new directory appears complete, in an old one the files
are renamed one by one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cli.data import TEXT, TFIDF
from streamkm.core.atomic_io import (
    check_local,
    check_new,
    check_new_directory,
    named,
    replace_file,
    sync,
    sync_tree,
    working_directory,
    writing,
)
from streamkm.core.display import displayed
from streamkm.core.exceptions import OutputError
from streamkm.engine.checkpoint import KeptDirectory, forget
from streamkm.passes.label_tables import SUFFIXES
from streamkm.passes.labels import OF_LABELS
from streamkm.reports.maps import cluster_map

MODEL, INCREMENTAL, SUMMARY = "model.npz", "incremental.npz", "streamkm.json"
REPORT = "report.html"
LABELS = ("labels.npy", "labels.zarr", "labels.csv", "labels.parquet")
# in the order in which they appear: by the first, a call knows what it left when it was interrupted at a later one
RESULT_NAMES = (SUMMARY, *LABELS, MODEL, INCREMENTAL, TEXT, TFIDF, REPORT)
RUN = "run"  # in a summary: what tells whether a call is one that was made before


def check_target(target: str | os.PathLike[str], *, overwrite: bool, results: Sequence[str] = RESULT_NAMES) -> None:
    """Raise OutputError if `target` is a file, cannot be written, or holds `results` to keep; writes nothing."""
    check_local(target)
    directory = Path(target)
    present = [name for name in results if os.path.lexists(directory / name)]
    if present and not overwrite:
        raise OutputError(
            f"{directory} holds results of an earlier run ({', '.join(present)}); pass --overwrite to replace them, or "
            f"choose another directory with -o"
        )
    for name in present:
        if name.endswith(".zarr"):
            check_new_directory(directory / name, OF_LABELS, overwrite=True)
        else:
            check_new(directory / name, overwrite=True)
    _check_writable(directory)


def check_labels_target(target: str, *, overwrite: bool) -> None:
    """Raise OutputError for a bad suffix or place of labels in one file or Zarr array."""
    if not target.endswith((".npy", ".zarr", *SUFFIXES)):
        named = f"labels are written as .npy, .zarr, .csv or .parquet, not as {Path(target).name}"
        raise OutputError(f"{named}; choose such a name with -o")
    if target.endswith(".npy"):  # others are checked by what writes them
        check_new(target, overwrite=overwrite)
    _check_writable(Path(target).parent)


def _check_writable(directory: Path) -> None:
    """Refuse a directory that cannot be written or made."""
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise OutputError(f"{directory} cannot be made: {nearest} is a file; choose another directory with -o")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OutputError(f"no permission to write in {nearest}; choose another directory with -o")


def kept_directory(output: str, *, restart: bool) -> KeptDirectory:
    """The checkpoint beside results, emptied for a restart."""
    directory = KeptDirectory(f"{output}.checkpoint")
    if restart:
        forget(directory)
    return directory


def write_npy(path: str | os.PathLike[str], values: NDArray[Any], *, overwrite: bool = False) -> None:
    """Write one .npy file; readers see the old file or the whole new one."""
    with writing(path, values.nbytes):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda file: np.save(file, values, allow_pickle=False), values.nbytes, overwrite=overwrite)


def results_page(place: Path, labels_format: str, summary: dict[str, Any], estimator: Any) -> str:
    """The report of a fit, for a results directory."""
    from streamkm.reports.report import report_page

    kind, model = type(estimator).__name__, place / MODEL
    steps = (
        f"# label more rows of this kind\nstreamkm assign {model} MORE_DATA -o more-labels.{labels_format}\n\n"
        f'# in Python\nfrom streamkm import {kind}\nkmeans = {kind}.load("{model}")\nlabels = kmeans.predict(X)'
    )
    places = cluster_map(estimator.sketch_sample_, estimator.sample_labels_, estimator.counts_)
    return report_page(summary, places, steps)


def stage_texts(stage: Path, texts: Mapping[str, str]) -> None:
    """Write texts under their names into a stage of results."""
    for name, text in texts.items():
        with writing(stage):
            (stage / name).write_text(displayed(text), "utf-8")


@contextmanager
def staged(directory: Path, replaced: Sequence[str], *, overwrite: bool) -> Iterator[Path]:
    """Give a hidden directory to write in; at the end it becomes `directory`, or its files go there.

    Names `replaced` that were not written are removed from `directory`, in that order. Raises as `check_target`.
    """
    beside = directory / "streamkm" if directory.exists() else directory
    with working_directory(beside) as stage, named(stage, directory):
        yield stage
        with writing(directory):
            sync_tree(stage)
            if not directory.exists():
                os.replace(stage, directory)
                sync(directory.absolute().parent)
                return
            check_target(directory, overwrite=overwrite, results=replaced)  # once more: the run may have taken hours
            aside = stage / ".replaced"
            aside.mkdir()
            for result in replaced:
                old, new = directory / result, stage / result
                if old.is_dir() or (old.exists() and not new.exists()):
                    os.replace(old, aside / result)
                if new.exists():
                    os.replace(new, old)
            sync(directory)


def earlier_run(path: Path) -> dict[str, str]:
    """Facts of the run whose results are at a path; none if there are no results."""
    try:
        return dict(json.loads(path.read_text("utf-8"))[RUN])
    except (OSError, ValueError, KeyError, TypeError):  # not written, or by something else: `check_target` judges
        return {}


def digest_of(values: Any) -> str:
    """SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def json_text(values: dict[str, Any]) -> str:
    """JSON of results, indented, with a line end."""
    return json.dumps(values, indent=2, allow_nan=False) + "\n"
