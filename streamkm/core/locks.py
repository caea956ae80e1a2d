"""Locks on files, and folders of temporary files, which the next run removes if their process died."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from streamkm.core.atomic_io import is_unlocked, try_lock, writing
from streamkm.core.exceptions import InUseError, OutputError

PREFIX, LOCK = "streamkm-", "streamkm.lock"  # of temporary folders

logger = logging.getLogger(__name__)


class Lock:
    """The system's lock on a file, which is created: one process at a time; released when the process ends.

    Raises InUseError, which names `what`, if another process, or another lock of this one, holds it.
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
        """Release the lock; `remove` deletes the file."""
        if remove and os.name != "nt":
            self._path.unlink(missing_ok=True)
        os.close(self._handle)
        if remove and os.name == "nt":
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


class TemporaryFolder:
    """A new folder of temporary files, locked by this process until it is closed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = Lock(self.path / LOCK, f"folder {self.path}")

    def close(self) -> None:
        """Remove the folder."""
        self._lock.release()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_dead_folders() -> None:
    """Remove the temporary folders that dead processes of this user left; no link is followed."""
    n_bytes, place = 0, Path(tempfile.gettempdir())
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            if _is_dead(folder):
                n_bytes += sum(os.lstat(path).st_size for path in folder.iterdir())
                shutil.rmtree(folder)
    if n_bytes:
        logger.info("removed %s bytes that dead runs had left in %s", f"{n_bytes:,}", place)


def _is_dead(folder: Path) -> bool:
    """Whether a folder belongs to this user and the process that locked it has ended."""
    path, user = folder / LOCK, getattr(os, "geteuid", int)()
    found, lock = os.lstat(folder), os.lstat(path)
    is_ours = stat.S_ISDIR(found.st_mode) and stat.S_ISREG(lock.st_mode) and {found.st_uid, lock.st_uid} == {user}
    # a process writes its number into the file once it has locked it
    return is_ours and lock.st_size > 0 and is_unlocked(path)
