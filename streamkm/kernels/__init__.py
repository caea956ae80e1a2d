"""Compiled loops: arrays in, arrays out; `text`, `sketch` and `cluster` by what they serve, `intrinsics` beneath them.

Only numba and NumPy come in, and nothing here knows of sources or threads; callers validate. `compiling` is how kernels
are compiled, and `ahead` is the program that compiles those of a first fit.

Importing this package calls one that does nothing: Numba loads what it knows of NumPy at the first call of any compiled
function, some 0.2 s, and that is better spent where imports are expected to take time than in a first fit.
"""

from __future__ import annotations

from streamkm.kernels.compiling import kernel

FUSED = {"contract"}  # fastmath: multiply and add with one rounding; nothing that would change the order of a sum


@kernel
def start():
    """Do nothing, compiled."""


start()
