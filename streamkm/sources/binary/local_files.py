"""The state of a directory's files when it was opened, for arrays that are stored as many files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.sources.local import COPIES_HINT, FileVersion, changed, status_of

_FILE = np.dtype([("name", "i8"), ("size", "i8"), ("time", "i8")])  # `name`: a hash


class WatchedFiles:
    """Files of a directory and of its subdirectories, hidden ones left out, in their state at construction.

    The table takes 24 bytes a file and stays in the process. A copy in another process scans all files once, at its
    first check, and compares a hash. `n_bytes`: size of all files. `n_counted`: number of names for which `counted` is
    true. Raises SourceNotFoundError, SourceError: no such directory, or special files in it.
    """

    def __init__(self, root: str, counted: Callable[[str], bool]) -> None:
        self._root, self.n_counted = root, 0

        def seen() -> Iterator[tuple[int, int, int]]:
            for name, file in _walk(root):
                self.n_counted += counted(name)
                yield _hash(name), file.st_size, file.st_mtime_ns

        table = np.fromiter(seen(), _FILE)
        self.table = table[np.argsort(table["name"])]
        self.n_bytes = int(self.table["size"].sum())
        digest = hashlib.blake2b(self.table.data, digest_size=16).hexdigest()
        self.told = f"{len(self.table):,} files of {self.n_bytes:,} bytes (hash of names, sizes and times {digest})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "table": None}

    def check(self, names: Iterable[str]) -> None:
        """Refuse files that were changed, added or removed, with SourceError; one system call for each name.

        In other processes, a change of any file of the directory counts.
        """
        for name in names:
            path, then = os.path.join(self._root, name), self._version(name)
            try:
                now = FileVersion.of(os.stat(path))
            except (FileNotFoundError, NotADirectoryError):
                now = None
            if then != now:
                raise changed(path, then or "missing", now or "missing")

    def __contains__(self, name: object) -> bool:
        return self._version(str(name)) is not None

    def _version(self, name: str) -> FileVersion | None:
        """The state of a file; None if it did not exist."""
        if self.table is None:
            now = WatchedFiles(self._root, lambda _: False)
            if now.told != self.told:
                raise changed(self._root, self.told, now.told, COPIES_HINT)
            self.table = now.table
        found = self.table[np.searchsorted(self.table["name"], _hash(name)) :][:1]
        if found["name"].tolist() != [_hash(name)]:
            return None
        return FileVersion(int(found["size"][0]), int(found["time"][0]))


def _walk(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Names and states of all files; links to directories are followed."""

    def refuse(error: OSError) -> None:
        kind = SourceNotFoundError if isinstance(error, FileNotFoundError | NotADirectoryError) else SourceError
        raise kind(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        folders[:] = filter(_is_seen, folders)
        at = os.path.join(folder[len(root) + 1 :], "")
        for name in filter(_is_seen, names):
            yield at + name, status_of(os.path.join(folder, name))


def _is_seen(name: str) -> bool:
    """Whether a name is that of a file of Zarr 2, or not hidden: programs leave hidden files behind for a while."""
    return name.startswith(".z") or not name.startswith(".")


def _hash(name: str) -> int:
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
