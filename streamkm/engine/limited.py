"""Settings of the process while a call runs under a memory limit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from streamkm.core.memory import heap_restored, is_given
from streamkm.kernels.compiling import COMPILATION


@contextmanager
def under_limit(memory_limit: Any) -> Iterator[None]:
    """Work under a memory limit: if one was given, another process compiles kernels, as that takes memory.

    Parameters
    ----------
    memory_limit : "auto", int, float or str
        See `core.memory.memory_limit_bytes`.
    """
    with heap_restored, COMPILATION.crowded() if is_given(memory_limit) else nullcontext():
        yield
