"""Zarr's reads by one helper of each thread that asks: as many threads decode as the executor has, and no more.

zarr gives every read to one event loop of its own, which gives it to a pool of some five threads a processor. One
thread that reads so keeps 1.4 processors busy, and two workers of one thread get in each other's way. Here a read has a
loop to itself, in the caller's thread, which waits for the one thread that decodes for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from zarr.storage import LocalStore, MemoryStore, ZipStore

from streamkm.core.pools import start
from streamkm.sources.remote.zarr import RemoteStore

Result = TypeVar("Result")

_ANY_LOOP = (LocalStore, MemoryStore, ZipStore, RemoteStore)  # others may belong to the loop that they were opened on


def read_rows(array: Any, start: int, stop: int) -> NDArray[Any]:
    """Read rows of a `zarr.Array`, decoding storage chunk by storage chunk; objects behind a URL are asked for at once.

    Costs some 0.3 ms beside the read. Where this thread runs an event loop already, as notebooks' do, zarr's own reads.
    """
    if not isinstance(array.store, _ANY_LOOP) or _is_in_a_loop():
        return np.asarray(array[start:stop])
    return np.asarray(asyncio.run(_rows(array, start, stop)))


async def _rows(array: Any, start: int, stop: int) -> Any:
    asyncio.get_running_loop().set_default_executor(_OneHelper(1))
    return await array.async_array.getitem((slice(start, stop),))


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _OneHelper(ThreadPoolExecutor):
    """The one thread that decodes for this thread. A loop shuts its pool down at the end; this thread stays.

    Decoding in the thread that goes on with the rows gives all that both free back to the system, and has it again
    page by page: that took a reader twice the processor time.
    """

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        if not hasattr(_MINE, "helper"):
            _MINE.helper = ThreadPoolExecutor(1, thread_name_prefix="streamkm-decode")
        helper: ThreadPoolExecutor = _MINE.helper
        return start(helper, fn, *args, **kwargs)


_MINE = threading.local()
