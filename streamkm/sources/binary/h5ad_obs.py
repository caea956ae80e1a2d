"""Labels as a column of `obs` in an AnnData file, written back in place: the matrix is not touched.

The only module that writes to HDF5 files, and only this one column, when asked to.
"""

from __future__ import annotations

import os
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.atomic_io import writing
from streamkm.core.exceptions import InvalidInputError, OutputError, SourceError


def write_obs(path: str | os.PathLike[str], column: str, labels: NDArray[np.int32], *, overwrite: bool = False) -> None:
    """Write labels as a categorical column of `obs`, as AnnData reads it; the rest of the file stays as it is.

    Parameters
    ----------
    path : path
        Of an .h5ad file, which no other process has open.
    column : str
    labels : int32 (n,)
        -1: no category.
    overwrite : bool
        Whether a column of this name may be replaced.

    Raises
    ------
    SourceError
        The file is missing, damaged, or holds no `obs` of AnnData's.
    InvalidInputError
        Another number of rows than `obs` has.
    OutputError
        There is such a column already, or the file cannot be written.
    """
    name = os.fspath(path)
    if not os.path.exists(name):
        raise SourceError(f"{name} does not exist")
    if not column or "/" in column or column.startswith("_"):
        raise InvalidInputError(f"column={column!r}; needed: a name without a slash that begins with no underscore")
    with writing(name):
        try:
            file = h5py.File(name, "r+")
        except OSError as error:
            if error.errno is not None:
                raise
            raise SourceError(f"{name} is no HDF5 file, is damaged, or is open elsewhere ({error})") from error
        with file:
            obs = _frame(file, name)
            n_rows = _n_rows(obs, name)
            if len(labels) != n_rows:
                raise InvalidInputError(f"{len(labels):,} labels for {name}, whose obs has {n_rows:,} rows")
            if column in obs and not overwrite:
                raise OutputError(
                    f"{name} has a column obs/{column} already; choose another name, or allow to overwrite"
                )
            _replace(obs, column, labels)
            file.flush()


def _frame(file: h5py.File, name: str) -> h5py.Group:
    obs = file.get("obs")
    if not isinstance(obs, h5py.Group) or obs.attrs.get("encoding-type") != "dataframe":
        raise SourceError(f"{name} holds no obs as AnnData writes it since version 0.7")
    return obs


def _n_rows(obs: h5py.Group, name: str) -> int:
    index = obs.get(str(obs.attrs.get("_index", "_index")))
    if isinstance(index, h5py.Group):  # of categories
        index = index.get("codes")
    if not isinstance(index, h5py.Dataset):
        raise SourceError(f"{name}: obs has no index")
    return int(index.shape[0])


def _replace(obs: h5py.Group, column: str, labels: NDArray[np.int32]) -> None:
    """Make the column beside the others, then give it its name: whoever reads before has the old one, or none."""
    made = f"_streamkm_{column}"
    if made in obs:  # of a process that was killed
        del obs[made]
    n_categories = int(labels.max(initial=-1)) + 1
    group = obs.create_group(made)
    group.attrs.update({"encoding-type": "categorical", "encoding-version": "0.2.0", "ordered": False})
    codes = group.create_dataset("codes", data=labels.astype(np.int8 if n_categories <= 127 else np.int32))
    codes.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    texts: Any = np.array([str(label) for label in range(n_categories)], object)
    categories = group.create_dataset("categories", data=texts, dtype=h5py.string_dtype("utf-8"))
    categories.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    obs.file.flush()
    if column in obs:
        del obs[column]
    obs.move(made, column)
    order = [each.decode() if isinstance(each, bytes) else str(each) for each in obs.attrs.get("column-order", ())]
    if column not in order:
        obs.attrs.create("column-order", [*order, column], dtype=h5py.string_dtype("utf-8"))
