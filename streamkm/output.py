"""Results on disk: labels, the model, summary.json, the points of the 2-D view, the report.

Responsible for what a results directory holds and for how it is replaced: everything is written into a hidden directory
inside of it, flushed to disk and then renamed, so that it holds complete files of one run. May import summary, errors,
estimators for its type, and zarr on demand. Never draws, never reads rows.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamkm.configured import TEXT, TFIDF, write_text_settings
from streamkm.errors import OutputError, StreamkmError
from streamkm.files import writing
from streamkm.summary import project_2d

if TYPE_CHECKING:
    from streamkm.estimators import StreamKMeans
    from streamkm.kernel_estimators import StreamKernelKMeans
    from streamkm.sources.base import RowSource

LABELS_NPY, LABELS_ZARR, MODEL, SUMMARY, VIEW, REPORT = (
    "labels.npy",
    "labels.zarr",
    "model.npz",
    "summary.json",
    "sketch_view.npz",
    "report.html",
)
# in the order in which they appear; the summary last, so that a new summary means that all of it is new
_RESULTS = (LABELS_NPY, LABELS_ZARR, MODEL, TEXT, TFIDF, VIEW, REPORT, SUMMARY)
_LABELS_PER_CHUNK = 1 << 20


def check_target(target: str | os.PathLike[str], *, overwrite: bool, results: Sequence[str] = _RESULTS) -> None:
    """Refuse a results directory that could not be written at the end, or that holds results to keep. Writes nothing.

    Parameters
    ----------
    target : path
    overwrite : bool
        Whether results of an earlier run may be replaced.
    results : sequence of str
        Names of files that count as results.

    Raises
    ------
    OutputError
        `target` is a file, lies in a directory that cannot be written, or holds results and `overwrite` is False.
    """
    directory = Path(target)
    if directory.exists() and not directory.is_dir():
        raise OutputError(f"{directory} is a file; results need a directory: choose another with -o")
    present = [name for name in results if (directory / name).exists()]
    if present and not overwrite:
        raise OutputError(
            f"{directory} holds results of an earlier run ({', '.join(present)}); pass --overwrite to replace them, or "
            f"choose another directory with -o"
        )
    _check_writable(directory)


def check_labels_target(target: str | os.PathLike[str], *, overwrite: bool) -> None:
    """As `check_target`, for a file of labels, .npy or .zarr.

    Raises
    ------
    OutputError
        Another suffix, something there and `overwrite` False, or no permission.
    """
    path = Path(target)
    if path.suffix not in (".npy", ".zarr"):
        raise OutputError(f"labels are written as .npy or .zarr, not as {path.name}; choose such a name with -o")
    if path.exists() and not overwrite:
        raise OutputError(f"{path} exists; pass --overwrite to replace it, or choose another name with -o")
    if path.is_dir() and not (path.suffix == ".zarr" and (path / "zarr.json").exists()):
        raise OutputError(f"{path} is a directory and no Zarr array; choose another name with -o")
    _check_writable(path.parent)


def _check_writable(directory: Path) -> None:
    """Whether `directory` can be written or made."""
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise OutputError(f"{directory} cannot be made: {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OutputError(f"no permission to write in {nearest}; choose another directory with -o")


def write_labels(path: str | os.PathLike[str], labels: NDArray[np.int32]) -> None:
    """Write labels as one .npy file or as a Zarr array, by the suffix; readers see the old file or the whole new one.

    Parameters
    ----------
    path : path
        Ends in .npy or .zarr. What is there is replaced.
    labels : int32 ndarray of shape (n,)

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    target = Path(path)
    with _staged(target.parent, [target.name]) as stage:
        _write_labels(stage / target.name, labels)


def prepare_labels(directory: str | os.PathLike[str], labels_format: str) -> Path | None:
    """Where workers may write labels that `write_results` takes into a directory of results; None: they are gathered.

    Parameters
    ----------
    labels_format : "npy" or "zarr"
        Workers write Zarr arrays.
    """
    if labels_format != "zarr":
        return None
    place = Path(directory) / ".labels.zarr"
    with writing(directory):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)  # of a run that was killed
    return place


def write_results(
    directory: str | os.PathLike[str],
    estimator: StreamKMeans | StreamKernelKMeans,
    summary: dict[str, Any],
    *,
    labels_format: str,
    documents: tuple[RowSource, dict[str, Any]] | None = None,
) -> None:
    """Write all results of a fit; earlier results of the directory are replaced, or removed where this run has none.

    Parameters
    ----------
    directory : path
        Made where it is missing. Other files in it are left alone.
    estimator : StreamKMeans or StreamKernelKMeans
        Fitted.
    summary : dict
        Of `summarize`.
    labels_format : "npy" or "zarr"
    documents : (RowSource, dict), optional
        What was fitted, and how documents are to be opened to be assigned later: see `configured.write_text_settings`.

    Raises
    ------
    OutputError
        If it cannot be written; the earlier results are as they were.
    """
    points, shares = project_2d(estimator.sketch_sample_)
    with _staged(Path(directory), _RESULTS) as stage:
        _write_labels(stage / (LABELS_ZARR if labels_format == "zarr" else LABELS_NPY), estimator.labels_)
        estimator.save(stage / MODEL)
        np.savez(stage / VIEW, points=points, labels=estimator.sample_labels_, shares=shares)
        if documents is not None:
            write_text_settings(stage, *documents)
        (stage / SUMMARY).write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", "utf-8")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file; readers see the old file or the whole new one.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    target = Path(path)
    with _staged(target.parent, [target.name]) as stage:
        (stage / target.name).write_text(text, "utf-8")


def _write_labels(path: Path, labels: NDArray[np.int32]) -> None:
    if not isinstance(labels, np.ndarray):  # workers have written them to a Zarr array
        os.replace(labels.store.root, path)
        return
    if path.suffix == ".npy":
        np.save(path, labels, allow_pickle=False)
        return
    import zarr

    array = zarr.create_array(
        str(path), shape=labels.shape, chunks=(min(_LABELS_PER_CHUNK, max(1, len(labels))),), dtype=labels.dtype
    )
    array[:] = labels


@contextmanager
def _staged(directory: Path, replaced: Iterable[str]) -> Iterator[Path]:
    """Give a hidden directory to write in; at the end, what is in it takes its place in `directory`.

    Of the names `replaced`, in that order, those that were not written are removed from `directory`.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".streamkm-", dir=directory, ignore_cleanup_errors=True) as name:
            stage = Path(name)
            yield stage
            _flush(stage)
            aside = stage / ".replaced"
            aside.mkdir()
            for result in replaced:
                old, new = directory / result, stage / result
                if old.is_dir() or (old.exists() and not new.exists()):
                    os.replace(old, aside / result)
                if new.exists():
                    os.replace(new, old)
            _flush_entry(directory)
    except OSError as error:
        if isinstance(error, StreamkmError):
            raise
        free = shutil.disk_usage(directory).free if directory.is_dir() else 0
        raise OutputError(
            f"cannot write results in {directory}: {error.strerror or error} ({free:,} bytes free there); what was "
            f"there before is kept"
        ) from error


def _flush(directory: Path) -> None:
    """Bring every file below `directory` to the disk."""
    for root, _, files in os.walk(directory, topdown=False):
        for file in files:
            _flush_entry(Path(root, file))
        _flush_entry(Path(root))


def _flush_entry(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
