"""What commands print of data and of results, as labels and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkm.fitting.labelling.gain import WORTH
from streamkm.metrics.cluster_summary import blank_text

if TYPE_CHECKING:
    from streamkm.sources.base import RowSource


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
        *_promise_lines(result),
        ("passes", f"{result['n_passes']:,} in {summary['seconds']:.2f} s"),
    ]


def _promise_lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The prediction from the sample, and the estimated gain of one split and merge, if known."""
    expected, gain = result.get("expected_inertia"), result.get("possible_gain")
    if gain is None:
        return []
    if gain > WORTH:
        more = f"one split and merge gains at least {gain:.1%}"
    else:
        more = f"no split and merge was found that gains {WORTH:.0%}"
    if expected is None:
        return [("possible gain", more)]
    said = f"{expected:,.6g} +- {result['expected_inertia_error']:,.2g} from the sample"
    return [("predicted", f"{said}; {more}")]


def _objective_text(result: dict[str, Any]) -> str:
    """The objective, what it is, and its space unless that is the original one."""
    if "trace_residual" in result:
        space = " among the kernel's features"
    else:
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
