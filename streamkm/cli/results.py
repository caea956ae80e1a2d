"""Results on disk: labels, the model, summary.json, the map of the clusters, the report.

Responsible for what a results directory holds and for how it is replaced: everything is written into a hidden directory
beside it, flushed to disk, listed in a marker and then renamed, so that the directory appears complete. Where there is
one already, the hidden directory is inside of it, and its files are renamed one by one; no file that streamkm did not
write is replaced. Never draws, never reads rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cli.data import TEXT, TFIDF, write_text_settings
from streamkm.core.atomic_io import named, remove_tree, replace_file, sync, working_directory, writing
from streamkm.core.display import displayed
from streamkm.core.exceptions import OutputError
from streamkm.core.local_paths import check_local
from streamkm.core.manifest import RESULTS, Owned
from streamkm.core.marks import Overwrite, check_ours, replace_marked
from streamkm.passes.labels import FORMAT, MARK, SKIPPED, check_labels_array
from streamkm.passes.table_places import SUFFIXES, check_table_place
from streamkm.reports.maps import cluster_map

if TYPE_CHECKING:
    from streamkm.core.progress import Stage
    from streamkm.estimators.incremental import IncrementalKMeans
    from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
    from streamkm.estimators.kmeans import StreamKMeans
    from streamkm.passes.label_tables import Written
    from streamkm.sources.base import RowSource

MODEL, INCREMENTAL, SUMMARY = "model.npz", "incremental.npz", "summary.json"
VIEW, REPORT = "sketch_view.npz", "report.html"
LABELS = ("labels.npy", "labels.zarr", "labels.csv", "labels.parquet")
# in the order in which they appear; the summary last, so that a new summary means that all of it is new
RESULT_NAMES = (*LABELS, MODEL, INCREMENTAL, TEXT, TFIDF, VIEW, REPORT, SUMMARY)
_LABELS_PER_CHUNK = 1 << 20


def check_target(target: str | os.PathLike[str], *, overwrite: bool, results: Sequence[str] = RESULT_NAMES) -> None:
    """Refuse a results directory that could not be written at the end, or that holds results to keep. Writes nothing.

    `overwrite`: whether results of an earlier run may be replaced. `results`: names of files that count as results.
    Raises OutputError: `target` is a file, lies in a directory that cannot be written, holds results and `overwrite` is
    False, or has other files under the names of results.
    """
    check_local(target)
    directory = Path(target)
    if directory.exists() and not directory.is_dir():
        raise OutputError(f"{directory} is a file; results need a directory: choose another with -o")
    present = [name for name in results if os.path.lexists(directory / name)]
    _owned(directory).check(present)
    if present and not overwrite:
        raise OutputError(
            f"{directory} holds results of an earlier run ({', '.join(present)}); pass --overwrite to replace them, or "
            f"choose another directory with -o"
        )
    _check_writable(directory)


def check_labels_target(target: str | os.PathLike[str], *, overwrite: Overwrite) -> None:
    """As `check_target`, for labels in one file or Zarr array.

    Raises OutputError: another suffix, something there and `overwrite` False, something there that is no labels, or no
    permission.
    """
    check_local(target)
    path = Path(target)
    is_table = os.fspath(target).endswith(SUFFIXES)
    if path.suffix not in (".npy", ".zarr") and not is_table:
        raise OutputError(
            f"labels are written as .npy, .zarr, .csv or .parquet, not as {path.name}; choose such a name with -o"
        )
    if is_table:
        check_table_place(target, overwrite=overwrite)
    elif path.suffix == ".npy":
        check_ours(path, "file of labels", overwrite)
    elif os.path.lexists(path):
        if not overwrite:
            raise OutputError(f"{path} exists; pass --overwrite to replace it, or choose another name with -o")
        check_labels_array(path)
    _check_writable(path.parent)


def _check_writable(directory: Path) -> None:
    """Whether `directory` can be written or made."""
    nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise OutputError(f"{directory} cannot be made: {nearest} is a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OutputError(f"no permission to write in {nearest}; choose another directory with -o")


def write_labels(path: str | os.PathLike[str], labels: NDArray[np.int32], *, overwrite: Overwrite = False) -> None:
    """Write labels as one .npy file; readers see the old file or the whole new one.

    `path`: ends in .npy. `labels`: (n,). `overwrite`: whether labels that streamkm wrote there may be replaced, or any
    regular file. Raises DiskFullError, OutputError if it cannot be written.
    """
    target = Path(path)
    with writing(target, labels.nbytes):
        target.parent.mkdir(parents=True, exist_ok=True)
    replace_marked(
        target,
        lambda file: np.save(file, labels, allow_pickle=False),
        labels.nbytes,
        ready=lambda _: check_labels_target(target, overwrite=overwrite),  # the pass may have taken hours
    )


def prepare_labels(directory: str | os.PathLike[str], labels_format: str) -> Path | None:
    """The place where workers may write labels that `write_results` takes; None: they are gathered.

    `labels_format`: workers write Zarr arrays.
    """
    if labels_format != "zarr":
        return None
    target = Path(directory)
    place = target / ".labels.zarr" if target.exists() else target.with_name(f".{target.name}.labels.zarr")
    with writing(directory):
        place.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(place):  # of a run that was killed
        check_labels_array(place)
        remove_tree(place)
    return place


def write_results(
    stage: Path,
    estimator: StreamKMeans | StreamKernelKMeans,
    summary: dict[str, Any],
    *,
    labels_format: str,
    data: tuple[RowSource, dict[str, Any]],
    incremental: IncrementalKMeans | None = None,
) -> None:
    """Write all results of a fit but its summary and its report.

    Parameters
    ----------
    stage : path
        Of `staged`.
    estimator : StreamKMeans or StreamKernelKMeans
        Fitted.
    summary : dict
        Of `summarize`; gets the pass that a table of labels takes.
    labels_format : "npy", "zarr", "csv" or "parquet"
    data : (RowSource, dict)
        What was fitted, and how documents are to be opened to be assigned later: see `data.write_text_settings`.
    incremental : IncrementalKMeans, optional
        What goes on from the fit.

    Raises
    ------
    DiskFullError, OutputError
        If it cannot be written.
    """
    places = cluster_map(estimator.sketch_sample_, estimator.sample_labels_, estimator.counts_)
    labelled = stage_labels(stage, estimator, labels_format, data[0])
    if labelled is not None:
        from streamkm.estimators.fit_summary import add_pass

        add_pass(summary, labelled)
    estimator.save(stage / MODEL)
    if incremental is not None:
        incremental.save(stage / INCREMENTAL)
    np.savez(stage / VIEW, **asdict(places))
    write_text_settings(stage, *data)


def write_summary(stage: Path, summary: dict[str, Any]) -> None:
    """Write what a fit has to tell."""
    (stage / SUMMARY).write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", "utf-8")


def stage_labels(stage: Path, estimator: Any, labels_format: str, source: RowSource) -> Stage | None:
    """Write the labels of a fit or an update among what takes its place later; give the pass that a table takes."""
    labels = stage / f"labels.{labels_format}"
    if labels.suffix in SUFFIXES:
        written: Written = estimator.predict_to(source, labels)
        return written.stage
    found = estimator.labels_
    with writing(labels, 4 * found.shape[0]):
        if not isinstance(found, np.ndarray):  # workers have written them to a Zarr array
            os.replace(found.store.root, labels)
        elif labels.suffix == ".npy":
            replace_file(labels, lambda file: np.save(file, found, allow_pickle=False), found.nbytes)
        else:
            import zarr

            chunks = (min(_LABELS_PER_CHUNK, max(1, len(found))),)
            marked: dict[str, Any] = {MARK: FORMAT, SKIPPED: int(np.count_nonzero(found < 0))}
            zarr.create_array(str(labels), data=found, chunks=chunks, attributes=marked)
    return None


def labels_name(directory: Path) -> str:
    """The name of the labels in a directory of results."""
    return next((name for name in LABELS if (directory / name).exists()), LABELS[0])


def write_texts(directory: str | os.PathLike[str], texts: Mapping[str, str], replaced: Sequence[str]) -> None:
    """Write text files of results by name, as `staged` does.

    Raises DiskFullError, OutputError if they cannot be written, or another file has the name of one.
    """
    with staged(Path(directory), replaced) as stage:
        stage_texts(stage, texts)


def stage_texts(stage: Path, texts: Mapping[str, str]) -> None:
    """Write texts under their names, where results wait to take their place."""
    for name, text in texts.items():
        (stage / name).write_text(displayed(text), "utf-8")


@contextmanager
def staged(directory: Path, replaced: Sequence[str]) -> Iterator[Path]:
    """Give a hidden directory to write in; at the end it becomes `directory`, or its files go there.

    Of the names `replaced`, in that order, those that were not written are removed from `directory`. Files that are not
    streamkm's are refused.
    """
    is_new = not directory.exists()
    with (
        writing(directory),
        working_directory(directory if is_new else directory / "streamkm") as stage,
        named(stage, directory),
    ):
        yield stage
        for mark in {path.name for path in stage.iterdir()}.difference(replaced):  # of a file that another call wrote
            (stage / mark).unlink()
        _flush(stage)
        owned = Owned(stage, RESULTS, OutputError) if is_new else _owned(directory)
        owned.check(() if is_new else replaced)
        files = [path for path in stage.rglob("*") if path.is_file()]
        owned.announce({path.relative_to(stage).as_posix(): path.stat().st_size for path in files})
        if is_new:
            os.replace(stage, directory)  # an empty directory that was made meanwhile is replaced, no other
            sync(directory.absolute().parent)
            return
        aside = stage / ".replaced"
        aside.mkdir()
        for result in replaced:
            old, new = directory / result, stage / result
            if old.is_dir() or (old.exists() and not new.exists()):
                os.replace(old, aside / result)
            if new.exists():
                os.replace(new, old)
        sync(directory)


def _owned(directory: Path) -> Owned:
    """What streamkm has written in a directory of results."""
    return Owned.read(directory, RESULTS, OutputError) or Owned(directory, RESULTS, OutputError)


def _flush(directory: Path) -> None:
    """Bring every file below `directory` to the disk."""
    for root, _, files in os.walk(directory, topdown=False):
        for file in files:
            sync(Path(root, file))
        sync(root)
