"""Sketch stores: sketched rows in a Zarr directory, with what they were sketched by and checksums of every chunk.

Responsible for the layout of a store and for reading one: a store is a source like any other. Writing is
`streamkm.stores.writer`'s work.

Layout in a Zarr v3 group::

    zarr.json              attribute "streamkm_store": a `StoreInfo`, and its digest
    parts/0/X              an array (n, m), or a group of CSR arrays as AnnData writes them: data, indices, indptr
    parts/0/checksums/X    uint32, CRC-32 of the decoded bytes of each storage chunk of X (or data, indices, indptr)
    sketch/mean            an array that the sketch needs, or that steps have found: steps_shift0, steps_factor0, ...

Rows that were added later are further parts. What zarr.json does not name is not part of the store. A row that was
skipped because it was invalid is a row of NaN, so that rows keep their numbers.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import SourceError, SourceNotFoundError
from streamkm.core.matrix import raw
from streamkm.preparation import Preparation
from streamkm.sources.binary.csr_groups import CsrSource
from streamkm.sources.binary.zarr import ZarrArray, open_root
from streamkm.sources.concat import PartsSource
from streamkm.sources.dense import DenseSource
from streamkm.sources.row_source import RowSource

MARK = "streamkm_store"
FORMAT = 2
ROOT = "zarr.json"
CSR_ARRAYS = ("data", "indices", "indptr")
STEPS_PREFIX = "steps_"  # of the names of arrays that steps have found


@dataclass(frozen=True, slots=True)
class PartInfo:
    """Rows that were written together."""

    number: int  # of the group below ``parts``
    n_rows: int
    # CRC-32 of the checksums of each array: of X, or data, indices and indptr
    checksums: dict[str, int]


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """The metadata of a store."""

    kind: Literal["dense", "csr"]
    # n, m, and d of the rows that were sketched
    n_rows: int
    n_components: int
    n_features: int
    metric: Literal["euclidean", "cosine"]  # "cosine": the rows were of unit length when they were sketched
    sketch: dict[str, Any]  # as its `to_dict` gives it
    sketch_checksums: dict[str, int]  # CRC-32 of the arrays that it needs besides, and of those that steps have found
    parts: tuple[PartInfo, ...]
    # ``rows`` [start, stop], ``features`` [start, stop], ``exact`` (whether the source knew its width beforehand) and
    # ``source``, its fingerprint, of everything that was sketched
    inputs: tuple[dict[str, Any], ...]
    # what was done to rows before they were sketched; see `streamkm.preparation`
    steps: tuple[str, ...] = field(default=())

    def to_root(self) -> bytes:
        """Give the contents of the group's zarr.json."""
        described = asdict(self)
        attributes = {"format": FORMAT, "complete": True, "digest": _digest(described), **described}
        root = {"zarr_format": 3, "node_type": "group", "attributes": {MARK: attributes}}
        return json.dumps(root, indent=1).encode()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> StoreInfo:
        """Read the metadata of a store. Raises SourceNotFoundError; SourceError: unknown format, edited zarr.json."""
        root = Path(path) / ROOT
        try:
            attributes = dict(json.loads(root.read_bytes())["attributes"][MARK])
            version, digest = attributes.pop("format"), attributes.pop("digest")
            del attributes["complete"]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SourceNotFoundError(f"{os.fspath(path)} is no sketch store: it has no {ROOT}") from error
        except OSError as error:
            raise SourceError(f"{root} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{root} is not of a sketch store, or is damaged ({error!r})") from error
        if version != FORMAT:
            raise SourceError(
                f"{os.fspath(path)} is a sketch store of format {version!r}; this release reads {FORMAT}: sketch again"
            )
        if _digest(attributes) != digest:
            raise SourceError(f"{root} is damaged: its values do not have the digest {digest} that was written with it")
        parts = tuple(PartInfo(**part) for part in attributes.pop("parts"))
        inputs, steps = tuple(attributes.pop("inputs")), tuple(attributes.pop("steps"))
        return cls(**attributes, parts=parts, inputs=inputs, steps=steps)


def _digest(described: dict[str, Any]) -> str:
    """Hash of a store's metadata; any change to a store changes it."""
    return hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()


