"""Matrix Market files, which SciPy reads whole: their entries may stand in any order."""

from __future__ import annotations

import logging

import scipy.sparse as sp

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.base import ChunkedSource
from streamkm.sources.local import unchanged
from streamkm.sources.memory.arrays import ArraySource, SparseSource
from streamkm.sources.remote.objects import is_remote
from streamkm.sources.stored import opened_path

logger = logging.getLogger(__name__)


def open_mtx(path: str) -> ChunkedSource:
    """Open a .mtx file, plain or in gzip or bzip2: CSR rows of a coordinate file, dense ones of an array.

    Raises
    ------
    SourceError
        Missing, damaged, or not on a local disk.
    InvalidInputError
        Empty, or not of real numbers.
    """
    if is_remote(path):
        raise SourceError(
            f"{path} is Matrix Market, which is read from local disks only; download it and pass the file"
        )
    from scipy.io import mminfo, mmread

    path = opened_path(path)
    try:
        with unchanged(path):
            n_rows, n_columns, n_entries, layout, field, _ = mminfo(str(path))
            if field == "complex":
                raise InvalidInputError(f"{path} holds complex numbers; rows must be real numbers")
            logger.info("%s: %s entries are loaded, as they may stand in any order", path, f"{n_entries:,}")
            X = mmread(str(path))
    except (ValueError, OSError, EOFError, OverflowError) as error:
        if isinstance(error, InvalidInputError | SourceError):
            raise
        raise SourceError(f"{path} cannot be read as Matrix Market: {error}") from error
    form = f"Matrix Market {layout}, {n_rows:,} x {n_columns:,}, loaded whole"
    source = (
        SparseSource(sp.csr_array(X), name=path, form=form) if sp.issparse(X) else ArraySource(X, name=path, form=form)
    )
    source.files = (path,)
    return source
