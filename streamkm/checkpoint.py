"""What a run has done so far, on disk: named records, labels, and how often they are worth writing.

A checkpoint is a directory. Its manifest says of which run it is: the fingerprint of source and settings. Every file in
it is written beside, flushed and renamed, so that a kill at any moment leaves the state before or the state after; the
one file that is written in place, the labels, counts only as far as a record that was saved after it says. May import
files, sources' fingerprints and errors; knows nothing of fits.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.errors import CheckpointError
from streamkm.files import Lock, replace_file, sync, writing
from streamkm.matrices import raw
from streamkm.sources.fingerprints import differences

logger = logging.getLogger(__name__)

FORMAT = 1
MANIFEST, LOCK, LABELS = "manifest.json", "lock", "labels.npy"
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_ARRAY = "array_"  # before the names of a record's arrays, which are free
_OWN = re.compile(rf"{re.escape(MANIFEST)}|{LOCK}|{re.escape(LABELS)}|{_NAME.pattern}\.npz|\..*\.partial")
# what NumPy and zipfile raise on bytes that are not theirs
_DAMAGE = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, TokenError)
_NO_FALLOCATE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})  # file systems without it
_LISTED = 5  # differences in a message


class Checkpoint:
    """The state of one run, held by one process; made by `Checkpoint.open`.

    Attributes
    ----------
    directory : Path
    resumed : bool
        Whether there was a state of this run.
    """

    def __init__(self, directory: Path, lock: Lock, resumed: bool):
        self.directory = directory
        self.resumed = resumed
        self._lock = lock
        self._discarded = False

    @classmethod
    @contextmanager
    def open(
        cls,
        directory: str | os.PathLike[str],
        fingerprint: Mapping[str, Any],
        *,
        restart: bool = False,
        expires: Collection[str] = (),
    ) -> Iterator[Checkpoint]:
        """Take a directory for a run, or continue the run that it is of.

        Parameters
        ----------
        directory : path
            Made where it is missing. Empty, or a checkpoint.
        fingerprint : mapping of str to JSON values
            What makes it the same run, in sections: ``{"source": ..., "settings": ...}``.
        restart : bool
            Forget the earlier state, whatever run it is of.
        expires : collection of str
            Sections that make an earlier state worthless where they differ: it is forgotten instead of refused.

        Yields
        ------
        Checkpoint
            Its lock is given up at the end; the state stays unless it was discarded.

        Raises
        ------
        InUseError
            Another process has it.
        CheckpointError
            The state is of another run (says what differs), of an unknown version, or damaged; the directory holds
            other files.
        DiskFullError, OutputError
            It cannot be written.
        """
        place = Path(directory)
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        lock = Lock(place / LOCK, f"checkpoint {place}")
        saved = cls(place, lock, resumed=False)
        try:
            wanted = json.loads(json.dumps(fingerprint))
            found = None if restart else _read_manifest(place)
            if found is not None and any(found.get(section) != wanted.get(section) for section in expires):
                logger.info("%s is of a run that has ended; starting anew", place)
                found = None
            if found is None:
                saved._start(wanted)
            elif found != wanted:
                listed = differences(found, wanted)
                more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
                raise CheckpointError(
                    f"checkpoint {place} is of another run: {'; '.join(listed[:_LISTED])}{more}. Restore what it was "
                    f"made with, choose another directory, or start anew"
                )
            saved.resumed = found is not None
            yield saved
        finally:
            lock.release(remove=saved._discarded)
            if saved._discarded:
                with suppress(OSError):  # not empty: somebody else's files
                    place.rmdir()

    def save(self, name: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Write a record; it replaces the one of that name when it is complete and on disk.

        Parameters
        ----------
        name : str
            Lower-case letters, digits and hyphens.
        arrays : mapping of str to ndarray
            Of numbers or bool.
        meta : mapping of JSON values

        Raises
        ------
        DiskFullError, OutputError
            The earlier record is as it was.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} names no record; needed: lower-case letters, digits and hyphens")
        for each, array in arrays.items():
            if array.dtype.hasobject:
                raise TypeError(f"array {each} of record {name} holds {array.dtype}; needed: numbers")
        header = json.dumps({"name": name, "arrays": sorted(arrays), "meta": dict(meta)})
        members = {_ARRAY + each: array for each, array in arrays.items()}
        replace_file(
            self.directory / f"{name}.npz",
            lambda file: np.savez(file, header=np.array(header), **members),  # type: ignore[arg-type]
            sum(array.nbytes for array in arrays.values()),
        )

    def load(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """Give a record's arrays and meta; None where there is none or it is damaged, which is logged."""
        path = self.directory / f"{name}.npz"
        try:
            # opened here, because np.load leaves a damaged file open; every member's checksum is verified
            with open(path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as stored:
                header = json.loads(str(stored["header"]))
                arrays = {each: stored[_ARRAY + each] for each in header["arrays"]}
                if header["name"] != name or len(arrays) + 1 != len(stored.files):
                    raise ValueError(f"it is a record {header['name']} of {len(stored.files) - 1} arrays")
                return arrays, header["meta"]
        except FileNotFoundError:
            return None
        except (*_DAMAGE, TypeError) as error:
            logger.warning("%s is damaged and counts as not there: %s", path, error)
            return None

    def forget(self, name: str) -> None:
        """Remove a record, if it is there."""
        with writing(self.directory):
            (self.directory / f"{name}.npz").unlink(missing_ok=True)
            sync(self.directory)

    def has_labels(self, n_rows: int) -> bool:
        """Whether the earlier state has labels of so many rows."""
        return _fits(self.directory / LABELS, n_rows)

    def labels(self, n_rows: int) -> LabelsFile:
        """Open the labels of `n_rows` rows: those of the earlier state, or new ones."""
        return LabelsFile(self, n_rows)

    def discard(self) -> None:
        """Remove the state, and at the end the directory if nothing else is in it: the run is complete."""
        self._clear()
        self._discarded = True

    def _start(self, fingerprint: Any) -> None:
        others = [each.name for each in self.directory.iterdir() if not _OWN.fullmatch(each.name) and each.is_file()]
        if others and not (self.directory / MANIFEST).exists():
            raise CheckpointError(
                f"{self.directory} holds other files ({', '.join(sorted(others)[:_LISTED])}) and no checkpoint; choose "
                f"an empty or a new directory"
            )
        self._clear()
        manifest = json.dumps({"format": FORMAT, "fingerprint": fingerprint}, indent=1)
        replace_file(self.directory / MANIFEST, lambda file: file.write(manifest.encode()), len(manifest))

    def _clear(self) -> None:
        """Remove what is the checkpoint's own, the manifest first: with it, half of the records would be a state."""
        with writing(self.directory):
            (self.directory / MANIFEST).unlink(missing_ok=True)
            sync(self.directory)
            for path in sorted(self.directory.iterdir()):
                if path.name != LOCK and _OWN.fullmatch(path.name) and path.is_file():
                    path.unlink(missing_ok=True)


class LabelsFile:
    """Labels of known number, written chunk by chunk into a .npy file; opened by `Checkpoint.labels`.

    Parameters
    ----------
    checkpoint : Checkpoint
    n_rows : int
    """

    def __init__(self, checkpoint: Checkpoint, n_rows: int):
        self.path = checkpoint.directory / LABELS
        self._checkpoint = checkpoint
        if not _fits(self.path, n_rows):
            replace_file(self.path, lambda file: _allocate(file, n_rows), 4 * n_rows)
        self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - closed by `close`
        self._start = os.fstat(self._file.fileno()).st_size - 4 * n_rows

    def write(self, first_row: int, labels: NDArray[np.int32]) -> None:
        """Write the labels of consecutive rows; they count once a later `commit` says so."""
        view = raw(labels.astype(np.int32, copy=False))
        with writing(self.path, len(view)):
            self._file.seek(self._start + 4 * first_row)
            while len(view):
                view = view[self._file.write(view) :]

    def commit(self, name: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Bring the labels to the disk and, after that, save the record that says how far they go."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        self._checkpoint.save(name, arrays, meta)

    def read(self, *, mapped: bool = False) -> NDArray[np.int32]:
        """Give the labels of all rows, in memory or as a read-only memory map."""
        return np.load(self.path, mmap_mode="r" if mapped else None, allow_pickle=False)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> LabelsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Throttle:
    """When to save: not more often than every so many seconds, and never for more than a share of the time.

    Parameters
    ----------
    interval_s : float
        Seconds between saves, at least.
    share : float
        Of the time, at most, that saving may take: after a save of c seconds, the next waits c (1 / share - 1).

    Attributes
    ----------
    spent_s : float
        Seconds that saving took in all.
    """

    def __init__(self, interval_s: float = 10.0, share: float = 0.05):
        self.spent_s = 0.0
        self._interval_s, self._share = interval_s, share
        self._next = time.monotonic() + interval_s

    def maybe(self, save: Callable[[], Any]) -> bool:
        """Call `save` if it is time to; says whether it was."""
        started = time.monotonic()
        if started < self._next:
            return False
        save()
        ended = time.monotonic()
        self.spent_s += ended - started
        self._next = ended + max(self._interval_s, (ended - started) * (1 / self._share - 1))
        return True


def _fits(path: Path, n_rows: int) -> bool:
    """Whether a file holds labels of so many rows."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        return False
    except _DAMAGE as error:
        logger.warning("%s is damaged and counts as not there: %s", path, error)
        return False
    return found.shape == (n_rows,) and found.dtype == np.int32


def _read_manifest(directory: Path) -> Any:
    """The fingerprint that a directory's state is of; None where there is no state."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version, fingerprint = manifest["format"], manifest["fingerprint"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); start anew, or choose another directory") from error
    if version != FORMAT:
        raise CheckpointError(
            f"checkpoint {directory} is of format {version!r}; this release reads {FORMAT}: go on with the release "
            f"that made it, or start anew"
        )
    if not isinstance(fingerprint, dict):
        raise CheckpointError(f"{path} is damaged (no fingerprint); start anew, or choose another directory")
    return fingerprint


def _allocate(file: Any, n_rows: int) -> None:
    """Write an empty .npy file and take its space now, where the system can: not when half of the labels are there."""
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.int32)), "fortran_order": False, "shape": (n_rows,)}
    np.lib.format.write_array_header_1_0(file, header)
    file.flush()
    start = file.tell()
    try:
        os.posix_fallocate(file.fileno(), start, 4 * n_rows)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_FALLOCATE:
            raise
        file.truncate(start + 4 * n_rows)
