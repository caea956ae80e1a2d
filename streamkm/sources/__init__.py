"""Readers of rows: one module for each kind of source, one contract for all of them (`row_source`).

`open_source` chooses the reader, and imports it and the packages it needs. Nothing here sketches or clusters.
"""

from streamkm.sources.chunks import Chunk
from streamkm.sources.open import open_source
from streamkm.sources.row_source import Rows, RowSource

__all__ = ["Chunk", "RowSource", "Rows", "open_source"]
