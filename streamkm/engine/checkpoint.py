"""Progress of a run on disk: named records, labels, and files that grow, in a directory that was new or empty.

`checkpoint.json` holds the fingerprint of source and settings, which identifies the run. Each record is written beside,
flushed and renamed, so a kill leaves the state before or after. A growing file counts only up to the row that a later
record names. Knows nothing of fits.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import check_local, replace_file, sync, writing
from streamkm.core.exceptions import CheckpointError
from streamkm.core.locks import LOCK, Lock
from streamkm.core.matrix import raw
from streamkm.engine.records import pack, unpack
from streamkm.sources.fingerprints import differences

T = TypeVar("T")
logger = logging.getLogger(__name__)

MARKER, FORMAT = "checkpoint.json", 6
RECORD, GROWING = ".record", ".growing"  # ends of the names of files
LABELS = "labels"  # the file that they grow in
LISTED = 5  # names or differences in a message
_NAME = r"[a-z][a-z0-9-]*"
_FILES = rf"{_NAME}\.(record|growing)|checkpoint\.json"
_OWN = re.compile(rf"({_FILES})|\.({_FILES})\.[0-9]+-[0-9a-f]{{16}}\.partial")
BEGIN = "begin"  # the record that every run writes at once
PROCESS = "process"  # memory beside data of the process that began the run
INTERVAL_S = 10.0  # between saves within a stage
SHARE = 0.05  # of the time, at most, that saving may take
_ARRAY = "array_"  # before the names of a record's arrays, which are free
# errors of NumPy and zipfile for damaged files
_DAMAGE = (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, TokenError)


class KeptDirectory(str):
    """The path of a checkpoint that stays when its run is complete, until the caller calls `forget`."""

    __slots__ = ()


class Checkpoint:
    """The state of one run, held by one process; made by `Checkpoint.open`."""

    def __init__(self, directory: Path, *, stays: bool):
        self.directory = directory
        self._stays = stays
        self._discarded = False

    def __fspath__(self) -> str:
        return os.fspath(self.directory)

    @classmethod
    @contextmanager
    def open(
        cls, directory: str | os.PathLike[str], fingerprint: Mapping[str, Any], *, restart: bool = False
    ) -> Iterator[Checkpoint]:
        """Begin a run in a directory, or continue the run with this fingerprint; `restart` discards any earlier state.

        Raises InUseError if another process uses the directory; CheckpointError if the state belongs to another run
        (the message names the differences), and even with `restart` if the directory holds other files, a damaged
        `checkpoint.json` or an unknown version; DiskFullError or OutputError if it cannot be written or is a URL.
        """
        check_local(directory)
        place = Path(directory)
        _fingerprint(place)  # refuses a directory of other files before a lock is put there
        with writing(place):
            place.mkdir(parents=True, exist_ok=True)
        lock = Lock(place / LOCK, f"checkpoint {place}")
        saved = cls(place, stays=isinstance(directory, KeptDirectory))
        try:
            # under the lock: until then another process may be writing
            found, wanted = _fingerprint(place), json.loads(json.dumps(fingerprint))
            if restart or found is None:
                saved._clear()
                text = json.dumps({"streamkm": "checkpoint", "format": FORMAT, "fingerprint": wanted}, indent=1)
                replace_file(place / MARKER, lambda file: file.write(text.encode()), len(text))
            elif found != wanted:
                raise CheckpointError(
                    f"checkpoint {place} is of another run: {_shortly(differences(found, wanted), '; ')}. Restore what "
                    f"it was made with, choose another directory, or start anew"
                )
            yield saved
        finally:
            lock.release(remove=saved._discarded)
            if saved._discarded:
                with suppress(OSError):  # not empty: it has files of others; or a link to a directory
                    place.rmdir()

    def save(self, name: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]) -> None:
        """Replace the record of this name once the new one is on disk, or raise DiskFullError or OutputError."""
        header = json.dumps({"name": name, "arrays": sorted(arrays), "meta": dict(meta)})
        members = {_ARRAY + each: array for each, array in arrays.items()}
        replace_file(
            self.directory / f"{name}{RECORD}",
            lambda file: np.savez(file, header=np.array(header), **members),  # type: ignore[arg-type]
            sum(array.nbytes for array in arrays.values()),
        )

    def load(self, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        """A record's arrays and meta; None if there is none or it is damaged, which is logged."""
        return load_record(self.directory, name)

    def write_labels(self, first_row: int, labels: NDArray[np.int32]) -> None:
        """Write the labels of consecutive rows to the disk; they count once a later record names them."""
        path = self.growing(LABELS)
        with writing(path, labels.nbytes):
            if path.is_symlink():
                path.unlink()
            with open(path, "r+b" if path.exists() else "xb") as file:
                file.seek(4 * first_row)
                file.write(raw(labels))
                file.flush()
                os.fsync(file.fileno())

    def read_labels(self, labels: NDArray[np.int32]) -> bool:
        """Read the labels of the first rows into an array; False if fewer were saved."""
        with suppress(FileNotFoundError), open(self.growing(LABELS), "rb") as file:
            return file.readinto(raw(labels)) == labels.nbytes
        return False

    def growing(self, name: str) -> Path:
        """The path of a growing file, whose valid size a record names."""
        return self.directory / f"{name}{GROWING}"

    def complete(self) -> None:
        """Discard the state of a complete run, unless the directory is a `KeptDirectory`."""
        if not self._stays:
            self.discard()

    def discard(self) -> None:
        """Remove the state, and the directory if nothing else is in it."""
        self._clear()
        self._discarded = True

    def _clear(self) -> None:
        """Remove the checkpoint's files, the fingerprint first, so that a kill leaves no state of half the records."""
        with writing(self.directory):
            (self.directory / MARKER).unlink(missing_ok=True)
            sync(self.directory)
            for path in self.directory.iterdir():
                if _OWN.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
                    path.unlink()
            sync(self.directory)


