"""Compiled loops: arrays in, arrays out; `text`, `sketch` and `cluster` by what they serve, `intrinsics` beneath them.

Only numba and NumPy come in, and nothing here knows of sources, files or threads; callers validate.

Importing this package calls one that does nothing: Numba loads what it knows of NumPy at the first call of any compiled
function, some 0.2 s, and that is better spent where imports are expected to take time than in somebody's first fit.
"""

from __future__ import annotations

import numba as nb


@nb.njit(nogil=True, cache=True)
def start():
    """Do nothing, compiled."""


start()
