"""Compiling kernels before they are needed, by several processes: what ``streamkm warm`` does.

Imports numba where it compiles, `kernels.precompile` and the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from streamkm.kernels.precompile import compile_kernel, dispatcher


@dataclass(frozen=True, slots=True)
class Warmed:
    """What was compiled, and where it is kept.

    Attributes
    ----------
    n_kernels, n_compiled : int
        Kernels that were asked for, and those among them that the cache did not hold.
    folder : str
        That all of them are kept in.
    """

    n_kernels: int
    n_compiled: int
    folder: str


def warm(kernels: Sequence[tuple[str, str]], n_processes: int, advance: Callable[[], None]) -> Warmed:
    """Have the cache hold kernels.

    Parameters
    ----------
    kernels : sequence of (str, str)
        Names and types of arguments; see `precompile.kernels_of`.
    n_processes : int
        That compile side by side.
    advance : callable
        Called for each kernel that the cache holds.
    """
    # before processes are started, which keep what they compile where this one would
    folder = os.path.commonpath([dispatcher(name).stats.cache_path for name, _ in kernels])
    n_compiled = 0
    with _mapping(n_processes) as run:
        for was_compiled in run(_compiled, kernels):
            n_compiled += was_compiled
            advance()
    return Warmed(len(kernels), n_compiled, folder)


@contextmanager
def _mapping(n_processes: int) -> Iterator[Callable[..., Any]]:
    """A `map` that so many processes share; this process alone for one."""
    if n_processes == 1:
        yield map
        return
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as pool:
        yield pool.map


def _compiled(kernel: tuple[str, str]) -> bool:
    """Compile or load a kernel; whether the cache did not hold it."""
    misses = dispatcher(kernel[0]).stats.cache_misses
    before = sum(misses.values())
    compile_kernel(*kernel)
    return sum(dispatcher(kernel[0]).stats.cache_misses.values()) > before
