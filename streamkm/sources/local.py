"""Files of the local file system: what tells one content of a file from another, and reads that notice a change.

Responsible for refusing what is no file (a FIFO would block for ever), for noting what a file was when it was opened,
and for comparing that with what is read. What the bytes mean is none of its business.

Every read is compared, in every process, after its bytes came: what was written before or while they were read shows in
the size or the time of change. Not seen is a change that leaves both as they were: one within the file system's clock
tick (some milliseconds) of the last one, or one whose writer puts the time back.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from streamkm.core.exceptions import SourceError, SourceNotFoundError


def natural(path: str) -> tuple[list[Any], str]:
    """Sorting key of a path: numbers count by their value, so that part-2 comes before part-10."""
    return [int(each) if each.isdecimal() else each for each in re.split("([0-9]+)", path)], path


@dataclass(frozen=True, slots=True)
class FileVersion:
    """What tells one content of a file from another, without reading it."""

    n_bytes: int
    mtime_ns: int
    # inode and time of status change; None in processes other than the one that opened the file. They differ together
    # where another file of the same size and time took its place. Either alone says nothing: a link or new permissions
    # change the time, and some network file systems number a file anew now and then
    identity: tuple[int, int] | None

    @classmethod
    def of(cls, status: os.stat_result) -> FileVersion:
        """Note what a file is."""
        return cls(status.st_size, status.st_mtime_ns, (status.st_ino, status.st_ctime_ns))

    def is_same(self, now: FileVersion) -> bool:
        """Whether a file that was this is still it."""
        if (self.n_bytes, self.mtime_ns) != (now.n_bytes, now.mtime_ns):
            return False
        if self.identity is None or now.identity is None:
            return True
        return any(then == there for then, there in zip(self.identity, now.identity, strict=True))

    def __str__(self) -> str:
        return f"{self.n_bytes:,} bytes, last modified {time_text(self.mtime_ns)}"


class LocalPath(str):
    """A path and what was there when it was opened. A text, so wherever paths go it goes.

    Other processes get size and time of change along; inodes are numbers of one machine.
    """

    version: FileVersion | None  # None for directories

    def __new__(cls, path: str, version: FileVersion | None) -> LocalPath:
        made = super().__new__(cls, path)
        made.version = version
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalPath, (str(self), self.version and replace(self.version, identity=None))


class LocalFile(io.FileIO):
    """A file that was opened, read unbuffered: every read sees to it that it is still the same file.

    Raises SourceError, also by any reading method: another file, or one that was changed.
    """

    def __init__(self, path: LocalPath) -> None:
        if path.version is None:
            raise SourceError(f"{path} is a directory; name files, or a glob of them")
        self._path, self._version, self.size = path, path.version, path.version.n_bytes
        super().__init__(path, "rb")
        try:
            self._check()
        except SourceError:
            self.close()
            raise

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
    """Note what a path names now, unless that was done.

    Raises SourceNotFoundError, SourceError: missing, out of reach, or neither a file nor a directory.
    """
    if isinstance(path, LocalPath):
        return path
    status = status_of(path)
    return LocalPath(path, None if stat.S_ISDIR(status.st_mode) else FileVersion.of(status))


def status_of(path: str) -> os.stat_result:
    """Ask what a path names; see `opened` for errors."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceNotFoundError(f"{path} does not exist") from error
    except OSError as error:
        raise SourceError(f"{path} cannot be opened: {error.strerror}") from error
    refuse_special(path, status)
    return status


def refuse_special(path: str, status: os.stat_result) -> None:
    """Refuse what is neither a file nor a directory: it may block for ever, and gives its bytes once."""
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise SourceError(
            f"{path} is a FIFO (named pipe), a socket or a device, not a regular file; name files, or a glob that "
            f"leaves it out (what comes through a pipe, write to a file first)"
        )


@contextmanager
def unchanged(path: str) -> Iterator[None]:
    """Have a library read a file by its name: what it read, or failed at, was of the file that was opened.

    Does nothing for a path that is no `LocalPath`, or a directory's.

    Raises SourceError: another file, or one that was changed; instead of what the library may have raised.
    """
    try:
        yield
    finally:
        is_left = isinstance(sys.exception(), GeneratorExit)  # by whoever has read enough
        if isinstance(path, LocalPath) and path.version is not None and not is_left:
            _compare(path, path.version, status_of(path))


def time_text(mtime_ns: int) -> str:
    """Word a time of change."""
    seconds, rest = divmod(mtime_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def copies_hint(elsewhere: bool) -> str:
    """Say what to do, where the difference may be one between machines."""
    hint = "; if this machine has a copy of its own, copy it again with its time of change (cp -p, rsync -t)"
    return hint if elsewhere else ""


def _compare(path: str, then: FileVersion, status: os.stat_result) -> None:
    now = FileVersion.of(status)
    if not then.is_same(now):
        alike = (then.n_bytes, then.mtime_ns) == (now.n_bytes, now.mtime_ns)
        other = " and is another file of the same size and time" if alike else f" and is {now}"
        raise SourceError(
            f"{path} was changed while it was in use: it was {then} when it was opened{other} now; open the source "
            f"again once it is complete{copies_hint(then.identity is None)}"
        )
