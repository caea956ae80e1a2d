"""Kernels of first fits, which importing this module loads: for a process that others are forked from.

Each of these would take a quarter of a second to load them itself.
"""

from __future__ import annotations

import time

import numba as nb
from numba.core.sigutils import normalize_signature

from streamkm.kernels import ahead
from tests.first_fits import KINDS

MOST_SECONDS = 60  # a test waits meanwhile; where nothing is compiled yet, the rest is left to those who need it

if not nb.config.DISABLE_JIT:
    begun = time.monotonic()
    for name, argument_types in dict.fromkeys(entry for kind in KINDS for entry in ahead.kernels_of(kind)):
        if time.monotonic() > begun + MOST_SECONDS:
            break
        try:
            ahead.dispatcher(name).compile(normalize_signature(argument_types)[0])
        except (AttributeError, nb.core.errors.NumbaError) as error:
            raise ImportError(f"no kernel {name} of {argument_types}: see tests.first_fits") from error
