"""Files that are complete or absent: written beside their place, flushed, then renamed, and locked meanwhile."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from streamkm.core.display import masked
from streamkm.core.exceptions import DiskFullError, OutputError, StreamkmError

REPLACED = "replaced"  # a directory that another one takes the place of, in the working directory of that one
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # the disk is full, or a quota used up
_LOCKED_BYTE = 1 << 30  # beyond what is written: where locks are mandatory, the holder's number can still be read
_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+):/+")  # `pathlib` leaves one slash; drives have one letter


@contextmanager
def writing(path: str | os.PathLike[str], n_bytes: int | None = None) -> Iterator[None]:
    """Turn the system's errors of writing a path into DiskFullError (no space, a quota) or OutputError."""
    try:
        yield
    except OSError as error:
        if isinstance(error, StreamkmError):
            raise
        if error.errno in _FULL:
            what = "" if n_bytes is None else f" for {n_bytes:,} bytes"
            here = Path(path).absolute()
            free = shutil.disk_usage(next(each for each in (here, *here.parents) if each.exists())).free
            raise DiskFullError(
                f"{os.fspath(path)}: no space{what} ({error.strerror}; {free:,} bytes free there); what "
                f"was saved before is kept: make space and run the same again, or write elsewhere"
            ) from error
        raise OutputError(f"{os.fspath(path)} cannot be written: {error.strerror or error}") from error


@contextmanager
def named(hidden: str | os.PathLike[str], path: str | os.PathLike[str]) -> Iterator[None]:
    """Let write errors of an internal file name the purpose of the write."""
    try:
        yield
    except OutputError as error:
        raise type(error)(str(error).replace(os.fspath(hidden), os.fspath(path))) from error


def check_local(path: str | os.PathLike[str]) -> None:
    """Refuse a URL to write to, which would name a directory ``s3:`` below the current one. Raises OutputError."""
    if found := _URL.match(os.fspath(path)):
        url = f"{found['protocol']}://{os.fspath(path)[found.end() :]}"
        raise OutputError(
            f"{masked(url)} is a URL, and results are written to local paths only; give a path (on a "
            f"cluster one that all workers see), and copy what was written"
        )


def check_new(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse a URL, anything but a file, and without `overwrite` an existing file. Raises OutputError."""
    check_local(path)
    with suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise OutputError(f"{os.fspath(path)} exists and is no regular file; choose another name")
    if not overwrite and os.path.lexists(path):
        raise OutputError(f"{os.fspath(path)} exists; pass overwrite to replace it, or choose another name")


def check_new_directory(path: str | os.PathLike[str], own: str, *, overwrite: bool) -> None:
    """Refuse a directory that has contents, unless it may be replaced and all names in it match the pattern `own`.

    A directory that a killed process had moved aside is put back first. Raises OutputError.
    """
    check_local(path)
    remove_rests(path)
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise OutputError(f"{os.fspath(path)} exists; pass overwrite to replace it, or choose another name")
    other = os.path.islink(path) or not os.path.isdir(path)
    found = [] if other else sorted(name for name in os.listdir(path) if not re.fullmatch(own, name))
    if other or found:
        what = f"holds other files ({', '.join(found[:5])})" if found else "is no directory"
        raise OutputError(f"{os.fspath(path)} exists and {what}; choose another name")


def replace_file(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], Any],
    n_bytes: int | None = None,
    *,
    overwrite: bool = True,
) -> None:
    """Write a file by `write`, which gets the open file; at any time readers see the old or the complete new file.

    Leftovers of killed processes are removed first. Without `overwrite` an existing file is refused, at the beginning
    and at the end. Raises DiskFullError and OutputError, as `check_new` and `writing`; the old file then stays.
    """
    target = Path(path)
    with writing(target, n_bytes):
        check_new(target, overwrite=overwrite)
        remove_rests(target)
        partial = target.with_name(partial_name(target.name))
        created = open(partial, "x+b")  # noqa: SIM115 - a file or a link of that name is refused, not opened
        try:
            with created as file:
                with suppress(OSError):  # no locks there
                    try_lock(file.fileno())
                write(file)
                file.flush()
                os.fsync(file.fileno())
                check_new(target, overwrite=overwrite)  # writing may have taken hours
                if os.name != "nt":
                    os.replace(partial, target)
            if os.name == "nt":  # where open files keep their names
                os.replace(partial, target)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        sync(target.parent)


@contextmanager
def working_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a hidden directory beside a path for new contents; removed at the end. Raises DiskFullError, OutputError."""
    target = Path(path)
    remove_rests(target)
    place = target.with_name(partial_name(target.name))
    with writing(target):
        place.mkdir(parents=True)
        handle = None if os.name == "nt" else os.open(place, os.O_RDONLY)
    try:
        if handle is not None:
            with suppress(OSError):  # no locks there
                try_lock(handle)
        yield place
    finally:
        with suppress(OSError):  # calls that still run after an error make no file there while it is emptied
            place = place.rename(target.with_name(partial_name(target.name)))
        shutil.rmtree(place, ignore_errors=True)  # what is left, the next removes
        if handle is not None:
            os.close(handle)


def replace_tree(new: Path, target: Path, aside: Path) -> None:
    """Flush a complete directory and move it to its place; an existing one moves to `aside`.

    Raises DiskFullError, OutputError: the old directory is back in its place.
    """
    with writing(target):
        sync_tree(new)
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
    """Flush a file, or the names in a directory, to the disk."""
    if os.name == "nt" and os.path.isdir(path):
        return  # no such thing there: names are written with their files
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(directory: str | os.PathLike[str]) -> None:
    """Flush everything below a directory to the disk."""
    for folder, _, names in os.walk(directory, topdown=False):
        for each in (*(os.path.join(folder, name) for name in names), folder):
            sync(each)


def partial_name(name: str) -> str:
    """The name of a file or directory until it is complete; it contains a random word that nobody can guess."""
    return f".{name}.{os.getpid()}-{secrets.token_hex(8)}.partial"


def remove_rests(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left beside a path; a directory that they had moved aside is put back.

    Files and directories named by `partial_name` are leftovers if their process has ended and no process, on any
    machine, locks them. What cannot be removed stays.
    """
    import psutil

    target = Path(path)
    own = re.compile(re.escape(f".{target.name}.") + r"([0-9]+)-[0-9a-f]{16}\.partial")
    with suppress(OSError):
        for name in os.listdir(target.parent):
            found, rest = own.fullmatch(name), target.parent / name
            if found is None or psutil.pid_exists(int(found[1])) or not is_unlocked(rest):
                continue
            if not rest.is_dir():
                rest.unlink()
                continue
            if (rest / REPLACED).is_dir() and not os.path.lexists(target):
                os.replace(rest / REPLACED, target)
            shutil.rmtree(rest)


def is_unlocked(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file or a directory that no writer has locked."""
    if os.path.islink(path) or not (os.path.isdir(path) or os.path.isfile(path)):
        return False
    if os.name == "nt" and os.path.isdir(path):  # where directories cannot be locked
        return True
    # not through a symbolic link, nor waiting for a pipe, that was laid there meanwhile
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        return try_lock(handle)
    finally:
        os.close(handle)


def try_lock(handle: int) -> bool:
    """Lock an open file for this handle; False where another one has locked it."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
    else:
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
