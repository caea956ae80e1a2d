"""Labels as a table, a CSV or Parquet file: of each row its number or id, label, distances and an outlier score.

Written chunk by chunk, in the order of the rows, into a file that appears when it is complete.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.centers.nearest import NearestCenters
from streamkm.cluster.rows import row_d2
from streamkm.core.atomic_io import replace_file
from streamkm.core.exceptions import InvalidInputError, MissingDependencyError
from streamkm.core.marks import Overwrite, check_ours, is_marked, list_among_results, replace_marked
from streamkm.core.matrix import Matrix, rows_between
from streamkm.core.progress import Stage

SUFFIXES = (".csv", ".parquet")
COLUMNS = ("label", "distance", "second_label", "second_distance", "outlier_score")
N_VALUES = 4  # of a row, as `nearest_two` gives them
MARK = b"streamkm_labels"  # key of a Parquet file's metadata
SCORE_BYTES = 1 << 24  # of distances to all centers that are held at a time
_CSV_ROWS = 1 << 13  # that are Python objects at a time


@dataclass(frozen=True, slots=True)
class Written:
    """What was written: rows, how many of them have no cluster, and the pass that it took, where that was timed."""

    n_rows: int
    n_skipped: int
    stage: Stage | None = None


def nearest_two(X: Matrix, table: NearestCenters) -> NDArray[np.float64]:
    """Labels and distances of rows to the nearest and the second nearest center, for `predict.map_rows`.

    Returns
    -------
    float64 (v, 4)
        Label, distance, second label and second distance; NaN for the last two where k is 1. Labels and the first
        distance are exact; which center is second is as far as products of float32 tell.
    """
    n_rows, k = X.shape[0], table.n_clusters
    out = np.full((n_rows, N_VALUES), np.nan)
    step = max(1, SCORE_BYTES // (4 * k))
    for start in range(0, n_rows, step):
        part = rows_between(X, start, min(start + step, n_rows))
        here, labels = out[start : start + step], table.labels(part)
        here[:, 0], here[:, 1] = labels, np.sqrt(row_d2(part, labels, table))
        if k > 1:
            scores = table.scores(part)
            scores[np.arange(len(labels)), labels] = np.inf
            seconds = scores.argmin(axis=1).astype(np.int32)
            here[:, 2], here[:, 3] = seconds, np.sqrt(row_d2(part, seconds, table))
    return out


def check_table_place(path: str | os.PathLike[str], *, overwrite: Overwrite) -> Path:
    """The path of a table of labels that may be made, or replaced.

    Raises
    ------
    OutputError
        Something is there and `overwrite` is False, or something else than a table of labels.
    MissingDependencyError
        Parquet without pyarrow.
    """
    target = Path(path)
    if target.suffix == ".parquet":
        _pyarrow()
    check_ours(target, "table of labels", overwrite, _is_table)
    return target.absolute()


def write_table(
    path: Path,
    parts: Iterable[NDArray[np.float64]],
    usual: NDArray[np.float64] | None,
    *,
    id_column: str | None = None,
    ids: Iterable[Any] = (),
    overwrite: Overwrite = False,
) -> Written:
    """Write a table of labels; readers see the old file or the whole new one.

    Parameters
    ----------
    path : Path
        Ends in .csv or .parquet.
    parts : iterable of float64 (v, 4)
        As of `nearest_two`, in the order of the rows; NaN for rows without a cluster.
    usual : float64 (k,), optional
        Mean distance of each cluster's rows to the center: what distances are divided by for outlier scores, which are
        left empty without it.
    id_column : str, optional
        What the ids are called.
    ids : iterable of pyarrow.ChunkedArray, or of lists of str or None
        Of all rows, in order; in place of row numbers where there is an `id_column`.
    overwrite : bool or "any"
        As of `check_table_place`, which is asked once more at the end.

    Raises
    ------
    InvalidInputError
        If there are not as many ids as rows.
    DiskFullError, OutputError
        The old file is as it was.
    """
    first = "row" if id_column is None else id_column
    naming = None if id_column is None else _Ids(ids)
    counted = [0, 0]

    def batches() -> Iterator[tuple[Any, tuple[NDArray[Any], ...]]]:
        for part in parts:
            start = counted[0]
            counted[0] += len(part)
            counted[1] += int(np.isnan(part[:, 0]).sum())
            names = np.arange(start, start + len(part)) if naming is None else naming.take(len(part))
            yield names, _columns(part, usual)
        if naming is not None:
            naming.end()

    def ready(size: int) -> None:
        check_table_place(path, overwrite=overwrite)  # once more: the pass may have taken hours
        list_among_results(path, {path.name: size})

    writer, replace = (_write_csv, replace_marked) if path.suffix == ".csv" else (_write_parquet, replace_file)
    replace(path, lambda file: writer(file, first, batches()), ready=ready)
    return Written(counted[0], counted[1])


def _columns(part: NDArray[np.float64], usual: NDArray[np.float64] | None) -> tuple[NDArray[Any], ...]:
    """The columns of some rows, but the first; -1 for no label, NaN for no number."""
    labels, seconds = (np.where(np.isnan(part[:, at]), -1, part[:, at]).astype(np.int32) for at in (0, 2))
    scores = np.full(len(part), np.nan)
    if usual is not None:
        own = usual[labels]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.where(part[:, 1] == 0, 0.0, part[:, 1] / own)
        scores[labels < 0] = np.nan
    return labels, part[:, 1], seconds, part[:, 3], scores


def _write_csv(file: BinaryIO, first: str, batches: Iterator[tuple[Any, tuple[NDArray[Any], ...]]]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([first, *COLUMNS])
    for names, columns in batches:
        for start in range(0, len(names), _CSV_ROWS):
            rows = slice(start, start + _CSV_ROWS)
            labels, distances, seconds, second_distances, scores = (column[rows] for column in columns)
            cells = (_filled(distances), ["" if at < 0 else at for at in seconds.tolist()], _filled(second_distances))
            numbers = names[rows].tolist() if isinstance(names, np.ndarray) else names[rows].to_pylist()
            writer.writerows(zip(numbers, labels.tolist(), *cells, _filled(scores), strict=True))
    text.detach()  # the caller closes the file


def _filled(values: NDArray[np.float64]) -> list[Any]:
    """Numbers as cells: nothing for NaN."""
    return ["" if missing else value for value, missing in zip(values.tolist(), np.isnan(values).tolist(), strict=True)]


def _write_parquet(file: BinaryIO, first: str, batches: Iterator[tuple[Any, tuple[NDArray[Any], ...]]]) -> None:
    pa, pq = _pyarrow()
    writer = None
    try:
        for names, columns in batches:
            labels, distances, seconds, second_distances, scores = columns
            values = [
                pa.array(labels),
                pa.array(distances, from_pandas=True),
                pa.array(seconds, mask=seconds < 0),
                pa.array(second_distances, from_pandas=True),
                pa.array(scores, from_pandas=True),
            ]
            table = pa.table([pa.array(names) if isinstance(names, np.ndarray) else names, *values], [first, *COLUMNS])
            if writer is None:
                writer = pq.ParquetWriter(file, table.schema.with_metadata({MARK: b"1"}))
            writer.write_table(table.replace_schema_metadata({MARK: b"1"}))
    finally:
        if writer is not None:
            writer.close()


class _Ids:
    """Ids in order, so many at a time.

    Parameters
    ----------
    pieces : iterable of pyarrow.ChunkedArray, or of lists of str or None
    """

    def __init__(self, pieces: Iterable[Any]) -> None:
        self._pieces = iter(pieces)
        self._held: list[Any] = []
        self._n_held = 0

    def take(self, n_rows: int) -> Any:
        pa, _ = _pyarrow()
        while self._n_held < n_rows:
            piece = next(self._pieces, None)
            if piece is None:
                raise InvalidInputError(
                    "there are fewer ids than rows; the data must not change while labels are written"
                )
            if isinstance(piece, list):
                piece = pa.array(piece, pa.string())
            self._held += piece.chunks if isinstance(piece, pa.ChunkedArray) else [piece]
            self._n_held += len(piece)
        held = pa.chunked_array(self._held) if self._held else pa.chunked_array([], pa.string())
        self._held, self._n_held = held.slice(n_rows).chunks, self._n_held - n_rows
        return held.slice(0, n_rows)

    def end(self) -> None:
        if self._n_held or any(len(piece) for piece in self._pieces):
            raise InvalidInputError("there are more ids than rows; data must not change while labels are written")


def _is_table(path: Path) -> bool:
    if path.suffix == ".csv":
        return is_marked(path)
    pa, pq = _pyarrow()
    with suppress(OSError, pa.ArrowException):
        return MARK in (pq.read_schema(path).metadata or {})
    return False


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError("labels in Parquet files need pyarrow; install streamkm[tables]") from error
    return pa, parquet
