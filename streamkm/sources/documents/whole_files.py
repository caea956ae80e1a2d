"""Documents that are files of their own: a text file each, named by its path below a folder; one at a time is open."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.documents.base import SAMPLE_BYTES, Batch, DocumentList
from streamkm.sources.documents.formats import DecodeError, MalformedTextError, decoded
from streamkm.sources.formats import data_name, is_folder, signed
from streamkm.sources.local import natural, opened
from streamkm.sources.long_lines import LONG_BYTES, LineWatch
from streamkm.sources.paths import visible_files
from streamkm.sources.remote.objects import is_remote
from streamkm.sources.stored import file_size, name_of, open_binary
from streamkm.text.feature_hashing import Input

PROBES = 64  # files that are looked at, at most, to tell how large rows become


class WholeFiles(DocumentList):
    """A document a file, in the order of their names; empty files are blank documents.

    `paths`: files, and folders, which stand for the files in them. Raises SourceError, SourceNotFoundError: no file, or
    one that cannot be opened. Raises InvalidInputError: all files are empty.
    """

    in_process = False
    id_column = "file"

    def __init__(self, paths: Sequence[str], kind: Input, decode_error: DecodeError) -> None:
        remote = next((path for path in paths if is_remote(path)), None)
        if remote is not None:
            raise SourceError(f"{remote} is a URL; files that are a document each are read from local disks only")
        found = {file for path in paths for file in (_files_in(path) if is_folder(path) else [path])}
        self.paths = tuple(opened(path) for path in sorted(found, key=natural))
        self.files = (str(paths[0]),) if len(paths) == 1 and is_folder(paths[0]) else self.paths
        self.name = name_of(self.files)
        self.kind, self.decode_error = kind, decode_error
        self.n_rows = len(self.paths)
        self._sizes = np.array([file_size(path) for path in self.paths], np.int64)
        self._ends = np.cumsum(self._sizes + 1)  # an empty document takes time, too
        self.n_bytes = int(self._sizes.sum())
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: {self.n_rows:,} empty files; at least 1 with text is needed")

    def document(self, number: int) -> Any:
        path = self.paths[number]
        with open_binary(path) as file:
            text = file.read()
        if self._line_bound is not None and len(text) >= LONG_BYTES:
            LineWatch(path, *self._line_bound, lambda _: 1)(np.frombuffer(text, np.uint8), 0, None)
        signature = signed(text[:16])
        if signature is not None:
            raise InvalidInputError(f"{path}: {data_name(signature)}, not UTF-8 text; convert it, or leave it out")
        try:
            document = decoded(text, 0, self.decode_error)
        except MalformedTextError as problem:
            raise InvalidInputError(f"{path} (byte {problem.byte:,}): {problem.text}") from None
        return document if self.kind == "text" else document.split()

    def sample(self) -> tuple[Batch, float | None]:
        """Look at files all through the folder, but at no large one."""
        short = np.flatnonzero(self._sizes < LONG_BYTES)
        chosen = short[np.unique(np.linspace(0, len(short) - 1, PROBES).astype(int))] if len(short) else short
        ends = np.cumsum(self._sizes[chosen] + 1)
        chosen = chosen[: int(np.searchsorted(ends, SAMPLE_BYTES)) + 1]
        documents = [self.document(number) for number in chosen.tolist()]
        return Batch(documents, chosen, int(ends[: len(chosen)].max(initial=0))), float(self._ends[-1])

    def ids(self) -> Iterator[list[str | None]]:
        """Paths below the folder that was given, or below the one that all files are in."""
        folder = (
            self.files[0]
            if self.files != self.paths
            else os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in self.paths])
        )
        yield [os.path.relpath(path, folder).replace(os.sep, "/") for path in self.paths]

    def describe(self, place: int) -> str:
        return str(self.paths[place])

    def details(self) -> dict[str, str]:
        return {"format": f"{self.n_rows:,} text files, a document each"}

    def taken(self) -> dict[str, Any]:
        return {"format": "WholeFiles", "input": self.kind, "decode_error": self.decode_error}


def _files_in(folder: str) -> list[str]:
    found = visible_files(folder)
    if not found:
        raise SourceError(f"{folder} is a directory without files (names that begin with . or _ are left out)")
    return found
