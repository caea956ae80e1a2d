"""svmlight and libsvm text files, cut at byte ranges so that any piece can be read by itself.

A chunk owns the lines that start in its bytes: it looks one byte back to see whether its first byte starts a line, and
reads on behind its last byte to the end of a line. So nothing has to be scanned beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from streamkm.core.exceptions import InvalidParameterError, SourceError
from streamkm.sources.base import ChunkedSource, Rows
from streamkm.sources.chunks import Chunk, ChunkRuns
from streamkm.sources.stored import open_raw
from streamkm.sources.svmlight.files import SvmlightFiles, count_rows
from streamkm.sources.svmlight.indexed import IndexedText, index_text
from streamkm.sources.svmlight.rows import RowBuilder
from streamkm.sources.text_lines import BLOCK_BYTES, MAX_LINE_BYTES, Fill

PROBES, PROBE_BYTES = 16, 1 << 16
_LEAST_READ_BYTES = 1 << 12
_NO_HINT = 1 << 62
_LINE_BYTES = 1 << 15  # behind the end of a chunk: one request brings its last line too, unless that is longer


class SvmlightSource(SvmlightFiles, ChunkedSource):
    r"""Rows of plain svmlight text files; see `SvmlightFiles` for parameters and errors.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "x.svm"
    >>> _ = path.write_text("1 1:0.5 3:2\n-1 2:1e-3\n")
    >>> source = SvmlightSource([path])
    >>> [source.read(chunk).X.toarray().tolist() for chunk in source.chunks(1 << 20)]
    [[[0.5, 0.0, 2.0], [0.0, 0.001, 0.0]]]
    """

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut the files at even byte offsets, without regard to lines.

        Decoded bytes are projected from the density of colons and line feeds in the same probes that
        `estimated_rows` uses; a chunk of unusually dense text decodes to more.
        """
        if target_bytes < 1:
            raise InvalidParameterError(f"target_bytes must be positive, got {target_bytes}")
        return ChunkRuns.of(self._cuts(target_bytes, self._densities()[1]))

    def _cuts(self, target_bytes: int, decoded_per_byte: float) -> Iterator[tuple[int, int, int, int]]:
        """Part, start, stop and decoded bytes of each chunk."""
        for part, size in enumerate(self.sizes):
            n_chunks = min(size, math.ceil(size * decoded_per_byte / target_bytes))
            for i in range(n_chunks):
                start, stop = size * i // n_chunks, size * (i + 1) // n_chunks
                yield part, start, stop, int((stop - start) * decoded_per_byte) + 1

    def read(self, chunk: Chunk) -> Rows:
        """Read the rows of the lines that start in a chunk.

        Raises InvalidInputError for bad text, with file, line and byte. Raises SourceError if the file cannot be read,
        or was changed since the source was made.
        """
        builder = RowBuilder(self._format())
        # one byte back, for the line feed that tells whether the first byte starts a line
        begin = max(chunk.start - 1, 0)
        with self._open(chunk.part, begin, chunk.stop) as fill:
            lines = self._lines(fill, begin, chunk.part)
            if chunk.start == 0 or lines.skip_line(chunk.stop):
                while lines.position < chunk.stop and self._load_checked(lines, chunk.part):
                    self._add(builder, lines, chunk.stop, chunk.part)
        return builder.finish()

    def index_rows(self, chunk: Chunk) -> IndexedText | None:
        """Find the rows of a chunk of plain text by its line feeds and the last index of every line.

        None for other text, and for the head of a file, where a byte order mark may be.

        Raises SourceError as `read`.
        """
        if chunk.start == 0:
            return None
        begin = chunk.start - 1
        with self._open(chunk.part, begin, chunk.stop) as fill:
            longest = MAX_LINE_BYTES if self._line_room is None else BLOCK_BYTES  # a longer one is read, and watched
            return index_text(fill, begin, chunk, self._format(), partial(self.read, chunk), longest)

    @contextmanager
    def _open(self, part: int, offset: int = 0, hint: int = _NO_HINT) -> Iterator[Fill]:
        path, position = self.paths[part], offset
        try:
            file = open_raw(path, offset, None if hint == _NO_HINT else hint + _LINE_BYTES)
        except SourceError:
            raise
        except OSError as error:
            raise SourceError(f"{path}: cannot be opened: {error.strerror}") from error
        with file:
            file.seek(offset)

            def fill(view: memoryview) -> int:
                nonlocal position
                n_wanted = min(len(view), max(hint - position, _LEAST_READ_BYTES))
                try:
                    n_read = file.readinto(view[:n_wanted]) or 0
                except SourceError:
                    raise
                except OSError as error:
                    raise SourceError(f"{path}: cannot be read at byte {position:,}: {error.strerror}") from error
                position += n_read
                return n_read

            yield fill

    def _compression(self, part: int) -> str:  # noqa: ARG002
        return "none"

    def _probe(self) -> tuple[int, int, int, float]:
        text_bytes = sum(self.sizes)
        seen = rows = colons = 0
        part, before = 0, 0
        step = max(text_bytes // PROBES, PROBE_BYTES)
        for target in range(0, text_bytes, step):
            while target - before >= self.sizes[part]:
                before += self.sizes[part]
                part += 1
            view = memoryview(bytearray(PROBE_BYTES))
            with self._open(part, target - before) as fill:
                text = bytes(view[: fill(view)])
            seen += len(text)
            rows += count_rows(text, target - before + len(text) == self.sizes[part])
            colons += text.count(b":")
        return seen, rows, colons, float(text_bytes)
