"""Each kernel compiled by one of the processes that test at once: the others wait, and load what it has cached.

Locks are taken as callers are compiled before what they call, so that none waits for itself.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numba.core.caching import Cache, NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def share_compilation(folder: Path) -> None:
    """Have this process compile only what no other one that has called this with the same folder compiles."""
    compile_alone, save_alone = Dispatcher.compile, Cache.save_overload

    @contextmanager
    def locked(*key: object) -> Iterator[None]:
        name = hashlib.sha256(repr(key).encode()).hexdigest()
        with open(folder / name, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield  # closing the file unlocks it

    def compile_once(self: Dispatcher, signature: object) -> object:
        if isinstance(self._cache, NullCache):
            return compile_alone(self, signature)
        # this process's own lock first: a thread that holds it may need the kernel that another one is at
        with global_compiler_lock, locked(self._cache._cache_file._index_path, signature):
            return compile_alone(self, signature)

    def save_beside(self: Cache, signature: object, data: object) -> None:
        with locked(self._cache_file._index_path):  # the index of all signatures is read and written again
            save_alone(self, signature, data)

    Dispatcher.compile, Cache.save_overload = compile_once, save_beside