class CheckpointWriter:
    """Saves progress at intervals, and restores it; without a checkpoint it does neither."""

    def __init__(self, checkpoint: Checkpoint | None = None):
        self.checkpoint = checkpoint
        self._next = time.monotonic() + INTERVAL_S

    def same_seed(self, drawn: int) -> int:
        """The seed of the run that is continued; else the seed that was drawn now, which is saved."""
        begun = None if self.checkpoint is None else self.checkpoint.load(BEGIN)
        if begun is None and self.checkpoint is not None:
            self.checkpoint.save(BEGIN, {}, {"seed": drawn})
        return drawn if begun is None else int(begun[1]["seed"])

    def load(self, name: str, kind: type[T]) -> T | None:
        """The value that an earlier run saved under a name, or None; see `records.unpack`."""
        record = None if self.checkpoint is None else self.checkpoint.load(name)
        return None if record is None else unpack(kind, record)

    def save_if_due(self, name: str, make: Callable[[], Any]) -> None:
        """Save a value that grows, if a save is due."""
        if self.checkpoint is not None:
            self.when_due(lambda: self.save(name, make()))

    def save(self, name: str, value: Any) -> None:
        """Save the result of a stage; see `records.pack` for the types."""
        if self.checkpoint is not None:
            self.checkpoint.save(name, *pack(value))

    def when_due(self, save: Callable[[], None], *, is_due: bool = False) -> None:
        """Call `save` at most once per interval and for at most 5 % of the time, or now if `is_due`."""
        started = time.monotonic()
        if is_due or started >= self._next:
            save()
            ended = time.monotonic()
            self._next = ended + max(INTERVAL_S, (ended - started) * (1 / SHARE - 1))


def forget(directory: str | os.PathLike[str]) -> None:
    """Remove the state of a run, if a directory has one; errors as for `Checkpoint.open`."""
    if os.path.isdir(directory):
        with Checkpoint.open(directory, {}, restart=True) as saved:
            saved.discard()


def records(directory: str | os.PathLike[str]) -> set[str]:
    """Names of the records of a checkpoint; empty without one. Raises CheckpointError as `Checkpoint.open` does."""
    place = Path(directory)
    return set() if _fingerprint(place) is None else {path.stem for path in place.glob(f"*{RECORD}")}


def saved_stages(directory: str | os.PathLike[str]) -> list[str]:
    """Names of the records of finished stages, the latest last; see `checkpoint.records` for errors."""
    found = records(directory) - {BEGIN, PROCESS}
    return sorted(found, key=lambda name: (Path(directory) / f"{name}{RECORD}").stat().st_mtime_ns)


def load_record(directory: Path, name: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
    """A record's arrays and meta; None if there is none or it is damaged, which is logged."""
    path = directory / f"{name}{RECORD}"
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


def _fingerprint(directory: Path) -> dict[str, Any] | None:
    """The fingerprint of the checkpoint in a directory; None if the directory is missing, empty or discarded.

    Raises CheckpointError: the directory holds other files, or a state that this release cannot continue.
    """
    path = directory / MARKER
    try:
        marked = json.loads(path.read_bytes())
        version, found = marked["format"], dict(marked["fingerprint"])
    except (FileNotFoundError, NotADirectoryError):
        names = [each.name for each in directory.iterdir()] if directory.is_dir() else []
        if others := sorted(name for name in names if name != LOCK and not _OWN.fullmatch(name)):
            raise CheckpointError(
                f"{directory} holds other files ({_shortly(others, ', ')}) and is no checkpoint; choose an empty or a "
                f"new directory: nothing there was changed"
            ) from None
        return None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(
            f"{path} is damaged, or of no checkpoint ({problem}); move it away, or choose another directory"
        ) from problem
    if version != FORMAT:
        raise CheckpointError(
            f"checkpoint {directory} is of format {version!r}; this release reads {FORMAT}: go on with the release "
            f"that made it, or choose another directory"
        )
    return found


def _shortly(listed: list[str], between: str) -> str:
    """The first of some texts, and the number of the others."""
    return between.join(listed[:LISTED]) + (f" and {len(listed) - LISTED} more" if len(listed) > LISTED else "")
