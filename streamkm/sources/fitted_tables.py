"""Options of tables: those of the user, and those by which later tables are opened like that of a fit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sources.arrow import Unseen
from streamkm.sources.formats import FORMATS, GENES, TABLES, is_folder, suffix_format
from streamkm.sources.frames import column_names
from streamkm.sources.paths import folder_files

CSV_KEYS = ("delimiter", "header", "newlines_in_values", "null_values")
# what features are made of: other ones are no use
_FEATURES = ("columns", "dtype", "categories", "n_features", "dates", "genes")
_CELLS = ("hdf5", "zarr")  # formats that may hold cells
_NOT_KEPT = (None, ",", "\t")  # what each file's name or text says


class HeadRead(Exception):  # noqa: N818
    """Names of all columns and a table's first rows, raised in place of a layout by ``categories=HeadRead``."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of columns, by the names of `open_source`."""

    columns: Sequence[str] | None = None  # those that are read, in this order; None: all
    exclude: Sequence[str] = ()  # those that are left out
    id_column: str | None = None  # left out too: it names rows
    # what columns of text become; a mapping names the columns: values of a one-hot one, or "onehot" or "hash"
    categories: str | Mapping[str, str | tuple[str, ...]] | type[HeadRead] | None = None
    dtype: np.dtype[Any] | None = None  # of the rows: float32 or float64; None: by the columns' types
    n_features: int = 1024  # that categories are hashed to
    categories_unseen: Unseen = "raise"  # what becomes of values of one-hot columns that are not known
    dates: str | None = None  # "days": dates are numbers
    index: tuple[str, ...] = ()  # by metadata of pandas; no features unless `columns` names them
    keys: Mapping[int, Mapping[str, str | None]] = field(default_factory=dict)  # and values of each file's folders

    def encoding_of(self, column: str) -> Any:
        """The encoding of a column that holds text: "onehot", "hash" or its values; None if text is an error."""
        return self.categories.get(column) if isinstance(self.categories, Mapping) else self.categories


def read_options(given: Mapping[str, Any]) -> TableOptions:
    """Check the given options of columns. Raises InvalidParameterError."""

    def need(name: str, fits: bool, needed: str) -> None:
        if not fits:
            raise InvalidParameterError(f"{name}={given[name]!r}; needed: {needed}")

    lists = {name: given[name] for name in ("columns", "exclude") if given.get(name) is not None}
    for name, given_names in lists.items():
        lists[name] = names = [given_names] if isinstance(given_names, str) else given_names
        are_names = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
        need(name, are_names and (name == "exclude" or len(names) > 0), "names of columns")
    need("id_column", isinstance(given.get("id_column"), str | None), "the name of a column")
    hows = [categories := given.get("categories")]
    if isinstance(categories, Mapping):
        hows = [how if isinstance(how, str) else tuple(map(str, how)) for how in categories.values()]
        categories = dict(zip(map(str, categories), hows, strict=True))
    words = (None, "onehot", "hash", HeadRead)
    fits = all(how in words or (how is not categories and isinstance(how, tuple)) for how in hows)
    need("categories", fits, '"onehot", "hash", or a mapping of columns to these or to their values')
    need("categories_unseen", given.get("categories_unseen", "raise") in get_args(Unseen), '"raise" or "ignore"')
    need("dates", given.get("dates") in (None, "days"), '"days"')
    dtype = None if given.get("dtype") is None else np.dtype(given["dtype"])
    need("dtype", dtype in (None, np.float32, np.float64), '"float32" or "float64"')
    n_hashed = given.get("n_features", 1024)
    is_count = isinstance(n_hashed, int) and n_hashed > 0 and ("n_features" not in given or "hash" in hows)
    need("n_features", is_count, 'a whole number from 1, for categories="hash" alone')
    keys = dict(enumerate(given.get("keys", ())))
    return TableOptions(**{**given, **lists, "categories": categories, "dtype": dtype, "keys": keys})


def described_table(layout: Any) -> dict[str, Any]:
    """Options, as JSON values, that turn other tables' columns into rows as a `TableSchema` does."""
    values = {column.name: column.values for column in layout.columns if column.kind == "category"}
    made = {
        "columns": layout.names,
        "dtype": str(layout.dtype) if layout.dtype.kind == "f" else None,
        "categories": {name: "hash" if known is None else list(known) for name, known in values.items()},
        "n_features": layout.n_hashed,
        "categories_unseen": layout.unseen if any(values.values()) and layout.unseen != "raise" else None,
        "dates": "days" if any(column.kind == "date" for column in layout.columns) else None,
    }
    return {"table": {name: value for name, value in made.items() if value}}


def table_options(made_with: Any, id_column: Any) -> dict[str, Any]:
    """Options of `open_source`, as JSON values, from a table's `made_with`; none for other files and arrays."""
    made = made_with if isinstance(made_with, Mapping) else {}
    if not {*GENES}.isdisjoint(made):
        return {name: made[name] for name in GENES if name in made}
    table, dialect = made.get("table"), made.get("csv", {})
    if not isinstance(table, Mapping) or not isinstance(dialect, Mapping):
        return {}
    kept = {name: dialect[name] for name in CSV_KEYS if dialect.get(name) not in _NOT_KEPT}
    return {**table, **kept, **({} if id_column is None else {"id_column": id_column})}


def options_for(options: Mapping[str, Any], X: Any, *, ids: bool) -> dict[str, Any]:
    """The options that open X, none if it takes none; `ids`: whether `id_column` is needed."""
    if isinstance(X, Mapping) and "path" in X:
        found = options_for(options, X["path"], ids=ids)
        given = {name: value for name, value in X.items() if name != "path"}
        features = {name: found[name] for name in _FEATURES if name in found}
        return {**found, **given, **features} if found else {}
    if isinstance(X, str | os.PathLike):
        return path_options({name: value for name, value in options.items() if ids or name != "id_column"}, X)
    if not {*GENES}.isdisjoint(options):
        return dict(options) if all(hasattr(X, name) for name in ("X", "obs", "var")) else {}
    names = column_names(X)
    if names is None:
        return {}
    named = ids and options.get("id_column") in names
    return {name: value for name, value in options.items() if name not in CSV_KEYS and (named or name != "id_column")}


def path_options(options: Mapping[str, Any], path: str | os.PathLike[str]) -> dict[str, Any]:
    """The options that open a path; none if its suffix is that of a file that takes none."""
    if not options:
        return {}
    name = os.path.expanduser(os.fspath(path))
    file, _, inner = name.rpartition(":/")  # the colon of s3:// is none of an inner path
    whole = file if file and not inner.startswith("/") else name
    kind = suffix_format(folder_files(whole)[0] if is_folder(whole) else whole)[0]
    taken = FORMATS[kind].options if kind in (*TABLES, *_CELLS) else ()
    return {key: value for key, value in options.items() if key in taken}
