"""What plain and compressed svmlight sources share: paths, options, which base the indices have, words for errors."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sources.base import RowSource, SentRows
from streamkm.sources.formats import COMPRESSED, data_name, signed
from streamkm.sources.long_lines import LineCost, LineRoom, LineWatch, LongLine
from streamkm.sources.remote.objects import Address, is_remote
from streamkm.sources.stored import name_of, opened_path
from streamkm.sources.svmlight.rows import BadTextError, RowBuilder, TextFormat, check_options
from streamkm.sources.text_lines import (
    PLACE_BITS,
    Fill,
    LineReader,
    LongLineError,
    describe_byte,
    line_number,
    part_and_byte,
    stop_at_long,
    text_size,
)

HEAD_BYTES = 1 << 20
"""Lines that start in so much of a file decide whether the input is zero-based."""

_COLON, _INDEX_BYTES = 58, 4
_TEXT_COPIES, _ROW_COPIES = 2, 3  # of a long line: its text in buffers; its values as they are parsed, sampled and kept

REMOTE_READ_FACTOR = 4.0
"""As `RowSource.read_factor`: a request's bytes are held beside the rows, twice while they arrive."""


class SvmlightFiles(RowSource):
    """What plain and compressed svmlight sources share: paths, sizes, options, and words for errors.

    Parameters
    ----------
    paths : sequence of str or Path
        In the order in which their rows count.
    n_features : int, optional
        Columns; an index beyond them is an error. If None, a piece is as wide as its largest index demands.
    zero_based : bool or "auto"
        Whether column 0 is written as index 0. "auto" looks for an index 0 in the first `HEAD_BYTES` of the first
        file that has rows there, and decides once for all files.
    dtype : dtype
        float32 or float64. Values are correctly rounded to float64 first, as scikit-learn does.

    Raises
    ------
    InvalidParameterError
        For an option that is not accepted, or no path at all.
    SourceNotFoundError, SourceError
        If a path does not exist, is not a regular file, or is too large for its rows to have places.
    InvalidInputError
        If all files are empty.
    """

    is_sparse = True
    decodes = True
    n_rows = None

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        n_features: int | None = None,
        zero_based: bool | Literal["auto"] = "auto",
        dtype: DTypeLike = np.float64,
    ) -> None:
        self.dtype = check_options(n_features, zero_based, dtype)
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        self.paths = tuple(opened_path(os.fspath(path)) for path in given)
        if not self.paths:
            raise InvalidParameterError("paths must name at least one file, got none")
        if len(self.paths) > 1 << (63 - PLACE_BITS):
            raise InvalidParameterError(f"paths must name at most {1 << (63 - PLACE_BITS):,} files")
        self.files = self.paths
        self.in_process = any(isinstance(path, Address) and path.in_process for path in self.paths)
        if any(map(is_remote, self.paths)):
            self.read_factor, self.libraries = REMOTE_READ_FACTOR, ("fsspec",)
        self.n_features = None if n_features is None else int(n_features)
        self.zero_based = zero_based
        self.sizes = tuple(text_size(path) for path in self.paths)
        self.n_bytes = sum(self.sizes)
        self.name = name_of(self.paths)
        if self.n_bytes == 0:
            raise InvalidInputError(f"{self.name}: empty, 0 bytes; svmlight text with at least one row is needed")
        self._head_features: int | None = None
        self._zero_based_found: bool | None = None if zero_based == "auto" else bool(zero_based)
        self._density: tuple[float, float, float] | None = None
        self._line_room: LineRoom | None = None

    @abstractmethod
    def _open(self, part: int, offset: int = 0, hint: int = 1 << 62) -> AbstractContextManager[Fill]:
        """Context manager of a function that fills a memoryview with the text of a file from a byte on.

        `hint` is a position that the reader means to reach; reading far beyond it would be wasted.
        """

    @abstractmethod
    def _probe(self) -> tuple[int, int, int, float]:
        """Look at a few places of the text: (bytes seen, rows, colons, bytes of text in all), a bounded effort."""

    @abstractmethod
    def _compression(self, part: int) -> str:
        """Name what a file is compressed with; "none" for plain text."""

    def _densities(self) -> tuple[float, float, float]:
        """Estimate (rows, decoded bytes for each byte of text, values)."""
        if self._density is None:
            seen, rows, colons, text_bytes = self._probe()
            decoded = colons * (self.dtype.itemsize + 4) + rows * 12
            scale = text_bytes / max(seen, 1)
            self._density = max(1.0, rows * scale), max(decoded / max(seen, 1), 0.01), colons * scale
        return self._density

    @property
    def estimated_rows(self) -> int:
        """Rows, roughly: from the line feeds in a few pieces of the text."""
        return round(self._densities()[0])

    @property
    def estimated_features(self) -> int | None:
        """Features: as given, or of the widest row in the head of the first file that has rows."""
        if self.n_features is not None:
            return self.n_features
        if self._head_features is None:
            self._head_features = self._find_head_features()
        return self._head_features or None

    def _find_head_features(self) -> int:
        for part in range(len(self.paths)):
            builder = RowBuilder(TextFormat(None, True, True, self.dtype))
            with suppress(InvalidInputError):  # reading the rows will say so; those in front of it decide
                self._read_head(builder, part)
            if builder.n_rows:
                return builder.finish().X.shape[1] - (not self._format().zero_based)  # it was read from index 0
        return 0

    def details(self) -> dict[str, str]:
        """Say what the text is like; see `RowSource.details`. Reads the head, for which base the indices have."""
        packed = sorted({self._compression(part) for part in range(len(self.paths))})
        base = "zero-based" if self._format().zero_based else "one-based"
        why = f", as the head has {'an' if base == 'zero-based' else 'no'} index 0" if self._format().guessed else ""
        return {
            "format": "svmlight text" + (f" in {len(self.paths):,} files" if len(self.paths) > 1 else ""),
            "nnz": f"about {round(self._densities()[2]):,}",
            "indices": base + why,
            "compression": " and ".join(packed),
        }

    @cached_property
    def made_with(self) -> dict[str, int] | None:  # type: ignore[override]
        """The number that the file gives to column 0, unless that is 0; see `RowSource.made_with`."""
        return None if self._format().zero_based else {"first_index": 1}

    def _format(self) -> TextFormat:
        if self._zero_based_found is None:
            self._zero_based_found = self._find_zero_based()
        guessed, is_named = self.zero_based == "auto", self.feature_names is not None
        return TextFormat(self.n_features, self._zero_based_found, guessed, self.dtype, is_named)

    def _find_zero_based(self) -> bool:
        probing = TextFormat(None, True, True, self.dtype)
        for part in range(len(self.paths)):
            builder = RowBuilder(probing)
            self._read_head(builder, part)
            if builder.n_rows:
                return builder.has_column_0()
        return False

    def _read_head(self, builder: RowBuilder, part: int) -> None:
        """Add the rows at the head of a file, and the beginning of a long one; no plan knows yet what is left."""
        with self._open(part, hint=HEAD_BYTES) as fill, suppress(BadTextError):  # as above
            lines = LineReader(fill, 0, watch=stop_at_long)
            try:
                while lines.position < HEAD_BYTES and self._load_checked(lines, part):
                    builder.add(lines, HEAD_BYTES, part)
            except LongLineError:
                lines.take_beginning()
                if self._load_checked(lines, part):
                    builder.add(lines, HEAD_BYTES, part)

    def with_line_room(self, room: LineRoom) -> RowSource:
        """Bound lines; see `RowSource.with_line_room`."""
        bounded = copy(self)
        bounded._line_room = room
        return bounded

    @property
    def _line_cost(self) -> LineCost:
        """What a long line takes: its text, and its values."""
        return LineCost(_count_colons, partial(_line_memory, value_bytes=self.dtype.itemsize + _INDEX_BYTES))

    def _lines(self, fill: Fill, offset: int, part: int) -> LineReader:
        """Lines of a file, whose rows are read; long ones are refused where there is no room for them."""
        watch = None
        if self._line_room is not None:
            watch = LineWatch(self.paths[part], self._line_room, self._line_cost, partial(self._line_number, part))
        return LineReader(fill, offset, watch=watch)

    def _load_checked(self, lines: LineReader, part: int) -> bool:
        """Load lines; see to byte order marks where the file begins."""
        at_start = lines.position == 0
        try:
            loaded = lines.load()
        except InvalidInputError as error:
            line = self._line_number(part, lines.position)
            raise InvalidInputError(f"{self.paths[part]}, line {line:,} (byte {lines.position:,}): {error}") from None
        if loaded and at_start:
            head = bytes(lines.text[: min(lines.end, 8)])
            signature = signed(head)
            if signature in COMPRESSED or signature == "utf-16":
                remedy = "convert it to UTF-8" if signature == "utf-16" else "use CompressedSvmlightSource or unpack it"
                what = data_name(signature)
                raise InvalidInputError(f"{self.paths[part]}, line 1 (byte 0): {what}, not svmlight text; {remedy}")
            if head.startswith(b"\xef\xbb\xbf"):
                lines.text[:3] = 32  # blanks in front of a line mean nothing, and positions stay what they are
        return loaded

    def _add(self, builder: RowBuilder, lines: LineReader, limit: int, part: int) -> None:
        try:
            builder.add(lines, limit, part)
        except BadTextError as bad:
            line = self._line_number(part, bad.line_byte)
            raise InvalidInputError(f"{self.paths[part]}, line {line:,} (byte {bad.byte:,}): {bad.problem}") from None

    def _line_number(self, part: int, offset: int) -> int:
        with self._open(part) as fill:
            return line_number(fill, offset)

    def describe(self, place: int) -> str:
        """Say where a row is: ``x.svm, line 7 (byte 512)``. Lines are counted from 1, blank and comment lines too."""
        part, offset = part_and_byte(place)
        return f"{self.paths[part]}, line {self._line_number(part, offset):,} (byte {offset:,})"

    def stand_in(self) -> RowSource:
        """Give what calls on a cluster need, where only this process sees the text; see `RowSource.stand_in`."""
        return SentRows(self, partial(describe_byte, self.paths)) if self.in_process else self


def _count_colons(text: NDArray[np.uint8]) -> int:
    """Values in a piece of text."""
    return int(np.count_nonzero(text == _COLON))


def _line_memory(line: LongLine, value_bytes: int) -> int:
    """Memory that a long line takes."""
    return _TEXT_COPIES * line.n_bytes + _ROW_COPIES * value_bytes * line.n_units


def count_rows(text: bytes, at_end: bool) -> int:
    """Count the lines of a piece of text that can be rows, roughly: neither empty nor only a comment."""
    unfinished = at_end and not text.endswith(b"\n")
    return text.count(b"\n") - text.count(b"\n\n") - text.count(b"\n#") + unfinished
