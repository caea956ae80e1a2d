"""Options by which later tables are opened as that of a fit was: its columns, in its order, with its categories.

Knows what a source says of itself (`made_with`), and what a value offers. Opens nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from streamkm.sources.formats import GENES, TABLES, is_folder, suffix_format
from streamkm.sources.frames import column_names
from streamkm.sources.paths import folder_files

CSV_KEYS = ("delimiter", "header", "newlines_in_values", "null_values")
# what features are made of: other ones are no use
_FEATURES = ("columns", "dtype", "categories", "n_features", "dates", "genes")
_CELLS = ("hdf5", "zarr")  # formats that may hold cells
_NOT_KEPT = (None, ",", "\t")  # what each file's name or text says


def table_options(made_with: Any, id_column: Any) -> dict[str, Any]:
    """Options of `open_source`, as JSON values, of what a source says of itself; none of other files and arrays."""
    made = made_with if isinstance(made_with, Mapping) else {}
    if not {*GENES}.isdisjoint(made):
        return {name: made[name] for name in GENES if name in made}
    table, dialect = made.get("table"), made.get("csv", {})
    if not isinstance(table, Mapping) or not isinstance(dialect, Mapping):
        return {}
    kept = {name: dialect[name] for name in CSV_KEYS if dialect.get(name) not in _NOT_KEPT}
    return {**table, **kept, **({} if id_column is None else {"id_column": id_column})}


def options_for(options: Mapping[str, Any], X: Any, *, ids: bool) -> dict[str, Any]:
    """Those of the options that open X; none where it has no use for them. `ids`: whether rows are to be named."""
    if isinstance(X, Mapping) and "path" in X:
        found = options_for(options, X["path"], ids=ids)
        given = {name: value for name, value in X.items() if name != "path"}
        features = {name: found[name] for name in _FEATURES if name in found}
        return {**found, **given, **features} if found else {}
    if isinstance(X, str | os.PathLike):
        return path_options({name: value for name, value in options.items() if ids or name != "id_column"}, X)
    if _are_cells(options):
        return dict(options) if all(hasattr(X, name) for name in ("X", "obs", "var")) else {}
    names = column_names(X)
    if names is None:
        return {}
    named = ids and options.get("id_column") in names
    return {name: value for name, value in options.items() if name not in CSV_KEYS and (named or name != "id_column")}


def path_options(options: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """Those of the options that open a path; none where its suffix is that of no file that takes them."""
    name = os.path.expanduser(os.fspath(path))
    if _are_cells(options):
        file, _, inner = name.rpartition(":/")  # the colon of s3:// is none of an inner path
        whole = file if file and not inner.startswith("/") else name
        return dict(options) if suffix_format(whole)[0] in _CELLS else {}
    folder = is_folder(name)
    if not options or not (folder or suffix_format(name)[0] in TABLES):
        return {}
    kind = suffix_format(folder_files(name)[0] if folder else name)[0]
    return {key: value for key, value in options.items() if kind == "csv" or key not in CSV_KEYS}


def _are_cells(options: Mapping[str, Any]) -> bool:
    return not {*GENES}.isdisjoint(options)
