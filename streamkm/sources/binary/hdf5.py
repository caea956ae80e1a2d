"""HDF5 files: finds dense datasets, CSR groups and 10x Genomics matrices, and decides which links are followed."""

from __future__ import annotations

import os
import posixpath
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import SourceError, StreamkmError
from streamkm.sources.binary.column_names import open_matrix
from streamkm.sources.binary.hdf5_arrays import FAILURES, Hdf5Array, open_file
from streamkm.sources.binary.layouts import Node, join
from streamkm.sources.row_source import RowSource
from streamkm.sources.stored import opened_path

_MOST_LINKS = 32


def open_hdf5(path: str, *, dataset: str | None = None, follow_external: bool = False, **names: str) -> RowSource:
    """Open the matrix of an HDF5 file, by path or URL; see `find_matrix` for `dataset`, `open_source` for options.

    Links to other files are followed only with `follow_external`, as a file of unknown origin could name any file.
    Raises SourceError, InvalidInputError, InvalidParameterError, MissingDependencyError (of a filter).
    """
    path = opened_path(path)
    with open_file(path) as file:
        return _open_in(_Hdf5Tree(path, file, follow_external), dataset, names)


def open_hdf5_object(node: h5py.Dataset | h5py.Group, *, follow_external: bool = False, **names: str) -> RowSource:
    """Open the matrix that an open dataset or group is or holds; raises as `open_hdf5`, SourceError for closed files.

    A file that is open for reading is opened again by its path, so the caller may close it. One that is open for
    writing, or in memory, is read through the caller's handle, which must stay open; such a source cannot be pickled.
    """
    if not node:
        raise SourceError("the HDF5 file of this object is closed; open it again or pass its path")
    file = node.file
    path = os.fsdecode(file.filename)
    if file.mode == "r" and file.driver == "sec2" and os.path.isfile(path):
        return open_hdf5(path, dataset=node.name, follow_external=follow_external, **names)
    file.flush()
    return _open_in(_Hdf5Tree(path, file, follow_external, handle=True), node.name, names)


def _open_in(tree: _Hdf5Tree, dataset: str | None, names: dict[str, str]) -> RowSource:
    """Open a matrix; h5py's errors on a damaged file become SourceError."""
    try:
        return open_matrix(tree, dataset, **names)
    except StreamkmError:
        raise
    except FAILURES as error:
        raise SourceError(f"{tree.name} is damaged: {error}") from error


class _Hdf5Tree:
    """An HDF5 file as a `layouts.Tree`."""

    def __init__(self, name: str, file: h5py.File, follow_external: bool, *, handle: bool = False) -> None:
        self.name = name
        self._file = file
        self._handle = handle
        self._follow_external = follow_external

    def paths(self) -> list[str]:
        """Paths that hard links reach: soft and external links are followed only if they are named."""
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
        """Give the dataset at `path`; refuse one whose values are in another file."""
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
        """Give the object at `path`, None if a link on the way is broken; refuse to leave the file."""
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
