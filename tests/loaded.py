"""What importing this module loads: packages and kernels of first fits, for a process that others are forked from.

Each of these would take seconds to load them itself. They are left to no garbage collector, which would look at all of
them again and again, while they are loaded and in each process that is forked.
"""

from __future__ import annotations

import gc
import importlib
import time

import dask.array  # noqa: F401 - before collections are off: it leaves them off for good if they were meanwhile
import numba as nb
from numba.core.entrypoints import init_all
from numba.core.sigutils import normalize_signature

from streamkm.kernels import precompile
from tests.first_fits import KINDS

PACKAGES = (
    "tests.children", "streamkm.cli.main", "streamkm.cli.fit", "streamkm.cli.config", "streamkm.cli.report",
    "streamkm.cli.results", "streamkm.cli.summary", "streamkm.deduplication", "streamkm.sources.binary.numpy_files",
    "streamkm.stores.planned", "dask.cli", "distributed.cli.dask_scheduler", "distributed.cli.dask_worker",
    "distributed.nanny", "zarr", "h5py", "matplotlib.backends.backend_svg", "matplotlib.pyplot",
)  # fmt: skip
MOST_SECONDS = 60  # a test waits meanwhile; where nothing is compiled yet, the rest is left to those who need it

gc.disable()
for package in PACKAGES:
    importlib.import_module(package)
init_all()  # what other packages add to numba, which is looked for when a kernel is called first
if not nb.config.DISABLE_JIT:
    begun = time.monotonic()
    for name, argument_types in dict.fromkeys(entry for kind in KINDS for entry in precompile.kernels_of(kind)):
        if time.monotonic() > begun + MOST_SECONDS:
            break
        try:
            precompile.dispatcher(name).compile(normalize_signature(argument_types)[0])
        except (AttributeError, nb.core.errors.NumbaError) as error:
            raise ImportError(f"no kernel {name} of {argument_types}: see tests.first_fits") from error

gc.freeze()
gc.enable()
