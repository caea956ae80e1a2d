"""Labels as a column of `obs` in an AnnData file, which a copy with the column takes the place of.

The only module that writes to HDF5 files, and only this one column, when asked to. HDF5 changes what it has of a file
piece by piece: a process that is killed meanwhile leaves a file that nobody can read. So a copy is changed, whose bytes
the file system shares with the file's own where it can.
"""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
from contextlib import suppress
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import replace_file
from streamkm.core.exceptions import InvalidInputError, OutputError, SourceError
from streamkm.core.marks import Overwrite
from streamkm.sources.local import LocalPath, opened, unchanged
from streamkm.sources.stored import file_size

logger = logging.getLogger(__name__)

_COPIED_BYTES = 1 << 20
_MARK = "streamkm_labels"  # an attribute of the column, which is lost where AnnData writes the column anew


def write_obs(
    path: str | os.PathLike[str], column: str, labels: NDArray[np.int32], *, overwrite: Overwrite = False
) -> None:
    """Write labels as a categorical column of `obs`, as AnnData reads it; the rest of the file stays as it is.

    The file is replaced by a changed copy, complete and on the disk, with its permissions; so there must be room for
    both. Another name of the file (a hard link) keeps what it was; a symbolic link leads to what it led to.

    Parameters
    ----------
    path : path
        Of an .h5ad file, which no other process has open to write; one that `opened` noted is compared with that.
    column : str
    labels : int32 (n,)
        -1: no category.
    overwrite : bool or "any"
        Whether a column of this name may be replaced that streamkm wrote, or any.

    Raises
    ------
    SourceError
        The file is missing, damaged, open elsewhere, changed meanwhile, or holds no `obs` of AnnData's.
    InvalidInputError
        Another number of rows than `obs` has.
    OutputError
        There is such a column already, or the copy cannot be written; the file is as it was.
    """
    if not column or "/" in column or column.startswith("_"):
        raise InvalidInputError(f"column={column!r}; needed: a name without a slash that begins with no underscore")
    name = LocalPath(os.path.realpath(path), opened(os.fspath(path)).version)

    def write(copy: BinaryIO) -> None:
        with open(name, "rb") as source:
            _lock(source)
            with _opened(name) as file:
                _check(file, name, column, len(labels), overwrite=overwrite)
            _copy(source, copy)
        found = os.stat(name)
        # by the open file where there is such a call: its name may have become a link to another file
        place: Any = copy.fileno() if os.chmod in os.supports_fd else copy.name
        shutil.copystat(name, place)
        with suppress(PermissionError):
            shutil.chown(place, found.st_uid, found.st_gid)
        with unchanged(name):
            changes = _Changes(copy.name)
            with changes, h5py.File(changes, "r+") as file:
                _replace(_frame(file, name), column, labels)
            changes.write_to(copy)

    replace_file(name, write, file_size(name) + labels.nbytes)


def check_obs(path: str | os.PathLike[str], column: str, *, overwrite: Overwrite) -> None:
    """Whether `write_obs` would take a column; looks at the file's names alone.

    Raises SourceError, OutputError as `write_obs`.
    """
    with _opened(os.fspath(path)) as file:
        _check_column(_frame(file, os.fspath(path)), os.fspath(path), column, overwrite=overwrite)


def _check(file: h5py.File, name: str, column: str, n_labels: int, *, overwrite: Overwrite) -> None:
    obs = _frame(file, name)
    n_rows = _n_rows(obs, name)
    if n_labels != n_rows:
        raise InvalidInputError(f"{n_labels:,} labels for {name}, whose obs has {n_rows:,} rows")
    _check_column(obs, name, column, overwrite=overwrite)


def _check_column(obs: h5py.Group, name: str, column: str, *, overwrite: Overwrite) -> None:
    if column not in obs or overwrite == "any":
        return
    if overwrite and _MARK not in obs[column].attrs:
        raise OutputError(
            f"{name} has a column obs/{column} that streamkm did not write, or that was written anew since; rename it, "
            f"or replace it by overwrite='any'"
        )
    if not overwrite:
        raise OutputError(f"{name} has a column obs/{column} already; choose another name, or allow to overwrite")


