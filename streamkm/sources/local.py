"""Files of the local file system: the state in which they were opened, and reads that notice a change.

Refuses special files (a FIFO would block for ever). Every read, in every process, is checked after its bytes came, so
that changes before or during it show in the size or the time of change. A change that keeps both goes unnoticed: one
within the file system's clock tick (some milliseconds), or one whose writer puts the time back.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from streamkm.core.exceptions import SourceError, SourceNotFoundError

COPIES_HINT = "; if this machine has a copy of its own, copy it again with its time of change (cp -p, rsync -t)"


def natural(path: str) -> tuple[list[Any], str]:
    """Sorting key of a path: numbers count by value, so that part-2 comes before part-10."""
    return [int(each) if each.isdecimal() else each for each in re.split("([0-9]+)", path)], path


@dataclass(frozen=True, slots=True)
class FileVersion:
    """The state of a file, by which a change of its contents is noticed without reading it."""

    n_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        """The state of a file now."""
        return cls(status.st_size, status.st_mtime_ns)

    def __str__(self) -> str:
        seconds, rest = divmod(self.mtime_ns, 10**9)
        time = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"
        return f"{self.n_bytes:,} bytes, last modified {time}"


class LocalPath(str):
    """A path, as text, with the state of its file when it was opened."""

    version: FileVersion | None  # None for directories

    def __new__(cls, path: str, version: FileVersion | None) -> LocalPath:
        made = super().__new__(cls, path)
        made.version = version
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalPath, (str(self), self.version)


class LocalFile(io.FileIO):
    """An open file, read unbuffered; every read checks that it is unchanged. Raises SourceError if not."""

    def __init__(self, path: LocalPath) -> None:
        if path.version is None:
            raise SourceError(f"{path} is a directory; name files, or a glob of them")
        self._path, self._version, self.size = path, path.version, path.version.n_bytes
        super().__init__(path, "rb")

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as files do, and check."""
        data = super().read(-1 if size is None else size)
        self._check()
        return data

    def readinto(self, buffer: Any, /) -> int:
        """Read as files do, and check."""
        n_read = super().readinto(buffer)
        self._check()
        return n_read

    def _check(self) -> None:
        _compare(self._path, self._version, os.fstat(self.fileno()))


def opened(path: str) -> LocalPath:
    """A path with its present state, unless it has one. Raises SourceNotFoundError, SourceError: missing or special."""
    if isinstance(path, LocalPath):
        return path
    status = status_of(path)
    return LocalPath(path, None if stat.S_ISDIR(status.st_mode) else FileVersion.of(status))


def status_of(path: str) -> os.stat_result:
    """The status of a path; raises as `opened`."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"{path} does not exist") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}") from error
    # others than files and directories may block for ever, and give their bytes once
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise SourceError(
            f"{path} is a FIFO (named pipe), a socket or a device, not a regular file; name files, or a glob that "
            f"leaves it out (what comes through a pipe, write to a file first)"
        )
    return status


@contextmanager
def unchanged(path: str) -> Iterator[None]:
    """Check a file around a library's reads by name; raises SourceError, rather than the library's error, if changed.

    Paths that are no `LocalPath`, and directories, are not checked.
    """
    try:
        yield
    finally:
        is_left = isinstance(sys.exception(), GeneratorExit)  # by whoever has read enough
        if isinstance(path, LocalPath) and path.version is not None and not is_left:
            _compare(path, path.version, status_of(path))


def _compare(path: str, then: FileVersion, status: os.stat_result) -> None:
    now = FileVersion.of(status)
    if then != now:
        raise changed(path, then, now, COPIES_HINT)


def changed(path: str, then: object, now: object, hint: str = "") -> SourceError:
    """The error for a file or object that is not what it was when it was opened."""
    was = f"it was {then} when it was opened and is {now} now"
    return SourceError(
        f"{path} was changed while it was in use: {was}; open the source again once it is complete{hint}"
    )
