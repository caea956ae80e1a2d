"""Directories that are opened once, so that names in them lead nowhere else."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self


class Directory:
    """An open directory: what is done to names in it is done there, also after its path has come to lead elsewhere.

    Windows opens no directories; there names are added to the path.

    Parameters
    ----------
    path : path
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path = Path(path)
        self._handle: int | None = None
        if sys.platform != "win32":
            self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._handle is not None:
            os.close(self._handle)

    def create(self, name: str) -> BinaryIO:
        """Open a new file to write and read it; a file or a symbolic link of that name is refused, not opened."""
        at, handle = self._at(name), self._handle
        # the flags are those of a new file: O_EXCL, which follows no link, is one of them
        return open(self._path / name, "x+b", opener=lambda _, flags: os.open(at, flags, 0o666, dir_fd=handle))

    def replace(self, old: str, new: str) -> None:
        """Give a file another name; one that has this name is replaced."""
        os.replace(self._at(old), self._at(new), src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def remove(self, name: str) -> None:
        """Remove a file or a symbolic link, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(self._at(name), dir_fd=self._handle)

    def sync(self) -> None:
        """Bring the names to the disk."""
        if self._handle is not None:
            os.fsync(self._handle)

    def _at(self, name: str) -> str:
        return name if self._handle is not None else os.fspath(self._path / name)