def _copy(source: BinaryIO, copy: BinaryIO) -> None:
    """Copy a file; where the file system can, without moving its bytes."""
    left = os.fstat(source.fileno()).st_size
    with suppress(OSError, AttributeError):
        while left and (done := os.copy_file_range(source.fileno(), copy.fileno(), left)):
            left -= done
    if left:
        source.seek(0)
        copy.seek(0)
        shutil.copyfileobj(source, copy, _COPIED_BYTES)
    copy.flush()


class _Changes(io.RawIOBase):
    """A file as the library is to see it; what it writes stays in memory.

    Where the disk is full, the library cannot close a file, and takes the process down with it later.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._file = open(name, "rb")  # noqa: SIM115 - closed with this
        self._size = os.fstat(self._file.fileno()).st_size
        self._position = 0
        self._pieces: list[tuple[int, bytes]] = []

    def write_to(self, file: BinaryIO) -> None:
        """Make the changes."""
        for start, values in self._pieces:
            file.seek(start)
            file.write(values)
        file.truncate(self._size)

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        self._file.seek(self._position)
        done = self._file.readinto(view)
        view[done:] = bytes(len(view) - done)
        for start, values in self._pieces:
            low, high = max(start, self._position), min(start + len(values), self._position + len(view))
            if low < high:
                view[low - self._position : high - self._position] = values[low - start : high - start]
        self._position += len(view)
        return len(view)

    def write(self, values: Any) -> int:
        piece = bytes(values)
        self._pieces.append((self._position, piece))
        self._position += len(piece)
        self._size = max(self._size, self._position)
        return len(piece)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        return self._size


def _lock(file: BinaryIO) -> None:
    """Keep out whoever would write by HDF5's rule, while the file is open here; this process too.

    Raises SourceError: somebody has it open to write.
    """
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SourceError(f"{file.name} is open elsewhere, to be written; close it there") from error
    except OSError:
        logger.debug("%s: the file system knows no locks", file.name)


def _opened(name: str) -> h5py.File:
    try:
        return h5py.File(name, "r")
    except OSError as error:
        raise SourceError(f"{name} is no HDF5 file, is damaged, or is open elsewhere ({error})") from error


def _frame(file: h5py.File, name: str) -> h5py.Group:
    obs = file.get("obs")
    if not isinstance(obs, h5py.Group) or obs.attrs.get("encoding-type") != "dataframe":
        raise SourceError(f"{name} holds no obs as AnnData writes it since version 0.7")
    return obs


def _n_rows(obs: h5py.Group, name: str) -> int:
    index = obs.get(str(obs.attrs.get("_index", "_index")))
    if isinstance(index, h5py.Group):  # of categories, or of strings that may be missing, as pandas 3 has them
        index = index.get("codes", index.get("values"))
    if not isinstance(index, h5py.Dataset):
        raise SourceError(f"{name}: obs has no index")
    return int(index.shape[0])


def _replace(obs: h5py.Group, column: str, labels: NDArray[np.int32]) -> None:
    if column in obs:
        del obs[column]
    n_categories = int(labels.max(initial=-1)) + 1
    group = obs.create_group(column)
    group.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False, _MARK: 1})
    codes = group.create_dataset("codes", data=labels.astype(np.int8 if n_categories <= 127 else np.int32))
    codes.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    texts: Any = np.array([str(label) for label in range(n_categories)], object)
    categories = group.create_dataset("categories", data=texts, dtype=h5py.string_dtype("utf-8"))
    categories.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    order = [each.decode() if isinstance(each, bytes) else str(each) for each in obs.attrs.get("column-order", ())]
    if column not in order:
        obs.attrs.create("column-order", [*order, column], dtype=h5py.string_dtype("utf-8"))
