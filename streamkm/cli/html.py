"""The HTML page of a report: numbers in tables, pictures inline, so that it is one file that needs no other.

Responsible for markup and for escaping what comes from file names. Imports nothing of streamkm.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.6em; margin-bottom: 0 } h2 { font-size: 1.2em; margin: 2em 0 .5em }
img { width: 100%; height: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .2em 1.2em .2em 0; border-bottom: 1px solid #e4e4e4; vertical-align: top }
th { font-weight: 600 } td.number, th.number { text-align: right } .faint { color: #666 }
"""


def render_page(summary: dict[str, Any], pictures: Mapping[str, bytes]) -> str:
    """Render the report.

    Parameters
    ----------
    summary : dict
        Of `streamkm.cli.summary.summarize`.
    pictures : mapping of title to PNG
        In the order in which they are shown.

    Returns
    -------
    str
        HTML that needs no other file.

    Raises
    ------
    KeyError, TypeError
        If the summary lacks something.
    """
    data, result = summary["data"], summary["result"]
    rows = f"{data['n_samples']:,}" + (f", of which {data['n_skipped']:,} skipped" if data["n_skipped"] else "")
    distortion = result["distortion"]
    facts = [
        ("rows", rows),
        ("features", f"{data['n_features']:,}"),
        ("clusters", f"{result['n_clusters']:,}"),
        ("objective", f"{_number(result['objective'])} (sum of squared distances)"),
        ("objective per row", _number(result["objective_per_row"])),
        ("distortion of the sketch", "not measured" if distortion is None else _number(distortion)),
        ("components of the sketch", f"{result['n_components']:,}"),
        ("rows assigned in", f"the {result['assign_space']} space"),
        ("passes over the data", f"{result['n_passes']:,}"),
        ("iterations", f"{result['n_iter']:,}" + ("" if result["converged"] else ", stopped before convergence")),
        ("seconds", f"{summary['seconds']:.2f}"),
    ]
    stages = [
        (stage["name"], f"{stage['seconds']:.2f}", f"{stage['rows']:,}", f"{stage['read_bytes']:,}")
        for stage in summary["stages"]
    ]
    shown = "".join(_picture(title, picture) for title, picture in pictures.items())
    parameters = [(name, json.dumps(value)) for name, value in summary["parameters"].items()]
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    name = html.escape(str(data["name"]))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>streamkm: {name}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_STYLE}</style>\n</head>\n<body>\n'
        f'<h1>streamkm</h1>\n<p class="faint">{name}</p>\n{_table(facts)}{shown}<h2>Stages</h2>\n'
        f"{_table(stages, head=('stage', 'seconds', 'rows', 'bytes read'))}<h2>Parameters</h2>\n{_table(parameters)}"
        f'<p class="faint">{html.escape(versions)}</p>\n</body>\n</html>\n'
    )


def _picture(title: str, picture: bytes) -> str:
    encoded = base64.b64encode(picture).decode("ascii")
    return f'<h2>{html.escape(title)}</h2>\n<img alt="{html.escape(title)}" src="data:image/png;base64,{encoded}">\n'


def _table(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    def cells(row: tuple[str, ...], tag: str) -> str:
        kinds = ["", *([' class="number"'] * (len(row) - 1 if head else 0)), *([""] * len(row))]
        return "".join(f"<{tag}{kind}>{html.escape(text)}</{tag}>" for text, kind in zip(row, kinds, strict=False))

    lines = [f"<tr>{cells(head, 'th')}</tr>"] if head else []
    lines += [f"<tr>{cells(row, 'td')}</tr>" for row in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>\n"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:,.6g}"
