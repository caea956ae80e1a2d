"""Where rows come from: one module a kind of source, one contract for all of them (`base`).

`open_source` picks the reader. Readers and the packages that they need are imported when they are picked.
"""

from streamkm.sources.base import Chunk, ChunkedSource, Rows, RowSource
from streamkm.sources.open import open_source

__all__ = ["Chunk", "ChunkedSource", "RowSource", "Rows", "open_source"]
