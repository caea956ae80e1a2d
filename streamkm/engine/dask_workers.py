"""The look at each worker before it is used: whether it has this package, and what results depend on, as this process.

Another release would give other results without a word, and a worker without the package would end at its first call.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from streamkm.core.exceptions import ClusterError
from streamkm.core.version import environment

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0  # for a worker to say what it has; one that does not is not refused
MOST_NAMED = 3  # workers that an error names
# text, as a worker that lacks this package, or has another Python, could not load a function of it
EXPRESSION = f"__import__({environment.__module__!r}, fromlist=['*']).{environment.__name__}()"


def check_workers(client: Any, addresses: Iterable[str]) -> None:
    """Refuse workers that cannot import this package, or have another release of it, of Python or of NumPy.

    Workers are asked at the same time, by the public API of `distributed.Client` alone.

    Raises
    ------
    ClusterError
        Names the workers and the remedy.
    """
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
    """What each worker says that it has, or the error."""
    questions = (
        asyncio.wait_for(client.run(eval, EXPRESSION, workers=[address], asynchronous=True), ANSWER_SECONDS)
        for address in addresses
    )
    return [
        found if isinstance(found, BaseException) else found[address]
        for address, found in zip(addresses, await asyncio.gather(*questions, return_exceptions=True), strict=True)
    ]


def _named(workers: list[str]) -> str:
    more = len(workers) - MOST_NAMED
    return ", ".join(workers[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
