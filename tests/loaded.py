"""What importing this module loads: packages and kernels of first fits, for a process that others are forked from."""

from __future__ import annotations

import gc
import importlib

import dask.array  # noqa: F401 - before collections are off: it leaves them off for good if they were meanwhile
import numba as nb
from numba.core.entrypoints import init_all

from streamkm.estimators import fit_tiny

PACKAGES = (
    "tests.children", "streamkm.cli.main", "streamkm.cli.fit", "streamkm.cli.config",
    "streamkm.cli.results", "streamkm.cli.summary", "streamkm.deduplication", "streamkm.sources.binary.numpy_files",
    "streamkm.stores.planned", "dask.cli", "distributed.cli.dask_scheduler", "distributed.cli.dask_worker",
    "distributed.nanny", "zarr", "h5py", "matplotlib.backends.backend_svg", "matplotlib.pyplot",
)  # fmt: skip

gc.disable()
for package in PACKAGES:
    importlib.import_module(package)
init_all()  # what other packages add to numba, which is looked for when a kernel is called first
if not nb.config.DISABLE_JIT:
    list(fit_tiny())

gc.freeze()
gc.enable()
