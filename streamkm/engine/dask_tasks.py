"""Functions that run on the workers of a Dask cluster, and the conditions that they set there.

A call gets its items, and apart from them the results of futures. BLAS has one thread while it runs, and Dask learns
the size of its results. The error for a file that cannot be read names the worker. Knows nothing of the client.
"""

from __future__ import annotations

import io
import os
import pickle
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import reduce
from operator import getitem
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import scipy.sparse as sp
from dask.sizeof import sizeof

from streamkm.core.blas import ONE_BLAS_THREAD
from streamkm.core.exceptions import OutputError, SourceError, SourceNotFoundError
from streamkm.engine.base import Joining
from streamkm.engine.reduction import fold_shard, runs_of


def decoded(packed: bytes, results: list[Any]) -> Any:
    """The items that `dask_handles.encode` has packed, with results in place of futures."""
    return _ItemUnpickler(packed, results).load()


class _ItemUnpickler(pickle.Unpickler):
    """Puts values in the results of futures in the place of their numbers and indices."""

    def __init__(self, packed: bytes, results: list[Any]):
        super().__init__(io.BytesIO(zlib.decompress(packed)))
        self._results = results

    def persistent_load(self, place: Any) -> Any:
        number, path = place
        return reduce(getitem, path, self._results[number])


def unpacked(packed: bytes) -> Any:
    """A value that was shared."""
    return measurable(cloudpickle.loads(packed))


def work_once(function: Callable[[Any], Any], item: Any) -> Any:
    """Call the function; see `Executor.everywhere`."""
    with _on_worker():
        return function(item)


def work(function: Callable[..., Any], packed: bytes, results: list[Any], *shared: Any) -> list[Any]:
    """Call the function for each of some items; see `Executor.map`."""
    with _on_worker():
        return [function(item, *shared) for item in decoded(packed, results)]


def keep(
    function: Callable[..., tuple[Any, Any]],
    joining: Joining[Any] | None,
    infos: list[Any] | None,
    item: Any,
    *shared: Any,
) -> tuple[list[Any], Any]:
    """The step of a shard whose large results are held: the infos so far, joined if they can be; and the result."""
    large, info = function(item, *shared)
    infos = [] if infos is None else infos
    infos.append(info)
    return infos if joining is None else [joining.pairwise(*shared)(infos)], large


def work_on_shard(
    first: int,
    lengths: list[int],
    step: Callable[..., Any],
    joining: Joining[Any] | None,
    with_outputs: bool,
    packed: bytes,
    results: list[Any],
    *shared: Any,
) -> tuple[list[Any], list[Any]]:
    """Carry a state over each run of a shard, from run `first` on; return states of subtrees, and outputs or nothing.

    `lengths`: of the runs. `joining`: None for one run. See `Executor.fold`.
    """
    with _on_worker():
        join = joining.pairwise(*shared) if joining is not None else list
        runs = list(runs_of(decoded(packed, results), lengths))
        states, outputs = fold_shard(runs, first, step, join, *shared)
    return measurable(states), measurable(outputs) if with_outputs else []


def join(joining: Joining[Any], packed: bytes, results: list[Any], *shared: Any) -> Any:
    """Join states that calls have left."""
    return measurable(joining.combine(decoded(packed, results), *shared))


def part(both: tuple[Any, Any], which: int) -> Any:
    """One of the two results of a call."""
    return both[which]


def concatenated(results: list[Any], packed: bytes) -> Any:
    """Arrays in the results of calls, joined."""
    return np.concatenate(decoded(packed, results))


def measurable(value: Any) -> Any:
    """Tell Dask the size of a value, by which it places calls and decides what to move and to spill.

    Dask counts an object of an unknown class as some fifty bytes; a block may have millions.
    """
    for piece in value if isinstance(value, list | tuple) else (value,):
        if (is_dataclass(piece) or sp.issparse(piece)) and type(piece) not in _MEASURED:
            _MEASURED.add(type(piece))
            sizeof.register(type(piece), _bytes_of)
        if isinstance(piece, list | tuple):
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
