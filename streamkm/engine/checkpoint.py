"""Progress of a run on disk: named records, labels, and how often they are saved.

A checkpoint is a directory that was new or empty. Its marker holds the fingerprint of source and settings, which
identifies the run, and names the files that the checkpoint wrote; it removes and replaces no others. Each file is
written under another name, flushed and renamed, so a kill leaves the state before or after. Labels alone are written in
place, and count only up to the row that a later record names. Knows nothing of fits.
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
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import Lock, writing
from streamkm.core.exceptions import CheckpointError
from streamkm.core.local_paths import check_local
from streamkm.core.manifest import LISTED, MARKER, Owned, marker_rests, shortly
from streamkm.core.matrix import raw
from streamkm.core.partial_files import partial_name
from streamkm.sources.fingerprints import differences

logger = logging.getLogger(__name__)

LOCK, LABELS = "streamkm.lock", "labels.npy"
KIND = "checkpoint"
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_LOCK_BYTES = 32  # more than the number of a process has
_ARRAY = "array_"  # before the names of a record's arrays, which are free
# what NumPy and zipfile raise on bytes that are not theirs
_DAMAGE = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, TokenError)
_NO_FALLOCATE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})  # file systems without it


class KeptDirectory(str):
    """The path of a checkpoint that stays when its run is complete, until the caller calls `forget`."""

    __slots__ = ()


class Checkpoint:
    """The state of one run, held by one process; made by `Checkpoint.open`.

    `resumed`: whether there was a state of this run.
    """

    def __init__(self, owned: Owned, lock: Lock, *, stays: bool):
        self.directory = owned.directory
        self.resumed = False
        self._stays = stays
        self._owned = owned
        self._lock = lock
        self._discarded = False

    def __fspath__(self) -> str:
        return os.fspath(self.directory)

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
        """Begin a run in a directory, or continue the run that was begun there.

        `directory`: made where it is missing. Empty, or a checkpoint: nothing else is touched. `fingerprint`: what
        makes it the same run, in sections: ``{"source": .., "settings": ...}``. `restart`: discard the earlier state,
        whatever run it belongs to. `expires`: sections whose difference makes the earlier state worthless: it is
        discarded instead of refused. Yields Checkpoint: its lock is released at the end; the state stays unless it was
        discarded. Other files in the directory are never changed or removed. Raises InUseError: another process uses
        the directory; CheckpointError: the state belongs to another run; the message says what differs. Or, whatever
        `restart` says: the directory is not empty and no checkpoint, its version is unknown, or its marker is damaged;
        DiskFullError, OutputError: it cannot be written, or is a URL.
        """
        check_local(directory)
        place = Path(directory)
        _claimable(place)  # before a lock is put there
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        lock = Lock(place / LOCK, f"checkpoint {place}")
        saved = None
        try:
            owned = _claimable(place)
            if owned is None:
                owned = Owned(place, KIND, CheckpointError)
            # under the lock: until then another process may be writing
            named = {path.name for path in place.iterdir() if path.suffix == ".npz" and _NAME.fullmatch(path.stem)}
            owned.check({*named, LABELS})
            saved = cls(owned, lock, stays=isinstance(directory, KeptDirectory))
            wanted = json.loads(json.dumps(fingerprint))
            found = None if restart else owned.facts.get("fingerprint")
            if found is not None and any(found.get(section) != wanted.get(section) for section in expires):
                logger.info("%s is of a run that has ended; starting anew", place)
                found = None
            if found is None:
                saved._clear()
                owned.facts["fingerprint"] = wanted
                owned.mark()
            elif found != wanted:
                listed = differences(found, wanted)
                more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
                raise CheckpointError(
                    f"checkpoint {place} is of another run: {'; '.join(listed[:LISTED])}{more}. Restore what it was "
                    f"made with, choose another directory, or start anew"
                )
            saved.resumed = found is not None
            yield saved
        finally:
            discarded = saved is not None and saved._discarded
            lock.release(remove=discarded)
            if discarded:
                with suppress(OSError):  # not empty: it has files of others; or a link to a directory
                    place.rmdir()

    def save(self, name: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Write a record; it replaces the one of that name when it is complete and on disk.

        `name`: lower-case letters, digits and hyphens. `arrays`: mapping of str to ndarray, of numbers or bool. Raises
        DiskFullError, OutputError: the earlier record is as it was.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} names no record; needed: lower-case letters, digits and hyphens")
        for each, array in arrays.items():
            if array.dtype.hasobject:
                raise TypeError(f"array {each} of record {name} holds {array.dtype}; needed: numbers")
        header = json.dumps({"name": name, "arrays": sorted(arrays), "meta": dict(meta)})
        members = {_ARRAY + each: array for each, array in arrays.items()}
        self._owned.replace(
            f"{name}.npz",
            lambda file: np.savez(file, header=np.array(header), **members),  # type: ignore[arg-type]
            sum(array.nbytes for array in arrays.values()),
        )

    def load(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """Give a record's arrays and meta; None where there is none or it is damaged, which is logged."""
        return load_record(self.directory, name)

    def has_labels(self, n_rows: int) -> bool:
        """Whether the earlier state has labels of so many rows."""
        return _fits(self.directory / LABELS, n_rows)

    def labels(self, n_rows: int) -> LabelsFile:
        """Open the labels of `n_rows` rows: those of the earlier state, or new ones."""
        return LabelsFile(self, n_rows)

    def growing(self, name: str) -> Path:
        """The path of a file that grows and that a record tells the size of; no other file has this name."""
        return self.directory / partial_name(name, self._owned.owner)

    def complete(self) -> None:
        """Discard the state of a complete run, unless the caller wants to keep it."""
        if not self._stays:
            self.discard()

    def discard(self) -> None:
        """Remove the state, and the directory if nothing else is in it."""
        self._clear()
        self._owned.unmark()
        self._discarded = True

    def _clear(self) -> None:
        """Remove the checkpoint's files, its fingerprint first, so that a kill leaves no state of half the records."""
        self._owned.facts["fingerprint"] = None
        if self._owned.files:
            self._owned.mark()
        self._owned.remove_all()


