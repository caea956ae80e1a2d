"""LLVM forms of plain Python functions.

`numba.extending.overload` with an intrinsic inside compiles a function around it for every signature, also where it is
inlined and thrown away: half of what a first fit compiled. Here a function is given its LLVM form directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core.typing.templates import infer, infer_global, make_intrinsic_template


def compiled_form(meaning: Callable[..., Any], *, prefer_literal: bool = False) -> Callable[..., Any]:
    """Give compiled callers of a plain function an LLVM form; other callers, and ``NUMBA_DISABLE_JIT=1``, run it.

    Parameters
    ----------
    meaning : function
        What the form does.
    prefer_literal : bool
        Whether the form is given the values of literal numbers.

    Returns
    -------
    decorator
        Of a function as `numba.extending.intrinsic` takes it: (typing context, *types) to (signature, code generator).
    """

    def register(definition):
        template = make_intrinsic_template(meaning, definition, meaning.__name__, prefer_literal=prefer_literal)
        infer(template)
        infer_global(meaning, types.Function(template))
        return definition

    return register
