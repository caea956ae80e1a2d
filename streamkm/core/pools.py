"""Pools of threads, also while the interpreter ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def start(pool: ThreadPoolExecutor, function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
    """Have a pool call a function; once the main thread has ended, pools take nothing, and this thread calls it."""
    try:
        return pool.submit(function, *args, **kwargs)
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error):
            raise
    _say_once()
    future: Future[Result] = Future()
    try:
        future.set_result(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001 - as the pool would
        future.set_exception(error)
    return future


@cache
def _say_once() -> None:
    logger.warning("the main thread has ended, and pools of threads with it: one thread does the rest")
