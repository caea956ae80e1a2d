"""Compiled loops: arrays in, arrays out; `text`, `sketch` and `cluster` by what they serve, `intrinsics` beneath them.

Only numba and NumPy come in, and nothing here knows of sources or threads; callers validate. `compiling` is how kernels
are compiled, and `precompile` is the program that compiles those of a first fit.
"""

from __future__ import annotations

FUSED = {"contract"}  # fastmath: multiply and add with one rounding; nothing that would change the order of a sum
