"""Compiled loops: arrays come in, arrays go out, and callers validate. Packages are named for the layer they serve.

`intrinsics` has the parts of other kernels, and `compiling` compiles them. Nothing here knows sources or threads.
"""

from __future__ import annotations

FUSED = {"contract"}  # fastmath: multiply and add with one rounding; nothing that would change the order of a sum
