"""What commands print of data and of results, as labels and texts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from streamkm.cli.options import COLUMN_FLAGS
from streamkm.metrics.cluster_summary import ClusterSummary, blank_text
from streamkm.sources.arrow import MOST_VALUES, is_category, is_date, value_dtype

if TYPE_CHECKING:
    from streamkm.sources.base import RowSource

MOST_SHOWN = 20  # clusters of a table
_HEAD_BYTES = 1 << 20
_FEW, _COUNTED = 50, 10  # values of a column whose values become features; rows that tell a counter
_MANY = "left out: text of many values"
_ID = re.compile(r"(?i:(^|_|\W)(id|key|uuid|index|nr))$|[a-z]I[Dd]$")
FEATURES = ("feature", "date", "one-hot", "hashed", "vector")


def result_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and text, for people: what came out."""
    data, result = summary["data"], summary["result"]
    n_blank = data["n_blank"]
    return [
        ("rows", rows_text(data["n_samples"], data["n_skipped"])),
        *([("blank", blank_text(n_blank, by_words=summary["by_words"]))] if n_blank else []),
        *([("missing", data["missing"])] if data.get("missing") else []),
        ("features", f"{data['n_features']:,}"),
        ("clusters", f"{result['n_clusters']:,}"),
        ("objective", _objective_text(result)),
        ("passes", f"{result['n_passes']:,}"),
        *(("caution", caution) for caution in summary.get("cautions", ())),
    ]


def clusters_text(found: ClusterSummary, clusters: Sequence[Mapping[str, Any]]) -> str:
    """The table of the largest clusters, with the ids that `clusters` of a summary have for rows, if any."""
    ids = {each["row"]: each["id"] for row in clusters[:MOST_SHOWN] for each in row["typical"] if each.get("id")}
    shown = replace(found.with_examples(ids, {}), missing=None, cautions=())  # told above
    more = len(found) - MOST_SHOWN
    table = str(replace(shown, rows=shown.rows[:MOST_SHOWN]))
    return table + (f"\nand {more:,} smaller clusters: report.html and streamkm.json have them" if more > 0 else "")


def _objective_text(result: dict[str, Any]) -> str:
    """The objective, what it is, and its space unless that is the original one."""
    space = " among the kernel's features"
    if "trace_residual" not in result:
        space = "" if result["assign_space"] == "original" else f" in the {result['assign_space']} space"
    per_row = f"{result['objective_per_row']:,.6g} per row"
    return f"{result['objective']:,.6g} (sum of squared distances to the nearest center{space}; {per_row})"


def rows_text(n_rows: int, n_skipped: int) -> str:
    """Say how many rows, and how many of them were skipped."""
    return f"{n_rows:,}" + (f" ({n_skipped:,} skipped)" if n_skipped else "")


def source_lines(source: RowSource) -> list[tuple[str, str]]:
    """Label and text, for people: what is known of a source without reading it."""
    if source.n_rows is not None:
        rows = f"{source.n_rows:,}"
    else:
        about = source.estimated_rows
        rows = "known after one pass" if about is None else f"about {about:,}"
    stored = source.dtype if source.stored_dtype is None else source.stored_dtype
    values = str(stored) if stored == source.dtype else f"{stored}, read as {source.dtype}"
    return [
        ("data", source.name),
        ("rows", rows),
        ("features", "known after one pass" if source.n_features is None else f"{source.n_features:,}"),
        ("values", f"{values}, {'sparse' if source.is_sparse else 'dense'}"),
        ("stored bytes", "unknown" if source.n_bytes is None else f"{source.n_bytes:,}"),
        *source.details().items(),
    ]


def fates_of_columns(source: RowSource) -> list[tuple[str, str]]:
    """Label and text, for people: what the step "table" makes of columns, by the first rows without NaN."""
    from streamkm.passes.table import table_columns

    X = next(source.stream(_HEAD_BYTES)).X
    X, names = X[np.isfinite(X).all(axis=1)], source.feature_names or ()
    name = names.__getitem__ if names else "x{}".format
    told = table_columns(X, np.arange(len(X)), names).told(name) if len(X) > 1 else ()
    return [(f"by {len(X):,} rows", line) for line in told]


class Seen(NamedTuple):
    """A column by a table's first rows, and what a fit should do with it."""

    name: str
    type: str
    missing: int
    distinct: int
    use: str
    span: str = ""  # the smallest and the largest number


def seen_columns(known: Sequence[str], head: Any, given: Mapping[str, Any]) -> list[Seen]:
    """All columns of a table with the use of each in a fit; `given`: keys of the section data that the user set."""
    found = [
        _seen(name, head.column(name), given) if name in head.column_names else Seen(name, "", 0, 0, "left out: index")
        for name in known
    ]
    ids = sorted((each.name for each in found if each.use == "id"), key=lambda name: not _ID.search(name))
    chosen = given.get("id_column", next(iter(ids), None))
    vector = next((each.name for each in found if each.use == "vector"), None)
    beside = {use: f"left out: beside the vectors of {vector}" for use in FEATURES if vector is not None}
    uses = {"id": "left out: names rows"} | beside
    return [
        each if each.name in (chosen, vector) else each._replace(use=uses.get(each.use, each.use)) for each in found
    ]


