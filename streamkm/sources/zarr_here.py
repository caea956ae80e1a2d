"""Zarr's reads in the thread that asks for them: as many threads decode as an executor was told to use, and no others.

zarr gives every read to one event loop of its own, which gives it to a pool of some five threads a processor. One
thread that reads so keeps 1.4 processors busy, and two workers of one thread get in each other's way. Here a read has
a loop to itself, in the caller's thread, whose pool does what it is given at once. May import zarr.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from zarr.storage import LocalStore, MemoryStore, ZipStore

from streamkm.sources.zarr_remote import RemoteStore

Result = TypeVar("Result")

_ANY_LOOP = (LocalStore, MemoryStore, ZipStore, RemoteStore)  # others may belong to the loop that they were opened on


def read_rows(array: Any, start: int, stop: int) -> NDArray[Any]:
    """Read rows of a `zarr.Array`, decoding in this thread; objects behind a URL are still asked for at once.

    Costs some 0.3 ms beside the read. Where this thread runs an event loop already, as notebooks' do, zarr's own reads.
    """
    if not isinstance(array.store, _ANY_LOOP) or _is_in_a_loop():
        return np.asarray(array[start:stop])
    return np.asarray(asyncio.run(_rows(array, start, stop)))


async def _rows(array: Any, start: int, stop: int) -> Any:
    asyncio.get_running_loop().set_default_executor(_AtOnce(1))
    return await array.async_array.getitem((slice(start, stop),))


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class _AtOnce(ThreadPoolExecutor):
    """A pool without threads: a call is done when it was submitted. Loops take nothing but thread pools."""

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)
        return future