def forget(directory: str | os.PathLike[str]) -> None:
    """Remove the state of a run, if a directory has one; errors as of `Checkpoint.open`."""
    if os.path.isdir(directory):
        with Checkpoint.open(directory, {}, restart=True) as saved:
            saved.discard()


def records(directory: str | os.PathLike[str]) -> set[str]:
    """Names of the records that the marker of a checkpoint lists; empty without a checkpoint.

    Raises CheckpointError: the directory holds something else; as `Checkpoint.open`.
    """
    owned = _claimable(Path(directory))
    if owned is None or owned.facts.get("fingerprint") is None:
        return set()
    return {Path(name).stem for name in owned.files if name.endswith(".npz") and owned.owns(name)}


def load_record(directory: Path, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """A record's arrays and meta; None where there is none or it is damaged, which is logged."""
    path = directory / f"{name}.npz"
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


class LabelsFile(AbstractContextManager["LabelsFile"]):
    """Labels of known number, written chunk by chunk into a .npy file; opened by `Checkpoint.labels`."""

    def __init__(self, checkpoint: Checkpoint, n_rows: int):
        self.path = checkpoint.directory / LABELS
        self._checkpoint = checkpoint
        if not _fits(self.path, n_rows):
            checkpoint._owned.replace(LABELS, lambda file: _allocate(file, n_rows), 4 * n_rows)
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
        """Flush the labels to disk, then save the record that says how many there are."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        self._checkpoint.save(name, arrays, meta)

    def read(self, *, mapped: bool = False) -> NDArray[np.int32]:
        """Give the labels of all rows, in memory or as a read-only memory map."""
        return np.load(self.path, mmap_mode="r" if mapped else None, allow_pickle=False)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


class Throttle:
    """When to save: at most once per interval, and for at most a share of the time.

    `interval_s`: seconds between saves, at least. `share`: of the time, at most, that saving may take: after a save of
    c seconds, the next waits c (1 / share - 1).
    """

    def __init__(self, interval_s: float = 10.0, share: float = 0.05):
        self._interval_s, self._share = interval_s, share
        self._next = time.monotonic() + interval_s

    def save_if_due(self, save: Callable[[], Any], *, is_due: bool = False) -> None:
        """Call `save` if it is due, by the time or as the caller says."""
        started = time.monotonic()
        if is_due or started >= self._next:
            save()
            ended = time.monotonic()
            self._next = ended + max(self._interval_s, (ended - started) * (1 / self._share - 1))


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


def _claimable(directory: Path) -> Owned | None:
    """The marker of the checkpoint in a directory; None if the directory is missing or empty.

    Raises CheckpointError: the directory holds other files, or a state that this release cannot continue.
    """
    owned = Owned.read(directory, KIND, CheckpointError)
    if owned is None:
        if not directory.is_dir():
            return None  # nothing there, or what a directory cannot be made of
        rests = {path.name for path in marker_rests(directory)}  # of processes that were killed as they took it
        others = [path.name for path in directory.iterdir() if path.name not in rests and not _is_lock(path)]
        if others:
            raise CheckpointError(
                f"{directory} holds other files ({shortly(others)}) and is no checkpoint; choose an empty or a new "
                f"directory: nothing there was changed"
            )
        return None
    if not isinstance(owned.facts.get("fingerprint"), dict | None):
        raise CheckpointError(f"{directory / MARKER} is damaged (no fingerprint); choose another directory")
    return owned


def _is_lock(path: Path) -> bool:
    return path.name == LOCK and path.is_file() and not path.is_symlink() and path.stat().st_size < _LOCK_BYTES


def _allocate(file: Any, n_rows: int) -> None:
    """Write an empty .npy file and reserve its space now, so that a full disk shows before labels are written."""
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
