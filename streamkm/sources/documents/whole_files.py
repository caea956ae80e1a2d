"""Documents that are files of their own: a text file each, named by its path below a folder.

Responsible for finding, cutting and reading such files; one at a time is open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidInputError, SourceError
from streamkm.sources.base import row_places
from streamkm.sources.chunks import Chunk
from streamkm.sources.documents.base import (
    SAMPLE_BYTES,
    Batch,
    ChunkedDocuments,
    check_target,
    count_words,
    cut_documents,
)
from streamkm.sources.documents.formats import DecodeError, decoded
from streamkm.sources.documents.records import MalformedTextError
from streamkm.sources.formats import data_name, signed
from streamkm.sources.local import LocalPath, natural, opened
from streamkm.sources.long_lines import LONG_BYTES, MOST_FOUND, LineCost, LineRoom, LineWatch, LongLine
from streamkm.sources.registry import is_folder, visible_files
from streamkm.sources.remote.objects import is_remote
from streamkm.sources.stored import file_size, name_of, open_binary, read_fully
from streamkm.text.feature_hashing import Input

ID_COLUMN = "file"
PROBES = 64
"""Files that are looked at, at most, to tell how large rows become."""


class WholeFiles(ChunkedDocuments):
    """A document a file, in the order of their names; empty files are blank documents.

    `paths`: files, and folders, which stand for the files in them. Raises SourceError, SourceNotFoundError: no file, or
    one that cannot be opened. Raises InvalidInputError: all files are empty.
    """

    id_column = ID_COLUMN

    def __init__(self, paths: Sequence[str], kind: Input, decode_error: DecodeError) -> None:
        remote = next((path for path in paths if is_remote(path)), None)
        if remote is not None:
            raise SourceError(f"{remote} is a URL; files that are a document each are read from local disks only")
        found = sorted(
            {file for path in paths for file in (files_in(path) if is_folder(path) else [path])}, key=natural
        )
        self.paths: tuple[LocalPath, ...] = tuple(opened(path) for path in found)
        is_one_folder = len(paths) == 1 and is_folder(paths[0])
        self.files = (str(paths[0]),) if is_one_folder else self.paths
        self.name = name_of(self.files)
        self.kind, self.decode_error = kind, decode_error
        self.n_rows: int = len(self.paths)
        self._sizes = np.array([file_size(path) for path in self.paths], np.int64)
        self._ends = np.cumsum(self._sizes + 1)  # an empty document takes time, too
        self.n_bytes: int = int(self._sizes.sum())
        self._line_bound: tuple[LineRoom, LineCost] | None = None
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: {self.n_rows:,} empty files; at least 1 with text is needed")

    def chunks(self, text_bytes: int) -> Sequence[Chunk]:
        """Cut between files."""
        check_target(text_bytes)
        return cut_documents(self._ends, text_bytes)

    def read(self, chunk: Chunk) -> Batch:
        documents = [self._document(number) for number in range(chunk.start, chunk.stop)]
        return Batch(documents, row_places(chunk.start, chunk.stop), chunk.n_bytes)

    def sample(self) -> tuple[Batch, float | None]:
        """Look at files all through the folder, but at no large one."""
        short = np.flatnonzero(self._sizes < LONG_BYTES)
        chosen = short[np.unique(np.linspace(0, len(short) - 1, PROBES).astype(int))] if len(short) else short
        ends = np.cumsum(self._sizes[chosen] + 1)
        chosen = chosen[: int(np.searchsorted(ends, SAMPLE_BYTES)) + 1]
        documents = [self._document(number) for number in chosen.tolist()]
        return Batch(documents, chosen, int(ends[: len(chosen)].max(initial=0))), float(self._ends[-1])

    @cached_property
    def long_lines(self) -> tuple[LongLine, ...]:
        """The largest files, which take memory as long lines do."""
        largest = np.argsort(-self._sizes, kind="stable")[:MOST_FOUND]
        return tuple(self._as_line(int(number)) for number in largest if self._sizes[number] >= LONG_BYTES)

    def with_line_room(self, room: LineRoom, cost: LineCost) -> ChunkedDocuments:
        """Bound files as lines are; see `Documents.with_line_room`."""
        bounded = copy(self)
        bounded._line_bound = room, cost
        return bounded

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
        """See `Documents.taken`."""
        return {"format": "WholeFiles", "input": self.kind, "decode_error": self.decode_error}

    def _document(self, number: int) -> Any:
        path = self.paths[number]
        text = self._text(number)
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

    def _text(self, number: int) -> bytes:
        size, path = int(self._sizes[number]), self.paths[number]
        text = bytearray(size)
        with open_binary(path) as file:
            if (n_read := read_fully(file, memoryview(text), 0)) < size:
                raise SourceError(f"{path} ends at byte {n_read:,} of {size:,}; it was cut short while it was in use")
        return bytes(text)

    def _as_line(self, number: int) -> LongLine:
        text = np.frombuffer(self._text(number), np.uint8)
        return LongLine(self.paths[number], 0, len(text), count_words(text), int(text.max()))


def files_in(folder: str) -> list[str]:
    """All files of a folder as `visible_files`. Raises SourceError: there are none, or a folder cannot be read."""
    found = visible_files(folder)
    if not found:
        raise SourceError(f"{folder} is a directory without files (names that begin with . or _ are left out)")
    return found


def is_folder_of_texts(path: str) -> bool:
    """Whether a path is a folder whose files, all of them, end in .txt."""
    found = visible_files(path) if is_folder(path) else []
    return bool(found) and all(file.lower().endswith(".txt") for file in found)
