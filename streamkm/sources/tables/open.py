"""Which source files of tables need: `open_csv`, `open_parquet`, `open_arrow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamkm.sources.base import RowSource
from streamkm.sources.svmlight.compressed import compression
from streamkm.sources.tables.columns import read_options
from streamkm.sources.tables.csv_format import check_format


def open_csv(
    paths: Sequence[str],
    *,
    delimiter: Any = None,
    header: Any = None,
    newlines_in_values: Any = None,
    null_values: Any = None,
    **options: Any,
) -> RowSource:
    """Open CSV files, plain or compressed; see `open_source` for options, `CsvFiles` for errors."""
    from streamkm.sources.tables.csv_tables import CompressedCsvTable, CsvTable

    tabbed = _is_tabbed(paths[0])
    form = check_format(delimiter, header, newlines_in_values, null_values, tabbed=tabbed)
    kinds = {compression(path) for path in paths}
    return (CsvTable if kinds == {"plain"} else CompressedCsvTable)(paths, read_options(options), form)


def open_parquet(paths: Sequence[str], **options: Any) -> RowSource:
    """Open Parquet files; see `open_source` for options, `RowGroupTable` for errors."""
    from streamkm.sources.tables.parquet import ParquetTable

    return ParquetTable(paths, read_options(options))


def open_arrow(paths: Sequence[str], **options: Any) -> RowSource:
    """Open Arrow IPC files; see `open_source` for options, `RowGroupTable` for errors."""
    from streamkm.sources.tables.arrow_files import ArrowTable

    return ArrowTable(paths, read_options(options))


def _is_tabbed(path: str) -> bool:
    name = path.partition("?")[0].lower()
    return ".tsv" in name[-8:] or name.endswith(".tab")
