"""HDF5 files: dense datasets, CSR groups as AnnData writes them, 10x Genomics matrices.

Responsible for finding the matrix in a file and for what may be followed on the way there. Reads no rows itself.
"""

from __future__ import annotations

import os
import posixpath
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import SourceError, StreamkmError
from streamkm.sources.base import ChunkedSource
from streamkm.sources.binary.column_names import open_matrix
from streamkm.sources.binary.hdf5_arrays import FAILURES, Hdf5Array, open_file
from streamkm.sources.binary.layouts import Node, join
from streamkm.sources.stored import opened_path

_MOST_LINKS = 32


def open_hdf5(
    path: str,
    *,
    dataset: str | None = None,
    follow_external: bool = False,
    var_column: str | None = None,
    genes: str | None = None,
) -> ChunkedSource:
    """Open the matrix of an HDF5 file, by path or by a URL that fsspec knows.

    `dataset`: a dataset of shape (n, d), a CSR group, a 10x group (its cells are the rows), an AnnData object (its X),
    or a group with one of these in it; None searches the file, which must hold one matrix. `follow_external`: whether
    links to, and data in, other files are read; a file of unknown origin could name any file. `var_column`: column of
    `var` of AnnData, or of `features` of 10x Genomics, that names the columns of the matrix. `genes`: one of true and
    false there, the columns to take. Raises SourceError, InvalidInputError, InvalidParameterError,
    MissingDependencyError (a filter that is not installed).
    """
    path = opened_path(path)
    with open_file(path) as file:
        return _open_in(_Hdf5Tree(path, file, follow_external), dataset, var_column, genes)


def open_hdf5_object(
    node: h5py.Dataset | h5py.Group,
    *,
    follow_external: bool = False,
    var_column: str | None = None,
    genes: str | None = None,
) -> ChunkedSource:
    """Open the matrix that an open dataset or group is or holds.

    A file that is open for reading is opened again by its path, so the caller may close it. One that is open for
    writing or lies in memory is read through the caller's handle, which must stay open; such a source cannot be
    pickled.

    Raises SourceError, InvalidInputError as `open_hdf5`; SourceError also where the file was closed.
    """
    if not node:
        raise SourceError("the HDF5 file of this object is closed; open it again or pass its path")
    file = node.file
    path = os.fsdecode(file.filename)
    if file.mode == "r" and file.driver == "sec2" and os.path.isfile(path):
        return open_hdf5(path, dataset=node.name, follow_external=follow_external, var_column=var_column, genes=genes)
    file.flush()
    return _open_in(_Hdf5Tree(path, file, follow_external, handle=True), node.name, var_column, genes)


def _open_in(tree: _Hdf5Tree, dataset: str | None, var_column: str | None, genes: str | None) -> ChunkedSource:
    """Open a matrix; what h5py raises while it walks a damaged file becomes SourceError."""
    try:
        return open_matrix(tree, dataset, var_column, genes)
    except StreamkmError:
        raise
    except FAILURES as error:
        raise SourceError(f"{tree.name} is damaged: {error}") from error


class _Hdf5Tree:
    """A file as `layouts.Tree`."""

    def __init__(self, name: str, file: h5py.File, follow_external: bool, *, handle: bool = False) -> None:
        self.name = name
        self._file = file
        self._handle = handle
        self._follow_external = follow_external

    def paths(self) -> list[str]:
        """Everything that hard links reach: soft and external links are followed only where they are named."""
        found: list[str] = []
        self._file.visit(lambda path: found.append(f"/{path}"))
        return found

    def node(self, path: str) -> Node | None:
        item = self._item(path)
        if isinstance(item, h5py.Dataset):
            return Node(path, shape=item.shape if item.shape is not None else (), dtype=item.dtype)
        if not isinstance(item, h5py.Group):
            return None
        shape = item.attrs.get("shape")
        if shape is None and isinstance(stored := self._item(join(path, "shape")), h5py.Dataset) and stored.size == 2:
            shape = stored[...]
        return Node(
            path,
            encoding=_text(item.attrs.get("encoding-type")),
            matrix_shape=None if shape is None else tuple(int(length) for length in np.ravel(shape)),
            members=frozenset(item),
        )

    def attribute(self, path: str, name: str) -> str:
        return _text(self._file[path].attrs.get(name))

    def values(self, path: str) -> NDArray[Any]:
        return np.asarray(self._dataset(path)[...])

    def array(self, path: str) -> Hdf5Array:
        return Hdf5Array(self.name, path, self._dataset(path), handle=self._handle)

    def _dataset(self, path: str) -> h5py.Dataset:
        """Give the dataset at `path`; refuses one whose values lie in another file."""
        dataset = self._item(path)
        if not isinstance(dataset, h5py.Dataset):
            raise SourceError(f"{self.name} has no dataset {path}")
        if not self._follow_external:
            others = [file for file, _, _ in dataset.external or ()]
            if dataset.is_virtual:
                others += [source.file_name for source in dataset.virtual_sources() if source.file_name != "."]
            if others:
                raise SourceError(
                    f"{self.name}:{path} has its values in another file ({others[0]}); pass follow_external=True if "
                    f"you trust this file to name files to read"
                )
        return dataset

    def _item(self, path: str, n_links: int = 0) -> Any:
        """Give what is at `path`, None where a link on the way leads nowhere; refuses to leave the file."""
        if self._follow_external:
            return self._file.get(path)
        item: Any = self._file["/"]
        for name in filter(None, path.split("/")):
            link = item.get(name, getlink=True) if isinstance(item, h5py.Group) else None
            if isinstance(link, h5py.ExternalLink):
                raise SourceError(
                    f"{join(f'{self.name}:{item.name}', name)} is a link to {link.filename}:{link.path}; pass "
                    f"follow_external=True if you trust this file to name files to read"
                )
            if isinstance(link, h5py.SoftLink):
                if n_links == _MOST_LINKS:
                    raise SourceError(f"{self.name}:{path} is a circle of links")
                item = self._item(posixpath.join(item.name, link.path), n_links + 1)
            elif link is None or (item := item.get(name)) is None:
                return None
        return item


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
