"""Compiled loops: arrays in, arrays out; callers validate.

A package is named for the layer it serves; `intrinsics` has the parts of other kernels, `compiling` compiles them.
Nothing here knows sources or threads.
"""

from __future__ import annotations

FUSED = {"contract"}  # fastmath: multiply and add with one rounding; nothing that would change the order of a sum
