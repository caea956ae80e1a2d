"""The checkpoint of an estimator's fit: which fit it is of, and what becomes of it when that ends."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import ClusterError
from streamkm.core.memory import given_process_memory, is_given, with_process_memory
from streamkm.engine.checkpoint import PROCESS, Checkpoint, CheckpointWriter, load_record, saved_stages
from streamkm.estimators.validation import OF_THIS_RUN, digest, given_start, plain
from streamkm.planning.plan import Plan
from streamkm.sketches import OPTIONS, full_options
from streamkm.sources.base import RowSource
from streamkm.sources.fingerprints import fingerprint


def limit_of_run(
    estimator: Any, directory: str | os.PathLike[str] | Checkpoint | None, *, restart: bool = False
) -> Any:
    """The estimator's `memory_limit`; of a run that is continued, with what the process held that began it.

    Another process may hold more or less: the plan, and with it the result, would be another one.
    """
    limit = estimator.memory_limit
    if directory is None or restart or not is_given(limit) or given_process_memory(limit) is not None:
        return limit
    is_begun = isinstance(directory, Checkpoint) or saved_stages(directory)
    begun = load_record(Path(directory), PROCESS) if is_begun else None
    return limit if begun is None else with_process_memory(limit, int(begun[1]["bytes"]))


@contextmanager
def checkpoint_writer(
    estimator: Any,
    source: RowSource,
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    plan: Plan,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[CheckpointWriter]:
    """Keep what a fit does in its `checkpoint`; a directory is removed at the end; see `open_checkpoint`."""
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        yield CheckpointWriter(checkpoint)
        return
    with open_checkpoint(estimator, source, checkpoint, plan, weights=weights, more=more) as opened:
        yield CheckpointWriter(opened)
        opened.complete()


@contextmanager
def open_checkpoint(
    estimator: Any,
    source: RowSource,
    directory: str | os.PathLike[str],
    plan: Plan,
    *,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    restart: bool = False,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Checkpoint]:
    """Take a directory for a fit of `source`, or continue the fit that it is of; see `Checkpoint.open`.

    `plan`: of the estimator for the source. `more`: settings of a run that a fit is but a part of.

    Notes
    -----
    What makes it the same fit: the source's files, the parameters, and the sizes that were chosen by them; not the
    executor, nor how progress is shown.
    """
    parameters = estimator.get_params()
    seed = parameters["random_state"]
    for name in (*OF_THIS_RUN, "progress", "memory_limit"):
        parameters.pop(name)
    init = given_start(parameters["init"])
    parameters["init"] = digest(init) if isinstance(init, np.ndarray) else init
    chosen = ("chunk_bytes", "sketch", "n_components", "cluster_on", "sample_rows", "assign_space")
    full = {name: full_options(name, parameters[name]) for name in OPTIONS if name in parameters}
    settings = {name: plain(value) for name, value in (parameters | full).items()}
    settings |= {f"chosen {name}": getattr(plan, name) for name in chosen}
    begun_with = int(seed) if isinstance(seed, Integral) else None
    settings |= {"random_state": begun_with, "weights": digest(weights), **more}
    restart = restart or not saved_stages(directory)
    with Checkpoint.open(directory, {"source": fingerprint(source), "settings": settings}, restart=restart) as saved:
        if is_given(estimator.memory_limit) and saved.load(PROCESS) is None:
            saved.save(PROCESS, {}, {"bytes": plan.process_memory})
        try:
            yield saved
        except BaseException as error:
            if not saved_stages(directory):
                saved.discard()
            elif isinstance(error, ClusterError):
                raise ClusterError(
                    f"{error}; what was done is kept in {os.fspath(directory)}: the same fit with this checkpoint, or "
                    f"streamkm fit --resume, goes on from there, on another cluster or on none, to the same result"
                ) from error
            raise
