"""Memory limits of this process: their syntax, defaults of machine and container, and memory returned to the system."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.process import Shared

AUTO_SHARE = 0.8  # of the machine's memory, or of the container's limit
CROWDED_SHARE, FULL_SHARE = 0.5, 0.8  # of a limit
LARGE_BLOCK = 1 << 17  # bytes, where a limit is near; at the end of the call,
LARGEST_IN_HEAP = 32 << 20  # what the C library's own rule goes up to: DEFAULT_MMAP_THRESHOLD_MAX of malloc.c
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # options' numbers in malloc.h
_POWERS = {letter: power for power, letter in enumerate("KMGT", start=1)}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]I?)?B?|(%))\s*", re.IGNORECASE)
_WITH_PROCESS = re.compile(r"\s*(.*?)\s*,\s*process\s+(.*?)\s*", re.IGNORECASE)
_CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def memory_limit_bytes(limit: Any) -> int:
    """Resident bytes that this process may take at most. Raises InvalidParameterError for any other `limit`.

    `limit`: an int is bytes; a float up to 1 or text like "50%" is a share of the machine's memory, or of the
    container's limit; "auto" is 80 % of that; text like "1 GiB" or "500 MB" is a size. Memory that happens to be free
    does not matter: the same call gives the same limit. A mapping of ``limit`` and ``process_memory``, or text like "1
    GiB, process 256 MiB", also gives `given_process_memory`.
    """
    return _bytes_of(_parts(limit)[0], limit) if is_given(limit) else int(AUTO_SHARE * total_memory())


def given_process_memory(limit: Any) -> int | None:
    """Bytes that a limit reserves for the process beside data; None if they are to be measured."""
    process = _parts(limit)[1]
    return None if process is None else _bytes_of(process, limit)


def with_process_memory(limit: Any, n_bytes: int) -> Any:
    """A limit with the given bytes for the process beside data; "auto" stays "auto"."""
    return {"limit": _parts(limit)[0], "process_memory": n_bytes} if is_given(limit) else limit


def _parts(limit: Any) -> tuple[Any, Any]:
    """The limit proper, and the memory that it reserves for the process, or None."""
    if isinstance(limit, Mapping):
        if set(limit) != {"limit", "process_memory"}:
            raise _refused(limit)
        return limit["limit"], limit["process_memory"]
    found = _WITH_PROCESS.fullmatch(limit) if isinstance(limit, str) else None
    return (limit, None) if found is None else (found[1], found[2])


def _bytes_of(size: Any, limit: Any) -> int:
    """A size in bytes; `limit` is what a refusal quotes."""
    number = isinstance(size, Real) and not isinstance(size, bool)
    if number and isinstance(size, Integral) and int(size) > 0:
        return int(size)
    if number and 0 < float(size) <= 1:
        return int(float(size) * total_memory())
    found = _TEXT.fullmatch(str(size)) if isinstance(size, str) else None
    if found is not None and float(found[1]) > 0:
        if found[3] is None:
            unit = (found[2] or "").upper()
            base = 1024 if unit.endswith("I") else 1000
            return int(float(found[1]) * (base ** _POWERS[unit[0]] if unit else 1))
        if float(found[1]) <= 100:
            return int(float(found[1]) / 100 * total_memory())
    raise _refused(limit)


def _refused(limit: Any) -> InvalidParameterError:
    return InvalidParameterError(
        f'memory_limit={limit!r}; needed: "auto", bytes, a share like 0.5 or "50%", text like "1 GiB" or '
        f'"1 GiB, process 256 MiB", or {{"limit": "1 GiB", "process_memory": "256 MiB"}}'
    )


def is_given(limit: Any) -> bool:
    """Whether a limit was given, not "auto"."""
    return not (isinstance(limit, str) and limit == "auto")


def resident_bytes() -> int:
    """Bytes of memory that this process holds now."""
    return int(_process(os.getpid()).memory_info().rss)


@lru_cache(maxsize=1)
def _process(number: int) -> Any:
    """A process by its number, cached: looking up its start time takes longer than asking for its memory."""
    import psutil

    return psutil.Process(number)


def trim_heap(limit_bytes: int, expected_bytes: int = 0) -> None:
    """Return freed memory that the C library keeps, if the process nears its limit or holds more than `expected_bytes`.

    Memory freed by one stage stays in the heaps of its threads, where other threads cannot use it: 10 to 110 MiB
    measured. Allocating it again costs some 10 ms. If the process holds most of its limit, large blocks are returned at
    once from then on, until `heap_restored` ends, so that heaps do not grow within a stage. Without glibc nothing
    happens. `expected_bytes`: memory of the process in the stages to come.
    """
    if sys.platform != "linux":
        return
    held = resident_bytes()
    most = max(held, expected_bytes)
    if most <= CROWDED_SHARE * limit_bytes and not 0 < expected_bytes < held:
        return
    if most > FULL_SHARE * limit_bytes:
        heap_restored.large_blocks_apart()
    _c_function("malloc_trim")(0)


class _Heap(Shared):
    """The settings of the C library's heap, shared by calls that have not ended."""

    told = False

    def large_blocks_apart(self) -> None:
        """Have large blocks come from the system, and return to it, until the last call ends."""
        with self.lock:
            if self.n_inside and not self.told and not _is_bound():
                self.told = True
                _c_function("mallopt")(_M_MMAP_THRESHOLD, LARGE_BLOCK)

    def end(self) -> None:
        """Restore the C library's largest own bound between heap and system."""
        if self.told:
            _c_function("mallopt")(_M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
            _c_function("mallopt")(_M_TRIM_THRESHOLD, 2 * LARGEST_IN_HEAP)
        self.told = False


heap_restored = _Heap()
"""Context manager that undoes the settings of `trim_heap` when the last of all threads leaves it.

By default glibc raises its bound between heap and system to the largest freed block, at most 32 MiB. A set bound cannot
be read, nor that rule restored, so the maximum is set.
"""


def _is_bound() -> bool:
    """Whether this process started with bounds for its heap, as Dask's workers do; large blocks are then separate."""
    begun = Path("/proc/self/environ").read_bytes()  # what was set later, the C library has not seen
    return any(name in begun for name in (b"MALLOC_TRIM_THRESHOLD_", b"MALLOC_MMAP_THRESHOLD_"))


def _c_function(name: str) -> Any:
    """A function of the C library; without one, a function that does nothing."""
    import ctypes

    return getattr(ctypes.CDLL(None), name, lambda *_: None)


def total_memory() -> int:
    """Bytes of the machine, or of the container's limit."""
    import psutil

    return min([int(psutil.virtual_memory().total), *(limit for limit, _ in _containers())])


def available_memory() -> int:
    """Bytes that this process can still take: the machine's, or what a container leaves."""
    import psutil

    left = [limit - usage for limit, usage in _containers()]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def human_bytes(n_bytes: float) -> str:
    """Bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} TiB"


def _containers() -> list[tuple[int, int]]:
    """Limits and usages of the control groups that this process is in, for those that have a limit."""
    found = []
    for limit_file, usage_file in _CONTAINERS:
        try:
            with open(limit_file) as limit, open(usage_file) as usage:
                text = limit.read().strip()
                if text != "max":
                    found.append((int(text), int(usage.read())))
        except OSError:
            continue  # no such control group: the machine's memory counts
    return found
