"""Where tables of labels may be written: a CSV or Parquet file, or a folder of Parquet files.

Reads no rows and writes nothing.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from streamkm.core.exceptions import OutputError
from streamkm.core.local_paths import check_local
from streamkm.core.marks import Overwrite, check_ours, is_marked
from streamkm.core.partial_files import remove_rests
from streamkm.passes.table_formats import FORMATS, MARK, PART_NAME, pyarrow_parquet

SUFFIXES = (*FORMATS, *(f"{suffix}/" for suffix in FORMATS))
"""Of places of tables; one that ends in a slash is a folder."""
_PART = re.compile(PART_NAME.format("[0-9]{5,}").replace(".", r"\."))


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a table is written."""

    path: Path  # ends in .csv or .parquet
    is_folder: bool = False  # whether it becomes a folder of Parquet files


def check_table_place(path: str | os.PathLike[str], *, overwrite: Overwrite) -> TablePlace:
    """The place of a table of labels that may be made, or replaced.

    Raises OutputError: a URL, or no directory to write to. Something is there and `overwrite` is False, or something
    else than a table of labels. A folder of CSV; MissingDependencyError: Parquet without pyarrow.
    """
    check_local(path)
    place = TablePlace(Path(path), os.fspath(path).endswith("/"))
    check_place(place, overwrite=overwrite)
    return TablePlace(place.path.absolute(), place.is_folder)


def check_place(place: TablePlace, *, overwrite: Overwrite) -> None:
    """Refuse a place that cannot be made or replaced. Raises as `check_table_place`."""
    target = place.path
    if not target.absolute().parent.is_dir():
        raise OutputError(f"{target} cannot be written: there is no directory {target.parent}; make it, and try again")
    if target.suffix == ".parquet":
        pyarrow_parquet()
    elif place.is_folder:
        raise OutputError(f"{target}/ would be a folder of CSV; leave the slash out, or choose NAME.parquet/")
    if place.is_folder:
        _check_folder(target, overwrite=overwrite)
    else:
        check_ours(target, "table of labels", overwrite, _is_table)


def _check_folder(path: Path, *, overwrite: Overwrite) -> None:
    """Refuse to replace what is no folder of a table of labels, or holds other files too."""
    remove_rests(path)  # a folder that a killed process had put aside comes back
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise OutputError(f"{path} exists; pass overwrite to replace it, or choose another name")
    if path.is_symlink() or not path.is_dir() or not all(map(_is_part, path.iterdir())):
        raise OutputError(f"{path} exists and is no folder of labels alone that streamkm wrote; choose another name")


def _is_part(path: Path) -> bool:
    return _PART.fullmatch(path.name) is not None and path.is_file() and _is_table(path)


def _is_table(path: Path) -> bool:
    if path.suffix == ".csv":
        return is_marked(path)
    pa, pq = pyarrow_parquet()
    with suppress(OSError, pa.ArrowException):
        return MARK in (pq.read_schema(path).metadata or {})
    return False
