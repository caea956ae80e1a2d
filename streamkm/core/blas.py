"""BLAS held to one thread while anything of streamkm runs.

Products of rows are made by kernels of our own. What is left to BLAS and LAPACK are small matrices that are made once
in one process (eigenvectors, singular vectors, triangular factors, QR): their last bits depend on the library and on
its threads, but not on how rows are cut or who reads them.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import threadpoolctl

from streamkm.core.process import Shared

logger = logging.getLogger(__name__)


class _OneThread(Shared):
    """A context that any number of threads may be in: BLAS has its own threads again when the last one leaves."""

    def __init__(self) -> None:
        super().__init__()
        self._n_modules = 0
        self._found: threadpoolctl.ThreadpoolController | None = None
        self._limits: Any = None

    def begin(self) -> None:
        """Take its threads."""
        _take_control()
        self._limits = self._controller().limit(limits=1, user_api="blas")

    def end(self) -> None:
        """Give them back."""
        _take_control()
        self._limits.restore_original_limits()
        _take_control()  # from this thread, for others

    def _controller(self) -> threadpoolctl.ThreadpoolController:
        """The libraries of this process, looked for (3 ms) whenever other modules are imported than the last time."""
        if self._found is None or self._n_modules != len(sys.modules):
            self._n_modules, self._found = len(sys.modules), threadpoolctl.ThreadpoolController()
            if not any(library["user_api"] == "blas" for library in self._found.info()):
                logger.info("no BLAS is known to threadpoolctl: it may use more threads, and differ in last bits")
        return self._found


def _take_control() -> None:
    """Have this thread's word count: recent threadpoolctl heeds the first that set a limit, and no other thread."""
    clear = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


ONE_BLAS_THREAD = _OneThread()
