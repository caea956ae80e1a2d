"""The kernels that a first fit calls, and programs that compile them beside it: a share of them, or all.

A fit that compiles too begins at the other end of the list; one that has no memory for that asks for what it needs.
Kernels that the cache holds are loaded, in some milliseconds. Imports numba and the standard library; kernels where it
compiles them.
"""

from __future__ import annotations

import gc
import json
import select
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from numba import types
from numba.core.sigutils import normalize_signature

IDLE_SECONDS = 5
"""How long `compile_as_asked` waits for another question."""
LIST = Path(__file__).with_name("first_fits.json")
"""By what is fitted ("dense float32"): kernels and the types of their arguments, in the order in which a fit calls
them. ``python -m tests.first_fits`` writes it."""

OTHER_CALLS = "other calls"
"""In the list: what small fits, kernel fits, predictions, sweeps and searches for near-duplicates call."""


@cache
def kernels_of(first_fit: str) -> tuple[tuple[str, str], ...]:
    """Kernels that a first fit calls.

    Parameters
    ----------
    first_fit : str
        What is fitted; of what the list has not there are none.

    Returns
    -------
    tuple of (str, str)
        Names and types of arguments, in the order of the calls: ("cluster.totals.join", "(float64[::1], ...)").
    """
    found = json.loads(LIST.read_text()).get(first_fit, [])
    return tuple((name, argument_types) for name, argument_types in found)


def listed_kernels(*, large_fits_only: bool) -> tuple[tuple[str, str], ...]:
    """All kernels of the list, each once, as of `kernels_of`; or without those that only `OTHER_CALLS` need."""
    kinds = [kind for kind in json.loads(LIST.read_text()) if not (large_fits_only and kind == OTHER_CALLS)]
    return tuple(dict.fromkeys(entry for kind in kinds for entry in kernels_of(kind)))


def name_of(function: Any) -> str:
    """A kernel's name in the list: its module below `streamkm.kernels`, and its own."""
    return f"{function.__module__.removeprefix('streamkm.kernels.')}.{function.__qualname__}"


def text_of(argument_types: Any) -> str:
    """Types of arguments as the list has them: what `numba.njit` takes as a signature."""
    return f"({', '.join(map(_text, argument_types))},)"


def _text(one: Any) -> str:
    if isinstance(one, types.Array):
        if one.mutable and one.aligned and one.layout == "C":
            return f"{_text(one.dtype)}[{':,' * (one.ndim - 1)}::1]"
        return f"Array({_text(one.dtype)}, {one.ndim}, {one.layout!r}, {not one.mutable}, aligned={one.aligned})"
    if isinstance(one, types.BaseTuple):
        return f"Tuple(({', '.join(map(_text, one))},))"
    return "boolean" if one == types.boolean else str(one)


def dispatcher(name: str) -> Any:
    """The kernel of a name in the list."""
    module, function = name.rsplit(".", 1)
    return getattr(import_module(f"streamkm.kernels.{module}"), function)


def compile_ahead(first_fit: str, helper: int, n_helpers: int) -> None:
    """Compile one helper's share of the kernels that a first fit calls.

    Parameters
    ----------
    first_fit : str
    helper, n_helpers : int
        The share: every `n_helpers`-th, from the `helper`-th last.
    """
    gc.disable()
    later = [entry for entry in kernels_of(first_fit) if not entry[0].startswith("text.")]  # the fit begins with these
    for name, argument_types in later[::-1][helper::n_helpers]:
        compile_kernel(name, argument_types)


def compile_as_asked(first_fit: str) -> None:
    """Compile kernels that are asked for on stdin, and in between all that a first fit calls, the first first.

    A question is a line, a JSON list of name and types; the answer a line on stdout when the cache holds the kernel.
    Ends when no more can come, or none has come for `IDLE_SECONDS`.

    Parameters
    ----------
    first_fit : str
    """
    gc.disable()
    todo = list(kernels_of(first_fit))
    while todo or select.select([sys.stdin], [], [], IDLE_SECONDS)[0]:
        if todo and not select.select([sys.stdin], [], [], 0)[0]:
            compile_kernel(*todo.pop(0))
            continue
        question = sys.stdin.readline()  # one at a time: none waits behind it
        if not question:
            return
        compile_kernel(*json.loads(question))
        sys.stdout.write("compiled\n")
        sys.stdout.flush()


def compile_kernel(name: str, argument_types: str) -> None:
    """Compile a kernel for types of arguments, or load it."""
    signature, _ = normalize_signature(argument_types)
    dispatcher(name).compile(signature)