class StoreSource(PartsSource):
    """Rows of a sketch store, in the sketch's space and in order; every storage chunk is checked when it is read.

    Raises SourceNotFoundError, SourceError: no store, of another format, or damaged; `read` names the storage chunk.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.info = StoreInfo.read(path)
        root = open_root(self.path)
        super().__init__([_part_source(root, self.path, self.info, part) for part in self.info.parts])
        self.name = self.path
        # the metadata have the digest of all other files
        self.origin = replace(self.origin, files=(os.path.join(self.path, ROOT),), is_sketched=True)

    def details(self) -> dict[str, str]:
        made = ", ".join(f"{key} {value}" for key, value in self.info.sketch.items() if key != "kind")
        details = super().details()
        return {
            "format": f"sketch store, {details.pop('format')}"[:120],
            "sketch": f"{self.info.sketch.get('kind')}, {made}" if made else str(self.info.sketch.get("kind")),
            "of features": f"{self.info.n_features:,}",
            **({"preprocess": ", ".join(self.info.steps)} if self.info.steps else {}),
            "metric": self.info.metric,
            **details,
        }

    def sketch_arrays(self) -> dict[str, NDArray[Any]]:
        """Arrays of the sketch besides `StoreInfo.sketch`, by the names of its constructor's arguments."""
        return self._arrays([name for name in self.info.sketch_checksums if not name.startswith(STEPS_PREFIX)])

    def preparation(self) -> Preparation | None:
        """The preparation of rows before they were sketched, or None. Raises SourceError, ModelFileError: damaged."""
        if not self.info.steps:
            return None
        found = self._arrays([name for name in self.info.sketch_checksums if name.startswith(STEPS_PREFIX)])
        arrays = {name.removeprefix(STEPS_PREFIX): values for name, values in found.items()}
        n_found = max((len(values) for values in arrays.values()), default=self.info.n_features)
        preparation = Preparation.restored(self.info.steps, arrays, n_found)
        return preparation.widened(self.info.n_features)  # rows that were added later may be wider

    def _arrays(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Arrays in the group ``sketch``."""
        root, checksums = open_root(self.path), self.info.sketch_checksums
        return {name: _whole(root, self.path, f"sketch/{name}", checksums[name]) for name in names}


class CheckedArray(ZarrArray):
    """An array of a store, read in whole storage chunks, whose checksums are compared."""

    def __init__(self, array: Any, name: str, checksums: NDArray[np.uint32]) -> None:
        super().__init__(array, name)
        self._checksums, self.origin = checksums, replace(self.origin, missing_chunks="")  # which is an error
        if len(checksums) != -(-self.shape[0] // self.unit_rows):
            raise SourceError(f"{name} is damaged: it has not as many rows as were written; sketch the data again")

    def _get(self, start: int, stop: int) -> NDArray[Any]:
        unit = self.unit_rows
        first, last = start // unit * unit, min(-(-stop // unit) * unit, self.shape[0])
        values = np.empty((last - first, *self.shape[1:]), self.dtype)
        for at in range(first, last, unit):
            piece = values[at - first : at - first + unit]
            try:
                piece[...] = super()._get(at, min(at + unit, last))
            except SourceError as error:
                if error.__cause__ is None:
                    raise
                raise self._damaged(at, len(piece), str(error.__cause__)) from error
            if zlib.crc32(raw(piece)) != self._checksums[at // unit]:
                raise self._damaged(at, len(piece), "it has not the bytes that were written")
        return values[start - first : stop - first]

    def _damaged(self, start: int, n_rows: int, why: str) -> SourceError:
        number = start // self.unit_rows
        key = self._array.metadata.encode_chunk_key((number, *(0 for _ in self.shape[1:])))
        file = Path(self._array.store.root, self._array.path, key)
        return SourceError(
            f"storage chunk {number:,} of {self.name} is {'damaged' if file.exists() else 'missing'}: {file}: {why} "
            f"({'rows' if len(self.shape) == 2 else 'values'} {start:,}-{start + n_rows - 1:,}); restore the file, or "
            f"sketch the data again"
        )


def _part_source(root: Any, path: str, info: StoreInfo, part: PartInfo) -> RowSource:
    if info.kind == "dense":
        return DenseSource(_checked(root, path, part, "X"))
    data, indices, indptr = (_checked(root, path, part, f"X/{name}") for name in CSR_ARRAYS)
    shape = (part.n_rows, info.n_components)
    return CsrSource(data, indices, indptr, shape=shape, name=f"{path}:/parts/{part.number}/X", layout="AnnData CSR")


def _checked(root: Any, path: str, part: PartInfo, inner: str) -> CheckedArray:
    """An array of a part with its checksums, which are themselves checked."""
    label, group = inner.rpartition("/")[2], f"parts/{part.number}"
    checksums = _whole(root, path, f"{group}/checksums/{label}", part.checksums[label])
    return CheckedArray(_member(root, f"{group}/{inner}", path), f"{path}:/{group}/{inner}", checksums)


def _whole(root: Any, path: str, inner: str, checksum: int) -> NDArray[Any]:
    """The values of an array of at most one storage chunk."""
    member = _member(root, inner, path)
    checksums = np.full(min(1, member.shape[0]), checksum, np.uint32)
    return CheckedArray(member, f"{path}:/{inner}", checksums).read(0, member.shape[0])


def _member(root: Any, inner: str, path: str) -> Any:
    try:
        found = root[inner]
        if not hasattr(found, "chunks"):
            raise KeyError(inner)
    except Exception as error:  # whatever zarr raises on metadata that are not its own
        raise SourceError(f"{path} lacks /{inner}, or its metadata are damaged; restore it, or sketch again") from error
    return found
