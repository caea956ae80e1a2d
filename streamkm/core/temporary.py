"""Folders of temporary files, which dead processes leave to the next run."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from streamkm.core.atomic_io import Lock
from streamkm.core.partial_files import is_unlocked

PREFIX, LOCK = "streamkm-", "streamkm.lock"

logger = logging.getLogger(__name__)


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
    """Whether a folder is this user's, and the process that locked it has ended."""
    path, user = folder / LOCK, getattr(os, "geteuid", int)()
    found, lock = os.lstat(folder), os.lstat(path)
    is_ours = stat.S_ISDIR(found.st_mode) and stat.S_ISREG(lock.st_mode) and {found.st_uid, lock.st_uid} == {user}
    # a process writes its number into the file once it has locked it
    return is_ours and lock.st_size > 0 and is_unlocked(path)
