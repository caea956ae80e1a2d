"""Compiled loops: arrays in, arrays out; `text`, `sketch` and `cluster` by what they serve, `intrinsics` beneath them.

Only numba and NumPy come in, and nothing here knows of sources, files or threads; callers validate.

Importing this package calls one that does nothing: Numba loads what it knows of NumPy at the first call of any compiled
function, some 0.2 s, and that is better spent where imports are expected to take time than in somebody's first fit.
"""

from __future__ import annotations

import logging

import numba as nb
from numba.core import event

logger = logging.getLogger(__name__)
FUSED = {"contract"}  # fastmath: multiply and add with one rounding; nothing that would change the order of a sum


class Announcement(event.Listener):
    """Logs, once in a process, that kernels are compiled: their cache holds none yet for this kind of data."""

    done = False

    def on_start(self, event):
        """Called where numba begins to compile a function."""
        if not self.done and event.data["dispatcher"].py_func.__module__.startswith(__name__):
            self.done = True
            logger.info("compiling kernels, once; later fits of such data begin some seconds sooner")

    def on_end(self, event):
        """Called where it has ended."""


@nb.njit(nogil=True, cache=True)
def start():
    """Do nothing, compiled."""


start()
ANNOUNCEMENT = Announcement()
event.register("numba:compile", ANNOUNCEMENT)
