"""Files and directories that are not complete yet: their names, and what is left of them when a process was killed."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
import sys
from contextlib import suppress
from pathlib import Path

REPLACED = "replaced"
"""What a directory is called that another one takes the place of, in the working directory of that one."""
_LOCKED_BYTE = 1 << 30  # beyond what is written: where locks are mandatory, the holder's number can still be read


def partial_name(name: str, tag: str) -> str:
    """What a file is called until it is complete."""
    return f".{name}{partial_suffix(tag)}"


def partial_suffix(tag: str) -> str:
    """What such names end with, of every file with the tag."""
    return f".{tag}.partial"


def file_tag() -> str:
    """What names a file of this process: the process's number, and a word that nobody can know before."""
    return f"{os.getpid()}-{secrets.token_hex(8)}"


def directory_tag() -> str:
    """As `file_tag`, for a directory; shorter, which tells them apart."""
    return file_tag()[:-8]


FILE_TAG = "[0-9]+(?:-[0-9a-f]{16})?"
"""Pattern of `file_tag`; earlier versions wrote the number alone."""


def remove_rests(path: str | os.PathLike[str]) -> None:
    """Remove what processes left beside a path that were killed while they wrote it.

    These are files and directories `.NAME.TAG.partial`, of a `file_tag` or a `directory_tag`, whose process is no more;
    not on another machine either, as whoever writes has locked them. A directory that was to be replaced, and had left
    its place, is put there again. What cannot be removed stays.

    Parameters
    ----------
    path : path
        What they were to become.
    """
    target = Path(path)
    own = re.compile(re.escape(f".{target.name}.") + r"([0-9]+)(?:-[0-9a-f]{16}|(-[0-9a-f]{8}))?\.partial")
    with suppress(OSError):
        for name in os.listdir(target.parent):
            found, rest = own.fullmatch(name), target.parent / name
            if found is None or not _is_abandoned(rest, int(found[1]), directory=found[2] is not None):
                continue
            if found[2] is None:
                rest.unlink()
                continue
            if (rest / REPLACED).is_dir() and not os.path.lexists(target):
                os.replace(rest / REPLACED, target)
            shutil.rmtree(rest)


def _is_abandoned(rest: Path, process: int, *, directory: bool) -> bool:
    """Whether it is a file, or a directory, that nobody is at any more."""
    import psutil

    mode = os.lstat(rest).st_mode
    if not (stat.S_ISDIR(mode) if directory else stat.S_ISREG(mode)) or psutil.pid_exists(process):
        return False
    if directory and os.name == "nt":  # where directories cannot be locked
        return True
    return is_unlocked(rest)


def is_unlocked(path: str | os.PathLike[str]) -> bool:
    """Whether nobody has locked a file or a directory, as whoever writes it does."""
    # not through a symbolic link, nor waiting for a pipe, that was laid there meanwhile
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        return try_lock(handle)
    finally:
        os.close(handle)


def say_writing(handle: int) -> None:
    """Have others see that somebody is at a file, as far as there are locks."""
    with suppress(OSError):
        try_lock(handle)


if sys.platform == "win32":

    def try_lock(handle: int) -> bool:
        """Lock an open file for this handle; False where another one has locked it."""
        import msvcrt

        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        os.lseek(handle, 0, os.SEEK_SET)
        return True

else:

    def try_lock(handle: int) -> bool:
        """Lock an open file for this handle; False where another one has locked it."""
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
