"""Workers of a Dask cluster: their memory, the calls that each gets, and the check that their software is the same."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamkm.core import environment
from streamkm.core.exceptions import ClusterError
from streamkm.core.memory import total_memory

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0  # for a worker to report its software; without an answer it is not refused
MOST_FILES = 100  # of a source that each worker is asked for
MOST_NAMED = 3  # workers that an error names
# text, as a worker that lacks this package, or has another Python, could not load a function of it
EXPRESSION = f"__import__({environment.__module__!r}, fromlist=['*']).{environment.__name__}()"


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """The memory of a worker, as the scheduler knows it."""

    n_threads: int
    limit_bytes: int  # Dask's limit of the worker; without one, its share of as much memory as this machine has
    held_bytes: int  # resident bytes when the worker was last heard of; 0 if it has not said so yet


def worker_memory(client: Any) -> tuple[WorkerMemory, ...]:
    """The memory of all connected workers; raises ClusterError if the scheduler does not answer."""
    try:
        found = client.scheduler_info(n_workers=-1)["workers"]
    except OSError as error:
        raise out_of_reach(client, error) from error
    n_here = Counter(worker["host"] for worker in found.values())
    return tuple(
        WorkerMemory(
            n_threads=int(worker["nthreads"]),
            limit_bytes=int(worker["memory_limit"] or total_memory() // n_here[worker["host"]]),
            held_bytes=int(worker["metrics"].get("memory", 0)),
        )
        for worker in found.values()
    )


def out_of_reach(client: Any, error: BaseException) -> ClusterError:
    """The error for a scheduler that does not answer."""
    reason = " ".join(str(error).split())
    return ClusterError(
        f"lost the scheduler {client.scheduler.address} ({reason}); see that it runs and can be reached, and fit again"
    )


def check_readable(paths: Sequence[str]) -> None:
    """Refuse files that this process cannot see or read."""
    for path in paths:
        if not os.path.exists(path):
            raise FileNotFoundError(f"{path} does not exist")
        if not os.access(path, os.R_OK):
            raise PermissionError(f"{path} cannot be read")


def check_workers(client: Any, addresses: Iterable[str]) -> None:
    """Raise ClusterError for workers that lack this package, or have another release of it, of Python or of NumPy."""
    here, asked = environment(), sorted(addresses)
    unlike: dict[str, list[str]] = defaultdict(list)
    for address, found in zip(asked, client.sync(_answers, client, asked), strict=True):
        if isinstance(found, OSError | TimeoutError | asyncio.TimeoutError):
            logger.warning("worker %s does not say which release of streamkm it has: %r", address, found)
        elif isinstance(found, BaseException):
            unlike[f"cannot import streamkm ({found})"].append(address)
        elif found != here:
            theirs = ", ".join(f"{name} {found.get(name)}" for name in here if found.get(name) != here[name])
            unlike[f"have {theirs}"].append(address)
    if unlike:
        raise ClusterError(
            f"{'; '.join(f'workers {_named(workers)} {fault}' for fault, workers in unlike.items())}; needed: "
            f"{', '.join(f'{name} {version}' for name, version in here.items())}, as in this process; install these "
            f"where workers run, and start them again"
        )


async def _answers(client: Any, addresses: list[str]) -> list[Any]:
    """The software of each worker, or the error."""

    async def answer(address: str) -> Any:
        asked = client.run(eval, EXPRESSION, workers=[address], asynchronous=True)
        return (await asyncio.wait_for(asked, ANSWER_SECONDS))[address]

    return await asyncio.gather(*map(answer, addresses), return_exceptions=True)


def _named(workers: list[str]) -> str:
    more = len(workers) - MOST_NAMED
    return ", ".join(workers[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


SHARE = 24  # a stretch reads this multiple of the bytes that it shares with the next
LARGE_BYTES = 64 << 20  # of the chunks of a stretch whose results are as large as they are


@dataclass(frozen=True, slots=True)
class Reading:
    """Chunks that workers read."""

    n_chunks: int
    largest_chunk: int  # decoded bytes of the largest
    shared_bytes: int  # of the source
    # whether workers read them by the source alone; else each comes with a graph of Dask tasks, or its results
    by_source: bool = True
    is_placed: bool = True  # whether this process chooses the workers, as nothing that the chunks need lies on any
    n_rows: int = 0  # of all chunks, about; 0 if that is not known

    def stretch(self, n_calls: int, n_workers: int, *, large: bool = False) -> int:
        """Consecutive calls that one worker gets; 1 if chunks share no storage.

        `n_calls` calls read about equally many chunks each, on `n_workers` processes. A stretch is long enough to read
        little twice, and at most twice as long. It is shorter if results are `large` as chunks and storage chunks are
        large.
        """
        fewest = -(-SHARE * self.shared_bytes // max(1, self.largest_chunk))
        if large:
            fewest = min(fewest, LARGE_BYTES // max(1, self.largest_chunk))
        least = -(-fewest * n_calls // self.n_chunks)
        if least <= 1 or n_workers < 2:
            return 1
        share = -(-n_calls // n_workers)
        return -(-share // max(1, share // least))  # each worker gets equal stretches


class Turns:
    """Assigns each stretch of consecutive calls to the worker with the fewest items per thread."""

    def __init__(self, stretch: int = 1) -> None:
        self.stretch = stretch
        self._given: Counter[str] = Counter()
        self._place = ""
        self._left = 0

    def place(self, n_threads: Mapping[str, int], n_items: int) -> str:
        """The worker for the next call, which has `n_items`; `n_threads` lists the workers, at least one."""
        if not self._left or self._place not in n_threads:
            self._place = min(n_threads, key=lambda worker: self._given[worker] / n_threads[worker])
            self._left = self.stretch
        self._left -= 1
        self._given[self._place] += n_items
        return self._place


SHARDS = 12  # of a pass at least: a cluster may have few threads when a pass begins, and more soon after
SHARDS_A_THREAD = 3  # fewer let threads wait for the last one; each takes two or three calls of some 2 ms

SHARD_RUNS = 1024  # at most: the client makes an object for each chunk of a shard that it starts
SHARD_ROWS = 1 << 24  # about as many rows at most: labels wait on their worker until the shard is done, here 64 MiB


def count_shards(n_threads: int, n_rows: int = 0, n_runs: int = 0) -> int:
    """Shards into which all runs of a pass are cut, if there are enough runs."""
    return max(SHARDS, SHARDS_A_THREAD * n_threads, -(-n_rows // SHARD_ROWS), -(-n_runs // SHARD_RUNS))
