"""The files of a directory, as they were when it was opened: an array that is stored as many of them.

Responsible for noting sizes and times of change of all, in 24 bytes a file, and for comparing those that are read. May
import local and errors.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.sources.local import FileVersion, copies_hint, refuse_special, time_text


@dataclass(frozen=True, slots=True)
class _Table:
    """Hashes of names, in rising order, with sizes and times of change: int64 arrays (files,)."""

    names: NDArray[np.int64]
    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    n_counted: int

    @classmethod
    def of(cls, root: str, counted: Callable[[str], bool]) -> _Table:
        rows = [(_hash(name), file.st_size, file.st_mtime_ns, counted(name)) for name, file in _reader(root)]
        found = np.array(rows, np.int64).reshape(-1, 4)
        names, sizes, times, marks = found[np.argsort(found[:, 0])].T.copy()
        return cls(names, sizes, times, int(marks.sum()))

    def __str__(self) -> str:
        """All files in few numbers, and a hash of their names, sizes and times."""
        digest = hashlib.blake2b(digest_size=16)
        for column in (self.names, self.sizes, self.times):
            digest.update(column.astype("<i8", copy=False).data)
        newest = time_text(int(self.times.max(initial=0)))
        files = f"{len(self.names):,} files of {self.sizes.sum():,} bytes, the newest last modified {newest}"
        return f"{files} (hash of names, sizes and times {digest.hexdigest()})"

    def version(self, name: str) -> FileVersion | None:
        """What a file was; None where there was none."""
        wanted = _hash(name)
        at = int(np.searchsorted(self.names, wanted))
        if at == len(self.names) or self.names[at] != wanted:
            return None
        return FileVersion(int(self.sizes[at]), int(self.times[at]), None)


class WatchedFiles:
    """Files of a directory and of those in it, hidden ones left out, as they are when this is made.

    The table of them stays in the process. A copy in another process looks at all files again, once, when it is first
    asked, and compares a hash.

    `counted`: tells which names count. `n_bytes`: of all files. `n_counted`: how many count. Raises
    SourceNotFoundError, SourceError: no such directory, or what is neither a file nor a directory in it.
    """

    def __init__(self, root: str, counted: Callable[[str], bool]) -> None:
        self._root, self._counted = root, counted
        table = _Table.of(root, counted)
        self._told = str(table)
        self._start(table)
        self.n_bytes, self.n_counted = int(table.sizes.sum()), table.n_counted

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_lock", "_table")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start(None)

    def _start(self, table: _Table | None) -> None:
        self._lock = threading.Lock()
        self._table = table

    def check(self, names: Iterable[str]) -> None:
        """Refuse files, named from the directory on, that are not as they were. One call of the system for each.

        Raises SourceError: one that was changed, or is there now and was not, or is gone; in other processes, also
        where any file of the directory is not as it was.
        """
        table = self._now()
        for name in names:
            path, then = os.path.join(self._root, name), table.version(name)
            try:
                now = FileVersion.of(os.stat(path))
            except (FileNotFoundError, NotADirectoryError):
                now = None
            if then != now and (then is None or now is None or not then.is_same(now)):
                raise SourceError(
                    f"{path} was changed while it was in use: it was {then or 'missing'} when the source was opened "
                    f"and is {now or 'missing'} now; open the source again once it is complete"
                )

    def __contains__(self, name: object) -> bool:
        return self._now().version(str(name)) is not None

    def _now(self) -> _Table:
        with self._lock:
            if self._table is None:
                table = _Table.of(self._root, self._counted)
                if (now := str(table)) != self._told:
                    raise SourceError(
                        f"{self._root} was changed while it was in use: it was {self._told} when it was opened and is "
                        f"{now} now; open the source again once it is complete{copies_hint(elsewhere=True)}"
                    )
                self._table = table
            return self._table


def _reader(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Names and states of all files; links to directories are followed, each directory once."""
    todo, seen = [""], set()
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in entries:
                    # hidden files are those of Zarr 2 and what programs leave behind for a while
                    if entry.name.startswith(".") and not entry.name.startswith(".z"):
                        continue
                    name, status = f"{folder}{entry.name}", entry.stat()
                    refuse_special(entry.path, status)
                    if not entry.is_dir():
                        yield name, status
                    elif (status.st_dev, status.st_ino) not in seen:
                        seen.add((status.st_dev, status.st_ino))
                        todo.append(f"{name}/")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SourceNotFoundError(f"{os.path.join(root, folder)} does not exist") from error
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(f"{os.path.join(root, folder)} cannot be read: {error.strerror}") from error


def _hash(name: str) -> int:
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)