def _seen(name: str, values: Any, given: Mapping[str, Any]) -> Seen:
    from pyarrow import compute, types

    kind, n_rows = values.type, len(values)
    values = values.cast(kind.value_type) if types.is_dictionary(kind) else values
    n_nan = compute.sum(compute.is_nan(values)).as_py() or 0 if types.is_floating(kind) else 0
    missing = values.null_count + n_nan
    distinct = 1 if types.is_nested(kind) else len(values.unique()) - (values.null_count > 0) - (n_nan > 0)
    text, (dtype, is_vector) = is_category(kind), value_dtype(kind)
    categories, named = given.get("categories"), _ID.search(name) is not None and name not in given.get("columns", ())
    is_unique = distinct == n_rows > 1
    if name == given.get("id_column"):
        use = "id"
    elif name in given.get("exclude", ()) or name not in given.get("columns", (name,)):
        use = "left out: as you say"
    elif missing == n_rows:
        use = "left out: no values"
    elif dtype is not None:
        whole = dtype.kind in "iu" and not is_vector
        counts = whole and is_unique and len({step > 0 for step in np.diff(values.to_pylist())}) == 1
        is_id = whole and is_unique and (named or (n_rows >= _COUNTED and counts))
        use = "vector" if is_vector else "id" if is_id else "feature"
        use = "left out: looks like an id" if whole and named and not is_id and distinct > _FEW else use
    elif is_date(kind):
        asked = given.get("dates") or name in given.get("columns", ())
        use = "date" if asked else "left out: date: --dates days makes it a feature"
    elif not text:
        use = "left out: no numbers"
    elif categories == "hash":
        use = "hashed"
    else:
        is_known = isinstance(categories, dict) and name in categories
        use = "one-hot" if is_known or (not is_unique and distinct <= _FEW) else "id" if is_unique else _MANY
    if dtype is None or is_vector or missing == n_rows:
        return Seen(name, "text" if text else str(kind), missing, distinct, use)
    held = np.asarray(values.drop_null().to_pylist(), np.float64)
    held = held[~np.isnan(held)]
    return Seen(name, str(kind), missing, distinct, use, f"{held.min():.6g} to {held.max():.6g}")


def fit_options(columns: Sequence[Seen], given: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the section data that open a table with these uses of its columns."""
    of = {use: [each.name for each in columns if each.use == use] for use in (*FEATURES, "id")}
    n_values = sum(each.distinct for each in columns if each.use == "one-hot")
    usual = {
        "columns": of["vector"],
        "id_column": next(iter(of["id"]), None),
        "categories": ("onehot" if n_values <= MOST_VALUES // 2 else "hash") if n_values else None,
        "dates": "days" if of["date"] else None,
    }
    found = usual | dict(given)
    left_out = [each.name for each in columns if each.use.startswith("left out") and each.type]
    more = [name for name in left_out if name in (found["columns"] or left_out)]
    found["exclude"] = list(dict.fromkeys([*given.get("exclude", ()), *more]))
    return {key: value for key, value in found.items() if value}


def fit_command(path: str, columns: Sequence[Seen], options: Mapping[str, Any], n_rows: int) -> str:
    """The command that fits a table so."""
    numbers = [each for each in columns if each.use in ("feature", "date")]
    words = ["streamkm", "fit", path, "-k", str(min(10, n_rows))]
    for key, value in options.items():
        names = [value] if isinstance(value, str) else value
        if key in COLUMN_FLAGS and isinstance(names, list) and not any("," in name for name in names):
            words += [f"--{key.replace('_', '-')}", ",".join(names)]
        else:
            words += ["--set", f"data.{key}={json.dumps(value)}"]
    words += ["--invalid", "mean"] if any(each.missing for each in numbers) else []
    names = [each.name for each in numbers]
    texts = [each for each in columns if each.use in ("one-hot", "hashed")]  # features that keep their 0 and 1
    if options.get("categories") != "hash":
        words += ["--preprocess", "table"] if texts or len(names) > 1 else []
    elif names:
        words += ["--set", f"estimator.preprocess={json.dumps({'standardize': names})}"]
    return shlex.join(words)


def columns_text(columns: Sequence[Seen]) -> str:
    """A line for each column, the cells of all below each other."""
    cells = [(*each[:2], f"{each.missing:,}", f"{each.distinct:,}", each.span, each.use) for each in columns]
    lines = [("column", "type", "missing", "distinct", "smallest to largest", "in a fit"), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
