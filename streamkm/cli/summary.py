"""Labels and texts that commands print of data and of results."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamkm.core.display import aligned, masked
from streamkm.metrics.cluster_summary import ClusterSummary, blank_text
from streamkm.preparation.scaling import FATES
from streamkm.sources import open_source
from streamkm.sources.arrow import kind_of_column

if TYPE_CHECKING:
    from streamkm.sources.row_source import RowSource

MOST_SHOWN = 20  # clusters of a table
_HEAD_BYTES = 1 << 20
_FEW, _JUDGED = 50, 10  # values of a column of text that become features; numbers that are judged
SIZES = "{smallest:,.6g} to {largest:,.6g} (without bounds {smallest_before:,.6g} to {largest_before:,.6g})"
_FEATURES = ("feature", "one-hot", "vector")


def result_lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Label and text of a result, for people."""
    data, result = summary["data"], summary["result"]
    space = "features of the kernel" if "trace_residual" in result else f"{result['assign_space']} space"
    lines = [
        ("rows", rows_text(data["n_samples"], data["n_skipped"])),
        ("blank", blank_text(data["n_blank"], by_words=summary["by_words"]) if data["n_blank"] else ""),
        ("missing", data["missing"]),
        ("features", f"{data['n_features']:,}"),
        ("clusters", f"{result['n_clusters']:,}"),
        ("sizes", SIZES.format(**result["size_balance"]) if "size_balance" in result else ""),
        ("objective", f"{result['objective']:,.6g} (sum of squared distances to the nearest center, in the {space})"),
        ("per row", f"{result['objective_per_row']:,.6g}"),
        ("passes", f"{result['n_passes']:,}"),
        *(("caution", caution) for caution in summary["cautions"]),
    ]
    return [line for line in lines if line[1]]


def clusters_text(found: ClusterSummary) -> str:
    """The table of the largest clusters, without the facts in `result_lines`."""
    more = len(found) - MOST_SHOWN
    table = str(replace(found, rows=found.rows[:MOST_SHOWN], missing=None, cautions=()))
    return table + (f"\nand {more:,} smaller clusters: report.html and streamkm.json have them" if more > 0 else "")


def rows_text(n_rows: int, n_skipped: int) -> str:
    """Say how many rows, and how many of them were skipped."""
    return f"{n_rows:,}" + (f" ({n_skipped:,} skipped)" if n_skipped else "")


def source_lines(source: RowSource) -> list[tuple[str, str]]:
    """Label and text, for people, of the facts of a source that need no read."""
    rows, features, n_bytes = source.estimated_rows, source.n_features, source.n_bytes
    about, stored = "" if source.n_rows is not None else "about ", source.origin.stored_dtype or source.dtype
    values = str(stored) if stored == source.dtype else f"{stored}, read as {source.dtype}"
    return [
        ("data", source.name),
        ("rows", "known after one pass" if rows is None else f"{about}{rows:,}"),
        ("features", "known after one pass" if features is None else f"{features:,}"),
        ("values", f"{values}, {'sparse' if source.is_sparse else 'dense'}"),
        ("stored bytes", "unknown" if n_bytes is None else f"{n_bytes:,}"),
        *source.details().items(),
    ]


def fates_of_columns(source: RowSource) -> list[tuple[str, str]]:
    """Label and text, for people, of the effect of the step "table" on columns, by the first rows without NaN."""
    from streamkm.passes.prepare import table_columns

    X = next(source.stream(_HEAD_BYTES)).X
    X, names = X[np.isfinite(X).all(axis=1)], source.feature_names or ()
    name = names.__getitem__ if names else "x{}".format
    told = table_columns(X, np.arange(len(X)), names).told(name) if len(X) > 1 else ()
    return [(f"by {len(X):,} rows", line) for line in told]


def table_text(path: str, known: Sequence[str], head: Any, form: Mapping[str, Any]) -> str:
    """A line for each column of a table by its first rows, and the command that fits it; `form`: its keys of data."""
    found = {name: head.column(name) for name in known if name in head.column_names}
    vector = next((name for name, values in found.items() if kind_of_column(values.type)[0] == "vector"), None)
    of: dict[str, list[str]] = {use: [] for use in (*_FEATURES, "id", "left out")}
    lines: list[tuple[str, ...]] = [("column", "type", "missing", "distinct", "smallest to largest", "in a fit")]
    for name, values in found.items():
        *seen, use = _seen(values)
        if vector not in (None, name) and use in _FEATURES:
            use = f"left out: beside the vectors of {vector}"
        elif use == "id" and of["id"]:
            use = "left out: names rows"
        of[use.partition(":")[0]].append(name)
        lines.append((name, *seen, use))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    about, command = [("data", masked(path))], "no column can be a feature"
    if any(of[use] for use in _FEATURES):
        categories = {"categories": "onehot"} if of["one-hot"] else {}
        given: dict[str, Any] = {"columns": of["vector"], "id_column": "".join(of["id"]), **categories}
        given |= {} if vector else {"exclude": of["left out"]}
        given = {key: value for key, value in given.items() if value}
        unread = {"categories": "hash"} if categories else {}  # takes no pass
        opened = open_source(path, **{**form, **given, **unread})
        about = [line for line in source_lines(opened) if line[0] not in ("features", "values", "left out")]
        words = ["streamkm", "fit", masked(path), "-k", str(min(10, head.num_rows))]
        for key, value in {**given, **form}.items():
            if key in form or "," in "".join(value):
                words += ["--set", f"data.{key}={json.dumps(value)}"]
            else:
                words += [f"--{key.replace('_', '-')}", value if isinstance(value, str) else ",".join(value)]
        words += ["--invalid", "mean"] if any(use == "feature" and n != "0" for _, _, n, *_, use in lines) else []
        words += ["--preprocess", "table"] if len(of["feature"] + of["one-hot"]) > 1 else []
        command = shlex.join(words)
    told = f"By the first {head.num_rows:,} rows. To fit (choose -k by streamkm sweep):\n  {command}"
    return f"{aligned(about)}\n\n{table}\n\n{told}"


def _seen(values: Any) -> tuple[str, ...]:
    """Type, missing and distinct values, smallest to largest, and the use in a fit of a column's first values."""
    from streamkm.passes.prepare import table_columns

    held, (kind, dtype), span, fate = values.drop_null().to_pylist(), kind_of_column(values.type), "", 0
    if kind == "number":
        numbers = np.array(held, np.float64)
        held = numbers = numbers[~np.isnan(numbers)]
        span = f"{numbers.min():.6g} to {numbers.max():.6g}" if len(numbers) else ""
        if len(numbers) >= _JUDGED:
            fate = int(table_columns(numbers[:, None], np.arange(len(numbers)), ()).fate[0])
    distinct, is_text = len(set(map(str, held))), kind == "category"
    names_rows = distinct == len(values) > 1 and (is_text or (fate > 3 and dtype.kind in "iu"))
    uses = {"": "left out: no numbers", "date": "left out: date: --dates days makes it a feature", "number": "feature"}
    uses |= {"category": "one-hot" if distinct <= _FEW else "left out: text of many values"}
    if not len(held):
        use = "left out: no values"
    elif names_rows:
        use = "id"
    else:
        use = f"left out: it is {FATES[fate]}" if fate > 2 else uses.get(kind, kind)
    return "text" if is_text else str(values.type), f"{len(values) - len(held):,}", f"{distinct:,}", span, use
