"""Files that are there whole or not at all: replaced, flushed, locked; and what a full disk is called.

Knows nothing of what is written.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from streamkm.core.exceptions import DiskFullError, InUseError, OutputError, StreamkmError
from streamkm.core.local_paths import check_local
from streamkm.core.partial_files import (
    directory_tag,
    file_tag,
    partial_name,
    remove_rests,
    say_writing,
    try_lock,
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def writing(path: str | os.PathLike[str], n_bytes: int | None = None) -> Iterator[None]:
    """Turn the system's errors of writing `path` into streamkm's.

    Parameters
    ----------
    path : path
        For messages.
    n_bytes : int or None
        What is to be written, where that is known.

    Raises
    ------
    DiskFullError
        No space, a quota or a limit of the file's size.
    OutputError
        Whatever else the system refuses.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, StreamkmError):
            raise
        if is_full(error):
            what = "" if n_bytes is None else f" for {n_bytes:,} bytes"
            here = Path(path).absolute()
            free = shutil.disk_usage(next(each for each in (here, *here.parents) if each.exists())).free
            raise DiskFullError(
                f"{os.fspath(path)}: no space{what} ({error.strerror}; {free:,} bytes free there); what "
                f"was saved before is kept: make space and run the same again, or write elsewhere"
            ) from error
        raise OutputError(f"{os.fspath(path)} cannot be written: {error.strerror or error}") from error


def is_full(error: OSError) -> bool:
    """Whether the system has no space left, or allows no more of it."""
    return error.errno in _FULL


@contextmanager
def named(hidden: str | os.PathLike[str], path: str | os.PathLike[str]) -> Iterator[None]:
    """Let errors of writing what users do not know name what it is written for."""
    try:
        yield
    except OutputError as error:
        raise type(error)(str(error).replace(os.fspath(hidden), os.fspath(path))) from error


@contextmanager
def working_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a hidden directory beside a path, to make there what it is to become; removed at the end.

    One that a killed process left is removed when the same is written again; see `remove_rests`.

    Raises
    ------
    DiskFullError, OutputError
        It cannot be made.
    """
    target = Path(path)
    remove_rests(target)
    place = target.with_name(partial_name(target.name, directory_tag()))
    with writing(target):
        place.mkdir(parents=True)
        handle = None if os.name == "nt" else os.open(place, os.O_RDONLY)
    try:
        if handle is not None:
            say_writing(handle)
        yield place
    finally:
        gone = target.with_name(partial_name(target.name, directory_tag()))
        with suppress(OSError):
            place = place.rename(gone)  # calls that still run after an error make no file there while it is emptied
        shutil.rmtree(place, ignore_errors=True)  # what is left, the next removes
        if handle is not None:
            os.close(handle)


def check_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse what is there and is no file: a pipe blocks whoever opens it, and a device must not be replaced.

    Raises
    ------
    OutputError
        Or a URL; see `check_local`.
    """
    check_local(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OutputError(f"{os.fspath(path)} exists and is no regular file; choose another name")


def check_new(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse a path where a file is, unless that may be replaced, or where something else is.

    Raises
    ------
    OutputError
    """
    check_replaceable(path)
    if not overwrite and os.path.lexists(path):
        raise OutputError(f"{os.fspath(path)} exists; pass overwrite to replace it, or choose another name")


def replace_file(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], Any],
    n_bytes: int | None = None,
    *,
    tag: str | None = None,
    ready: Callable[[int], object] | None = None,
) -> None:
    """Write a file; readers, and any process after a crash, see the old one or the whole new one.

    Written under a hidden name that nobody can know before, flushed to the disk, renamed; then the directory is
    flushed. What a process that was killed left under such a name is removed first.

    Parameters
    ----------
    path : path
    write : callable
        Given the open file.
    n_bytes : int or None
        As of `writing`.
    tag : str, optional
        In the hidden name; unless given, the number of the process and a random word.
    ready : callable, optional
        Given the size of the complete file, before that takes its name.

    Raises
    ------
    OutputError
        As `writing`, and what is there is no file; the old file is as it was.
    """
    target = Path(path)
    with writing(target, n_bytes):
        check_replaceable(target)
    if tag is None:
        remove_rests(target)
    partial = target.with_name(partial_name(target.name, file_tag() if tag is None else tag))
    with writing(target, n_bytes):
        if tag is not None:
            partial.unlink(missing_ok=True)  # of a process that was killed
        created = open(partial, "x+b")  # noqa: SIM115 - a file or a link of that name is refused, not opened
        try:
            with created as file:
                say_writing(file.fileno())
                write(file)
                file.flush()
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
                if ready is not None:
                    ready(size)
                if os.name != "nt":
                    os.replace(partial, target)
            if os.name == "nt":  # where open files keep their names
                os.replace(partial, target)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        sync(target.parent)


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove a directory with all that is in it, if it is there; nothing that symbolic links lead to.

    Raises
    ------
    OutputError
        It is no directory, or cannot be removed.
    """
    with writing(path), suppress(FileNotFoundError):
        shutil.rmtree(path)


def replace_tree(new: Path, target: Path, aside: Path) -> None:
    """Put a complete directory in a place; one that is there goes to `aside`, and comes back where that fails.

    Raises
    ------
    DiskFullError, OutputError
        What was there is there.
    """
    with writing(target):
        replaced = target.exists()
        if replaced:
            os.replace(target, aside)
        try:
            os.replace(new, target)
        except OSError:
            if replaced:
                os.replace(aside, target)
            raise
        sync(target.parent)


def sync(path: str | os.PathLike[str]) -> None:
    """Bring a file, or the names in a directory, to the disk."""
    if os.name == "nt" and os.path.isdir(path):
        return  # no such thing there: names are written with their files
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """One process at a time: the operating system's lock on a file, gone with the process that holds it.

    Parameters
    ----------
    path : path
        Made where it is missing; holds the number of the process.
    what : str
        What it guards, for the message: ``checkpoint /data/run``.

    Raises
    ------
    InUseError
        If another process, or another lock of this one, holds it.
    """

    def __init__(self, path: str | os.PathLike[str], what: str):
        self._path = Path(path)
        while True:
            with writing(path):
                # not through a symbolic link: what it leads to would be overwritten
                handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            if not try_lock(handle):
                holder = os.pread(handle, 20, 0).decode("ascii", "replace") if hasattr(os, "pread") else ""
                os.close(handle)
                raise InUseError(
                    f"{what} is in use by process {holder.strip() or '(unknown)'}; wait until it ends, or choose "
                    f"another directory"
                )
            # the file may have been removed by its last holder after it was opened here: then it guards nothing
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(path)):
                    break
            os.close(handle)
        self._handle = handle
        try:
            with writing(path):
                os.ftruncate(handle, 0)
                os.write(handle, str(os.getpid()).encode("ascii"))
        except OutputError:
            self.release()
            raise

    def release(self, *, remove: bool = False) -> None:
        """Let others in; `remove` takes the file away."""
        if remove and os.name != "nt":
            self._path.unlink(missing_ok=True)
        os.close(self._handle)
        if remove and os.name == "nt":
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
