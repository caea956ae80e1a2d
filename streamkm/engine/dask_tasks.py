"""Functions that run on the workers of a Dask cluster, and the conditions that they set there.

A call gets its items with futures in place of held blocks. BLAS has one thread while it runs, and Dask learns the size
of its results. The error for a file that cannot be read names the worker. Knows nothing of the client.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import scipy.sparse as sp
from dask.sizeof import sizeof

from streamkm.core.blas import ONE_BLAS_THREAD
from streamkm.core.exceptions import OutputError, SourceError, SourceNotFoundError
from streamkm.engine.reduction import fold_run


@dataclass(frozen=True, slots=True)
class Which:
    """The place of a held block in the result of its future."""

    index: int


def decoded(item: Any) -> Any:
    """The item with results in place of futures; of a list, each of its items."""
    if isinstance(item, list):
        return [decoded(each) for each in item]
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Which):
        return item[0][item[1].index]
    return item


def unpacked(packed: bytes) -> Any:
    """A value that was shared."""
    return measurable(cloudpickle.loads(packed))


def work(function: Callable[..., Any], item: Any, *shared: Any) -> Any:
    """Call for one item; see `Executor.map`."""
    with _on_worker():
        return function(decoded(item), *shared)


def work_each(function: Callable[..., tuple[Any, Any]], run: list[Any], *shared: Any) -> tuple[list[Any], list[Any]]:
    """Call the function for each item of a run; return large and small results. See `Executor.hold`."""
    with _on_worker():
        pairs = [function(decoded(item), *shared) for item in run]
    return measurable([kept for kept, _ in pairs]), measurable([small for _, small in pairs])


def work_on_run(run: list[Any], step: Callable[..., tuple[Any, Any]], *shared: Any) -> tuple[Any, list[Any]]:
    """Carry a state over a run; return the state and the outputs. See `Executor.fold`."""
    with _on_worker():
        state, outputs = fold_run(decoded(run), step, *shared)
    return measurable(state), outputs


def work_on_state(run: list[Any], step: Callable[..., tuple[Any, Any]], *shared: Any) -> Any:
    """Carry a state over a run whose outputs are dropped."""
    return work_on_run(run, step, *shared)[0]


def part(both: tuple[Any, Any], which: int) -> Any:
    """One of the two results of a call."""
    return both[which]


def measurable(value: Any) -> Any:
    """Tell Dask the size of a value, by which it places calls and decides what to move and to spill.

    Dask counts an object of an unknown class as some fifty bytes; a block may have millions.
    """
    for piece in value if isinstance(value, list | tuple) else (value,):
        if (is_dataclass(piece) or sp.issparse(piece)) and type(piece) not in _MEASURED:
            _MEASURED.add(type(piece))
            sizeof.register(type(piece), _bytes_of)
        if isinstance(piece, tuple):
            measurable(piece)
    return value


def _bytes_of(value: Any) -> int:
    """Bytes of all arrays of a value."""
    if is_dataclass(value):
        return sum(_bytes_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, list | tuple):
        return sum(map(_bytes_of, value))
    if sp.issparse(value):
        return sum(int(getattr(value, name).nbytes) for name in ("data", "indices", "indptr") if hasattr(value, name))
    return int(sizeof(value))


_MEASURED: set[type] = set()


@contextmanager
def _on_worker() -> Iterator[None]:
    """Run a call with one BLAS thread; errors of reading and writing name this worker."""
    from distributed import get_worker

    try:
        with ONE_BLAS_THREAD:
            yield
    except OutputError as error:
        raise type(error)(f"{error}, seen from worker {get_worker().address}") from error
    except (SourceError, FileNotFoundError, PermissionError) as error:
        causes = (error, error.__cause__)
        missing = any(isinstance(each, FileNotFoundError) for each in causes)
        seen = f"{error}, seen from worker {get_worker().address}"
        # what has a URL is at the same place for everybody: objects change there, and credentials are refused
        if "://" not in str(error):
            seen = f"{seen} in {os.getcwd()}"
            if missing or any(isinstance(each, PermissionError) for each in causes):
                seen = f"{seen}; every worker must see the data under the same path"
        raise (SourceNotFoundError if missing else SourceError)(seen) from error
