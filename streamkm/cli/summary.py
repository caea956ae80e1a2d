"""What commands print of data and of results, as labels and texts."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamkm.core.display import aligned, masked
from streamkm.metrics.cluster_summary import ClusterSummary, blank_text
from streamkm.preparation.scaling import FATES
from streamkm.sources import open_source
from streamkm.sources.arrow import kind_of_column

if TYPE_CHECKING:
    from streamkm.sources.base import RowSource

MOST_SHOWN = 20  # clusters of a table
_HEAD_BYTES = 1 << 20
_FEW, _JUDGED = 50, 10  # values of a column of text that become features; numbers that are judged
_FEATURES = ("feature", "one-hot", "vector")


def result_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and text, for people: what came out."""
    data, result = summary["data"], summary["result"]
    space = "features of the kernel" if "trace_residual" in result else f"{result['assign_space']} space"
    return [
        ("rows", rows_text(data["n_samples"], data["n_skipped"])),
        *([("blank", blank_text(data["n_blank"], by_words=summary["by_words"]))] if data["n_blank"] else []),
        *([("missing", data["missing"])] if data.get("missing") else []),
        ("features", f"{data['n_features']:,}"),
        ("clusters", f"{result['n_clusters']:,}"),
        ("objective", f"{result['objective']:,.6g} (sum of squared distances to the nearest center, in the {space})"),
        ("per row", f"{result['objective_per_row']:,.6g}"),
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
    from streamkm.passes.prepare import table_columns

    X = next(source.stream(_HEAD_BYTES)).X
    X, names = X[np.isfinite(X).all(axis=1)], source.feature_names or ()
    name = names.__getitem__ if names else "x{}".format
    told = table_columns(X, np.arange(len(X)), names).told(name) if len(X) > 1 else ()
    return [(f"by {len(X):,} rows", line) for line in told]


class Seen(NamedTuple):
    """A column by a table's first rows, and what a fit should do with it."""

    name: str
    type: str
    missing: str
    distinct: str
    span: str  # the smallest and the largest number
    use: str


def table_text(path: str, known: Sequence[str], head: Any, form: Mapping[str, Any]) -> str:
    """What is known of a table, a line for each column by its first rows, and the command that fits it.

    `form`: keys of the section data by which it is opened.
    """
    vector = next((name for name in head.column_names if kind_of_column(head.column(name).type)[0] == "vector"), None)
    columns = [_seen(name, head.column(name), vector) for name in known if name in head.column_names]
    of = {use: [each.name for each in columns if each.use == use] for use in (*_FEATURES, "id")}
    columns = [each._replace(use="left out: names rows") if each.name in of["id"][1:] else each for each in columns]
    options: dict[str, Any] = {
        "columns": of["vector"],
        "id_column": of["id"][:1],
        "categories": ["onehot"] if of["one-hot"] else [],
        "exclude": [] if vector else [each.name for each in columns if each.use.startswith("left out")],
    }
    words = ["streamkm", "fit", masked(path), "-k", str(min(10, head.num_rows))]
    for key, names in options.items():
        if any("," in name for name in names):
            words += ["--set", f"data.{key}={json.dumps(names)}"]
        elif names:
            words += [f"--{key.replace('_', '-')}", ",".join(names)]
    words += [word for key, value in form.items() for word in ("--set", f"data.{key}={json.dumps(value)}")]
    words += ["--invalid", "mean"] if any(each.use == "feature" and each.missing != "0" for each in columns) else []
    words += ["--preprocess", "table"] if len(of["feature"] + of["one-hot"]) > 1 else []
    lines, last = [("data", masked(path))], "no column can be a feature"
    if any(of[use] for use in _FEATURES):
        opened = {key: names for key, names in options.items() if names}
        opened |= {"id_column": of["id"][0]} if of["id"] else {}
        opened |= {"categories": "hash"} if of["one-hot"] else {}  # reads no rows
        lines, last = source_lines(open_source(path, **form, **opened)), shlex.join(words)
    kept = aligned(line for line in lines if line[0] not in ("features", "values", "left out"))
    cells = [("column", "type", "missing", "distinct", "smallest to largest", "in a fit"), *columns]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    table = "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)
    return f"{kept}\n\n{table}\n\nBy the first {head.num_rows:,} rows. To fit (choose -k by streamkm sweep):\n  {last}"


def _seen(name: str, values: Any, vector: str | None) -> Seen:
    (found, dtype), held, span = kind_of_column(values.type), values.drop_null().to_pylist(), ""
    kind = "text" if found == "category" else str(values.type)
    if found == "number":
        numbers = np.array(held, np.float64)
        held = numbers[~np.isnan(numbers)].tolist()
        span = f"{min(held):.6g} to {max(held):.6g}" if held else ""
    distinct = len(set(map(str, held)))
    is_unique = distinct == len(values) > 1
    if not held:
        use = "left out: no values"
    elif found == "category":
        use = "id" if is_unique else "one-hot" if distinct <= _FEW else "left out: text of many values"
    elif found == "number":
        use = _use_of_numbers(np.array(held), names_rows=is_unique and dtype.kind in "iu")
    else:
        use = {"": "left out: no numbers", "date": "left out: date: --dates days makes it a feature"}.get(found, found)
    if vector not in (None, name) and use in _FEATURES:
        use = f"left out: beside the vectors of {vector}"
    return Seen(name, kind, f"{len(values) - len(held):,}", f"{distinct:,}", span, use)


def _use_of_numbers(values: NDArray[np.float64], *, names_rows: bool) -> str:
    """The use of a column, by what the step "table" would do with it."""
    from streamkm.passes.prepare import table_columns

    fate = int(table_columns(values[:, None], np.arange(len(values)), ()).fate[0]) if len(values) >= _JUDGED else 0
    return "feature" if fate < 3 else "id" if fate > 3 and names_rows else f"left out: it is {FATES[fate]}"
