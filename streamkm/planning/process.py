"""Memory of a process beside data: what it holds now, and the libraries that it has yet to load."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib import import_module
from typing import Any

from streamkm.core.memory import given_process_memory, human_bytes, is_given, resident_bytes
from streamkm.engine.memory import MIB
from streamkm.kernels.centers.nearest import nearest_csr, nearest_dense
from streamkm.sources.base import RowSource

logger = logging.getLogger("streamkm.planning")
STEP_BYTES = 64 * MIB  # plans are the same wherever processes hold about the same
AUTO_BYTES = 320 * MIB  # where no limit was given: results never depend on the process then
LEAST_BYTES = 128 * MIB  # a process with NumPy, SciPy, scikit-learn and numba; rows may not be resident before a pass
# by which a first fit of dense or sparse rows grows: kernels from the cache and what runs them, 44 to 51 MiB measured;
FIRST_BYTES = 64 * MIB
LATER_BYTES = 24 * MIB  # a later one, by what lies in heaps and by rarer kernels
WORDS_BYTES = 8 * MIB  # what takes texts apart


def process_memory(memory_limit: Any, source: RowSource, *, on_cluster: bool = False) -> int:
    """Bytes that this process will hold beside data in a fit of these rows, in whole steps; or what the limit says.

    `memory_limit`: see `core.memory.memory_limit_bytes`. `source`: that is open. `on_cluster`: whether this process is
    the client of a Dask cluster.
    """
    if not is_given(memory_limit):
        return AUTO_BYTES
    given = given_process_memory(memory_limit)
    libraries = {*source.libraries, *(("distributed",) if on_cluster else ())}
    for library in libraries - {"words"} if given is None else ():  # a fit loads them: measured, not assumed
        with suppress(ImportError):
            import_module(library)
    held = max(LEAST_BYTES, resident_bytes() - source.resident_bytes + source.unloaded_bytes)
    if given is not None:
        if held > given:
            logger.info(
                "this process holds %s beside data, and the plan is made for %s: its peak may lie above the limit",
                human_bytes(held), human_bytes(given),
            )  # fmt: skip
        return given
    # a fit that has loaded its kernels ends by looking for the nearest centers
    has_fitted = getattr(nearest_csr if source.is_sparse else nearest_dense, "signatures", True)
    more = (LATER_BYTES if has_fitted else FIRST_BYTES) + WORDS_BYTES * ("words" in libraries)
    return -(-(held + more) // STEP_BYTES) * STEP_BYTES
