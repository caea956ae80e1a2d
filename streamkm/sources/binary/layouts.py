"""Layouts of HDF5 and Zarr files: chooses the one matrix of a `Tree`, from AnnData, CSR groups and 10x Genomics."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, SourceNotFoundError
from streamkm.sources.stored import StoredArray

_CSR_MEMBERS = frozenset({"data", "indices", "indptr"})
_MOST_LISTED = 20


@dataclass(frozen=True, slots=True)
class Node:
    """An array or group of a file."""

    path: str  # from the root, ``/layers/counts``; ``/`` is the root itself
    shape: tuple[int, ...] | None = None  # None for a group
    # None for a group, and for an array of a type that the library cannot read
    dtype: np.dtype[np.generic] | None = None
    encoding: str = ""  # AnnData's attribute ``encoding-type``, or ""
    # what a group of CSR arrays says of its shape, by attribute or by a member of that name
    matrix_shape: tuple[int, ...] | None = None
    members: frozenset[str] = frozenset()  # of a group

    @property
    def is_group(self) -> bool:
        """Whether it has members."""
        return self.shape is None


class Tree(Protocol):
    """The interface through which this module sees a file."""

    name: str

    def node(self, path: str) -> Node | None:
        """Give the node at `path`, None if there is none."""

    def paths(self) -> Iterable[str]:
        """Paths of everything in the file."""

    def attribute(self, path: str, name: str) -> str:
        """Give an attribute of the node at `path` as text, "" if there is none."""

    def values(self, path: str) -> NDArray[Any]:
        """Read all values of an array, such as a column of names."""

    def array(self, path: str) -> StoredArray:
        """Give the array at `path`, for reading by rows."""


@dataclass(frozen=True, slots=True)
class MatrixLocation:
    """The location of a matrix: a dense array, or the group of three CSR arrays."""

    path: str
    shape: tuple[int, ...]  # (n, d), samples as rows
    layout: str = "dense"  # whose arrangement it is, for people


def find_matrix(tree: Tree, path: str | None) -> MatrixLocation:
    """Find the matrix at `path`, or the only one below: an array, a CSR group, a 10x group, an AnnData object (its X).

    `path` None is the root. Raises SourceNotFoundError: nothing is there; the message gives the nearest name. Raises
    InvalidInputError: no matrix or several (they are listed), a CSC matrix, or an array of other dimensions.
    """
    start = "/" + (path or "").strip("/")
    node, root = tree.node(start), tree.node("/")
    if node is None:
        near = difflib.get_close_matches(start, list(tree.paths()), n=1, cutoff=0.4)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise SourceNotFoundError(f"{tree.name} has no {start}{hint}; it holds {_listing(tree, '/')}")
    if (root is not None and root.members >= {"row_attrs", "col_attrs"}) or tree.attribute("/", "LOOM_SPEC_VERSION"):
        raise InvalidInputError(
            f"{tree.name} is a loom file, of genes by cells; write cells by genes: "
            f"anndata.io.read_loom(path).write_h5ad(other)"
        )
    is_object = node.encoding == "anndata" or node.members >= {"X", "obs", "var"}
    if is_object and tree.node(join(start, "X")) is not None:
        return find_matrix(tree, join(start, "X"))
    found = [_matrix(tree, node)] if not node.is_group or node.members >= _CSR_MEMBERS else _candidates(tree, start)
    if found and tree.attribute(found[0].path, "MATLAB_class"):
        raise InvalidInputError(
            f"{tree.name}:{found[0].path} {found[0].shape} is of MATLAB, and MATLAB writes matrices transposed: save "
            f"the transpose there (save('-v7.3', X.')), or write h5py.File(path)[name][:].T with numpy.save"
        )
    if not found:
        raise InvalidInputError(
            f"{tree.name}:{start} holds no matrix: no two-dimensional array of numbers and no group of CSR arrays; "
            f"it holds {_listing(tree, start)}"
        )
    if len(found) > 1:
        listed = ", ".join(f"{each.path} {each.shape}" for each in found[:_MOST_LISTED])
        raise InvalidInputError(f"{tree.name}:{start} holds {len(found)} matrices: {listed}; choose one with dataset=")
    return found[0]


def join(group: str, member: str) -> str:
    """Path of a member of a group."""
    return f"{group.rstrip('/')}/{member}"


def _matrix(tree: Tree, node: Node) -> MatrixLocation:
    """Give the matrix of an array or a CSR group; 10x stores genes x cells by columns: cells x genes by rows."""
    if node.shape is not None:
        return MatrixLocation(node.path, node.shape)
    name, shape = f"{tree.name}:{node.path}", node.matrix_shape
    if shape is None or len(shape) != 2:
        raise InvalidInputError(
            f"{name} has data, indices and indptr but its shape is {shape}; it needs an attribute shape of two numbers"
        )
    if "barcodes" in node.members and node.members & {"features", "genes"}:
        return MatrixLocation(node.path, shape[::-1], "10x Genomics matrix, cells as rows,")
    if node.encoding.startswith("csc"):
        raise InvalidInputError(
            f"{name} is a CSC matrix {shape}, stored column by column: reading a few rows would read all of it. "
            f"Convert it once, for example with scipy: X.tocsr() before writing"
        )
    return MatrixLocation(node.path, shape, "AnnData CSR" if node.encoding else "CSR")


def _candidates(tree: Tree, start: str) -> list[MatrixLocation]:
    """Matrices below a group."""
    found: list[MatrixLocation] = []
    for path in _below(tree, start):
        node = tree.node(path)
        if node is None or (found and found[-1].layout != "dense" and path.startswith(found[-1].path + "/")):
            continue
        is_csr = node.members >= _CSR_MEMBERS and not node.encoding.startswith("csc")
        if is_csr or (len(node.shape or ()) == 2 and node.dtype is not None and node.dtype.kind in "biuf"):
            found.append(_matrix(tree, node))
    return found


def _below(tree: Tree, start: str) -> list[str]:
    return sorted(path for path in tree.paths() if path.startswith(start.rstrip("/") + "/"))


def _listing(tree: Tree, start: str) -> str:
    """Name the arrays below a group, with shapes and types."""
    paths, listed = _below(tree, start), []
    for path in paths[:_MOST_LISTED]:
        node = tree.node(path)
        shown = f" {node.shape} {node.dtype or '(unknown type)'}" if node and not node.is_group else "/"
        listed.append(path + shown)
    more = f" and {len(paths) - _MOST_LISTED} more" if len(paths) > _MOST_LISTED else ""
    return ", ".join(listed) + more or "nothing"
