"""Switches of the process that threads share, such as that of the cyclic garbage collector.

The collector is kept off where running would stop the process for good, or only take time.
"""

from __future__ import annotations

import gc
import threading


class Shared:
    """Context manager of many threads: `begin` is called when the first enters, `end` when the last has left."""

    def __init__(self) -> None:
        self.lock, self.n_inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self.lock:
            if not self.n_inside:
                self.begin()
            self.n_inside += 1

    def __exit__(self, *raised: object) -> None:
        with self.lock:
            self.n_inside -= 1
            if not self.n_inside:
                self.end()

    def begin(self) -> None:
        """Do nothing; the lock is held."""

    def end(self) -> None:
        """Do nothing; the lock is held."""


class CollectorOff(Shared):
    """Context manager: no collection begins inside, in any thread; several threads may be inside.

    For callers that fetch while they hold a library's lock. Bytes come by another thread; had that one to collect an
    object of the library, whose end waits for the lock, both would wait for ever (h5py's issue 2019). What there is to
    collect is collected afterwards, by a collector that is left as it was found.
    """

    def begin(self) -> None:
        """Switch it off."""
        self._was_on = gc.isenabled()
        gc.disable()

    def end(self) -> None:
        """Switch it on again, if it was."""
        if self._was_on:
            gc.enable()


collector_off = CollectorOff()
"""Of the process."""
