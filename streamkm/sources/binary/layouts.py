"""Which matrix a hierarchical file means: the layouts that HDF5 and Zarr have in common.

Responsible for recognising AnnData, CSR groups and 10x Genomics matrices, and for choosing the one matrix of a file
where the user named none. Sees a file as a `Tree` of nodes and never opens one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError, SourceNotFoundError
from streamkm.sources.stored import StoredArray

_CSR_MEMBERS = frozenset({"data", "indices", "indptr"})


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
    """A file as the modules of the formats show it."""

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
        """Give the array at `path`, to be read by rows."""


@dataclass(frozen=True, slots=True)
class MatrixLocation:
    """The matrix that is meant: a dense array, or the group of three CSR arrays.

    `shape` is (n, d) with samples as rows; `layout` says for people whose arrangement it is.
    """

    kind: Literal["dense", "csr"]
    path: str
    shape: tuple[int, ...]
    layout: str = "dense"


def find_matrix(tree: Tree, path: str | None) -> MatrixLocation:
    """Find the matrix at `path`, or the only one below it.

    `path`: an array, a CSR group, a 10x group, an AnnData object or any group with one matrix in it; None is the root.
    Raises SourceNotFoundError: nothing is there; the message gives the nearest name. Raises InvalidInputError: no
    matrix or several (they are listed), a CSC matrix, or an array that is none of rows.
    """
    start = "/" + (path or "").strip("/")
    node = tree.node(start)
    if node is None:
        raise SourceNotFoundError(_not_there(tree, start))
    root = tree.node("/")
    if (root is not None and root.members >= {"row_attrs", "col_attrs"}) or tree.attribute("/", "LOOM_SPEC_VERSION"):
        raise InvalidInputError(
            f"{tree.name} is a loom file, of genes by cells; write cells by genes: "
            f"anndata.io.read_loom(path).write_h5ad(other)"
        )
    if not node.is_group:
        return _as_written(tree, MatrixLocation("dense", start, node.shape or ()))
    group = _as_sparse(tree, node)
    if group is not None:
        return group
    if node.encoding == "anndata" or {"X", "obs", "var"} <= node.members:
        below = tree.node(join(start, "X"))
        if below is not None:
            return find_matrix(tree, below.path)
    candidates = [_as_written(tree, found) for found in _candidates(tree, start)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        listed = ", ".join(f"{found.path} {found.shape}" for found in candidates[:20])
        raise InvalidInputError(
            f"{tree.name}:{start} holds {len(candidates)} matrices: {listed}; choose one with dataset="
        )
    raise InvalidInputError(
        f"{tree.name}:{start} holds no matrix: no two-dimensional array of numbers and no group of CSR arrays; "
        f"it holds {_listing(tree, start)}"
    )


def _as_written(tree: Tree, found: MatrixLocation) -> MatrixLocation:
    """The same matrix, if its rows are rows. Raises InvalidInputError."""
    if tree.attribute(found.path, "MATLAB_class"):
        raise InvalidInputError(
            f"{tree.name}:{found.path} {found.shape} is of MATLAB, and MATLAB writes matrices transposed: save the "
            f"transpose there (save('-v7.3', X.')), or write h5py.File(path)[name][:].T with numpy.save"
        )
    return found


def join(group: str, member: str) -> str:
    """Path of a member of a group."""
    return f"{group.rstrip('/')}/{member}"


def _as_sparse(tree: Tree, node: Node) -> MatrixLocation | None:
    """Give the CSR matrix that a group is, if it is one.

    10x stores genes x cells by columns, which is cells x genes by rows.
    """
    if not node.members >= _CSR_MEMBERS:
        return None
    name = f"{tree.name}:{node.path}"
    shape = node.matrix_shape
    if shape is None or len(shape) != 2:
        raise InvalidInputError(
            f"{name} has data, indices and indptr but its shape is {shape}; it needs an attribute shape of two numbers"
        )
    if "barcodes" in node.members and node.members & {"features", "genes"}:
        return MatrixLocation("csr", node.path, (shape[1], shape[0]), "10x Genomics matrix, cells as rows,")
    if node.encoding.startswith("csc"):
        raise InvalidInputError(
            f"{name} is a CSC matrix {shape}, stored column by column: reading a few rows would read all of it. "
            f"Convert it once, for example with scipy: X.tocsr() before writing"
        )
    return MatrixLocation("csr", node.path, (shape[0], shape[1]), "AnnData CSR" if node.encoding else "CSR")


def _candidates(tree: Tree, start: str) -> Iterator[MatrixLocation]:
    inside = start.rstrip("/") + "/"
    sparse: list[str] = []
    for path in sorted(tree.paths()):
        if not path.startswith(inside) or any(path.startswith(group + "/") for group in sparse):
            continue
        node = tree.node(path)
        if node is None:
            continue
        if node.is_group:
            if node.members >= _CSR_MEMBERS and not node.encoding.startswith("csc"):
                sparse.append(path)
                found = _as_sparse(tree, node)
                if found is not None:
                    yield found
        elif node.shape is not None and len(node.shape) == 2 and node.dtype is not None and node.dtype.kind in "biuf":
            yield MatrixLocation("dense", path, node.shape)


def _not_there(tree: Tree, path: str) -> str:
    near = difflib.get_close_matches(path, list(tree.paths()), n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"{tree.name} has no {path}{hint}; it holds {_listing(tree, '/')}"


def _listing(tree: Tree, start: str, most: int = 20) -> str:
    inside = start.rstrip("/") + "/"
    paths = [path for path in sorted(tree.paths()) if path.startswith(inside)]
    if not paths:
        return "nothing"
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(f"{path}{_kind(tree.node(path))}" for path in paths[:most]) + more


def _kind(node: Node | None) -> str:
    if node is None or node.shape is None:
        return "/"
    return f" {node.shape} {node.dtype if node.dtype is not None else '(type that cannot be read)'}"
