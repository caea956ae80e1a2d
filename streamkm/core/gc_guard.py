"""The cyclic garbage collector, kept off where running would stop the process for good, or only take time.

Responsible for its switch alone.
"""

from __future__ import annotations

import gc
import threading


class CollectorOff:
    """Context manager: no collection begins inside, in any thread; several threads may be inside.

    For callers that fetch while they hold a library's lock. Bytes come by another thread; had that one to collect an
    object of the library, whose end waits for the lock, both would wait for ever (h5py's issue 2019). What there is to
    collect is collected afterwards, by a collector that is left as it was found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._was_on = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._n_inside:
                self._was_on = gc.isenabled()
                gc.disable()
            self._n_inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if not self._n_inside and self._was_on:
                gc.enable()


collector_off = CollectorOff()
"""Of the process."""
