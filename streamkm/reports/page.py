"""The page of a report, one file that needs no other: what came out on one screen, how it was made below.

Responsible for markup and for escaping what comes from data. Knows plain values and text alone.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamkm.metrics.cluster_summary import blank_text, number_text

TITLE = "<title>streamkm: "
"""At the head of every page, by which a file is known as one."""
POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
)
"""In the head of every page: browsers run no scripts and load nothing, whatever names and words come from data."""
WORTH = 0.01  # share of the objective that another round would have to gain to be worth it
_MOST_ROWS = 1000  # of the table of clusters
STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #222222; --faint: #666666; --line: #e4e4e4; --bar: #0072B2;
  --good: #00735c; --warn: #b04a00 }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --ink: #e6e6e6; --faint: #a4a8ae; --line: #363a40;
  --bar: #56B4E9; --good: #3ecf9f; --warn: #ff9c4a } }
* { box-sizing: border-box }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 0 auto;
  max-width: 1500px; padding: 1em 1.5em 2em }
h1 { font-size: 1.35em; margin: 0; overflow-wrap: anywhere } h2 { font-size: 1.05em; margin: 0 0 .4em }
.lead { margin: .1em 0 .8em; color: var(--faint) }
.facts { display: flex; flex-wrap: wrap; gap: .5em; margin: 0 0 1em; padding: 0 }
.facts div { border: 1px solid var(--line); border-radius: 6px; padding: .35em .8em; flex: 1 1 11em }
dt { color: var(--faint); font-size: .86em } dd { margin: 0; font-size: 1.2em; font-weight: 600 }
dd small { display: block; font-size: .7em; font-weight: 400; color: var(--faint) }
.good { color: var(--good) } .warn { color: var(--warn) }
.screen { display: grid; grid-template-columns: minmax(0, 3fr) minmax(0, 2fr); gap: 1.5em; align-items: start }
@media (max-width: 1000px) { .screen { grid-template-columns: minmax(0, 1fr) } }
.scroll { overflow: auto; max-height: 40em; border: 1px solid var(--line); border-radius: 6px }
.scroll:focus-visible, summary:focus-visible { outline: 3px solid var(--bar); outline-offset: 1px }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92em }
th, td { text-align: left; padding: .2em .5em; border-bottom: 1px solid var(--line); vertical-align: top }
.scroll thead th { position: sticky; top: 0; background: var(--page) }
th { font-weight: 600 } .number { text-align: right; white-space: nowrap }
thead th.number { white-space: normal }
.bar { display: block; height: 3px; background: var(--bar); border-radius: 2px; margin: .15em 0 0 auto }
td.pictures { white-space: nowrap }
.pictures img { height: 42px; image-rendering: pixelated; margin: 0 3px 0 0; border: 1px solid var(--line) }
.pictures img:first-child { margin-right: 9px; border-color: var(--ink) }
.traits { min-width: 12em; overflow-wrap: anywhere }
.traits span { display: block } .traits small { color: var(--faint); white-space: nowrap }
figure + h2, table + h2 { margin-top: 1em } .typical { min-width: 6em; overflow-wrap: anywhere }
svg { width: 100%; height: auto; display: block } figure { margin: 0 }
figcaption, .faint { color: var(--faint); font-size: .86em }
pre { overflow: auto; border: 1px solid var(--line); border-radius: 6px; padding: .6em .8em; margin: .3em 0 1em;
  font-size: .85em }
details { margin: .8em 0 0; border-top: 1px solid var(--line); padding-top: .5em }
summary { cursor: pointer; font-weight: 600 }
section { margin-top: 1.2em } section.below svg { max-width: 760px }
"""
_MOST_TYPICAL = 2
_SCROLL = '<div class="scroll" tabindex="0" role="region" aria-label="{}">'
_NUMBERS = frozenset({"cluster", "size", "silhouette", "mean_distance", "nearest"})
_HEADS = {  # of the table of clusters: what it is called, and what it says
    "cluster": ("cluster", "the label of its rows"),
    "pictures": ("pictures", "its center; then rows nearest to it, and far ones, where there are some"),
    "size": ("rows, share", "and their share of all"),
    "silhouette": ("silhouette", "mean over its rows: 1 far from other clusters, 0 on the border"),
    "mean_distance": ("distance, largest", "mean distance of its rows to the center, and the largest"),
    "nearest": ("nearest, how far", "the cluster whose mean lies nearest, and how far"),
    "traits": ("set apart by", "what its rows have more or less of than all rows"),
    "typical": ("typical rows", "those nearest to the center, by number, from 0"),
}


def render_page(facts: Mapping[str, Any], figures: Mapping[str, str], next_steps: str) -> str:
    """Render the report.

    Parameters
    ----------
    facts : mapping
        Of `streamkm.estimators.fit_summary.summarize`.
    figures : mapping of str to SVG
        "map" beside the table; others below, under their names.
    next_steps : str
        Commands or lines of Python that go on from here.

    Returns
    -------
    str
        HTML that needs no other file.

    Raises
    ------
    KeyError, TypeError
        If something is missing.
    """
    name = html.escape(str(facts["data"]["name"]))
    clusters = facts.get("clusters") or []
    beside = figure_html("Map of the clusters", figures["map"], facts["map"]) if "map" in figures else ""
    below = "".join(
        f"<section class=below>{figure_html(title, text)}</section>"
        for title, text in figures.items()
        if title != "map"
    )
    table = _clusters(clusters, facts) if clusters else _sizes(facts["result"]["counts"])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{POLICY}{TITLE}{name}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n'
        f'<h1>{name}</h1>\n<p class="lead">{html.escape(_lead(facts))}</p>\n{_cards(facts)}'
        f'<div class="screen">\n<section style="margin:0">{table}</section>\n<section style="margin:0">{beside}'
        f"<h2>What to do next</h2>\n<pre tabindex=0>{html.escape(next_steps)}</pre></section>\n</div>\n"
        f"{below}{_making(facts)}</main>\n</body>\n</html>\n"
    )


def _lead(facts: Mapping[str, Any]) -> str:
    """What was clustered, in a sentence."""
    data, result = facts["data"], facts["result"]
    skipped = f" ({data['n_skipped']:,} skipped)" if data["n_skipped"] else ""  # null where it is not known
    passes = [] if result["n_passes"] is None else [f"{result['n_passes']:,} passes over the data"]
    seconds = [] if facts["seconds"] is None else [f"{facts['seconds']:.2f} s"]
    taken = f"; {', '.join([*passes, *seconds])}" if passes or seconds else ""
    n_blank = data.get("n_blank", 0)  # results of earlier versions do not say
    blank = f" ({blank_text(n_blank, by_words=bool(facts.get('by_words')))})" if n_blank else ""
    space = "" if result["assign_space"] == "original" else f", assigned in a sketch of {result['n_components']:,}"
    return (
        f"{data['n_samples']:,} rows{skipped}{blank} of {data['n_features']:,} features in {result['n_clusters']:,} "
        f"clusters{space}{taken}"
    )


def _cards(facts: Mapping[str, Any]) -> str:
    """How good it is, and how sure."""
    result = facts["result"]
    cards = [
        (
            "objective",
            _number(result["objective"]),
            f"{_number(result['objective_per_row'])} a row: sum of squared distances",
        )
    ]
    explained, silhouette = result.get("explained"), result.get("silhouette")
    if explained is not None:
        cards.append(("explained by the clusters", f"{explained:.1%}", "of the rows' squared distances to their mean"))
    if silhouette is not None:
        cards.append(("mean silhouette", f"{silhouette:.2f}", "1: clusters far apart, 0: rows on borders"))
    cards += _certificate(result)
    if result["distortion"] is not None and abs(result["distortion"] - 1) > WORTH:
        cards.append(("objective in the sketch", f"{result['distortion']:.3g} x", "of the original one"))
    if not result["converged"]:
        cards.append(("iterations", f"{result['n_iter']:,}", '<span class="warn">stopped before convergence</span>'))
    inner = "".join(
        f"<div><dt>{html.escape(head)}</dt><dd>{value}<small>{text}</small></dd></div>" for head, value, text in cards
    )
    return f'<dl class="facts">{inner}</dl>\n'


def _certificate(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the sample promised, and what one split and merge could gain."""
    expected, gain = result.get("expected_inertia"), result.get("possible_gain")
    cards = []
    if gain is not None:
        more = gain > WORTH
        said = f"at least {gain:.1%}" if more else f"below {WORTH:.0%}"
        text = (
            "rows drawn in the last pass say so: refine, or give more memory"
            if more
            else "by rows drawn in the last pass; other starts may end lower"
        )
        cards.append(("one split and merge gains", f'<span class="{"warn" if more else "good"}">{said}</span>', text))
    if expected is not None and result.get("expected_inertia_error"):
        off = result["objective"] / expected - 1 if expected and result["objective"] is not None else 0.0
        error = result["expected_inertia_error"] / expected if expected else 0.0
        cards.append(("sample promised", f"{_number(expected)}", f"within {error:.1%}; all rows gave {off:+.1%}"))
    return cards


def _clusters(clusters: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """The table of clusters, in a region that scrolls by keys."""
    known = [name for name in _HEADS if any(row.get(name) not in (None, [], ()) for row in clusters)]
    if "pictures" in known:  # they say more than the numbers of some pixels, and of rows that are shown
        told = {"traits", *(["typical"] if any(len(row["pictures"]) > 1 for row in clusters) else [])}
        known = [name for name in known if name not in told]
    heads = {**_HEADS, "traits": ("words", "that it has more of than all rows")} if facts.get("by_words") else _HEADS
    head = "".join(
        f'<th scope="col"{_kind(name)} title="{html.escape(heads[name][1])}">{heads[name][0]}</th>' for name in known
    )
    cells = _Cells(max(row["size"] for row in clusters) or 1.0, bool(facts.get("by_words")))
    shown, n_all = clusters[:_MOST_ROWS], facts["result"]["n_clusters"]
    lines = "".join(f"<tr>{''.join(cells.cell(name, row) for name in known)}</tr>\n" for row in shown)
    number = f"the {len(shown):,} largest of {n_all:,}" if n_all > len(shown) else f"{n_all:,}"
    return (
        f"<h2>Clusters ({number})</h2>\n{_SCROLL.format('Table of clusters')}<table><thead><tr>{head}</tr></thead>"
        f"<tbody>\n{lines}</tbody></table></div>\n"
    )


def _kind(name: str) -> str:
    return f' class="{"number" if name in _NUMBERS else name}"'


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells of the table of clusters.

    Attributes
    ----------
    largest : float
        Size of the largest cluster, whose bar is as wide as the cell.
    by_words : bool
    """

    largest: float
    by_words: bool

    def cell(self, name: str, row: Mapping[str, Any]) -> str:
        """One cell; a dash where nothing is known."""
        text = "-" if row.get(name) is None else getattr(self, name)(row)
        return f'<th scope="row" class="number">{text}</th>' if name == "cluster" else f"<td{_kind(name)}>{text}</td>"

    def cluster(self, row: Mapping[str, Any]) -> str:
        return str(row["cluster"])

    def pictures(self, row: Mapping[str, Any]) -> str:
        return "".join(
            f'<img src="{address}" alt="{html.escape(name)}" title="{html.escape(name)}">'
            for name, address in row["pictures"]
        )

    def size(self, row: Mapping[str, Any]) -> str:
        bar = f'<span class="bar" style="width:{100 * row["size"] / self.largest:.1f}%"></span>'
        return f"{row['size']:,.6g} <span class=faint>{row['share']:.1%}</span>{bar}"

    def silhouette(self, row: Mapping[str, Any]) -> str:
        return f"{row['silhouette']:.2f}"

    def mean_distance(self, row: Mapping[str, Any]) -> str:
        return f"{row['mean_distance']:.4g} <span class=faint>{number_text(row['largest_distance'])}</span>"

    def nearest(self, row: Mapping[str, Any]) -> str:
        return "-" if row["nearest"] < 0 else f"{row['nearest']} <span class=faint>{row['distance']:.4g}</span>"

    def traits(self, row: Mapping[str, Any]) -> str:
        if self.by_words:
            return html.escape(", ".join(str(trait["feature"]) for trait in row["traits"]))
        return "".join(f"<span>{_trait(trait)}</span>" for trait in row["traits"])

    def typical(self, row: Mapping[str, Any]) -> str:
        shown = (each["row"] if each["id"] is None else each["id"] for each in row["typical"][:_MOST_TYPICAL])
        return html.escape(", ".join(map(str, shown)))


def _trait(trait: Mapping[str, Any]) -> str:
    name = html.escape(str(trait["feature"]))
    return f"{name} {trait['mean']:.4g} <small>({trait['deviations']:+.1f} sd)</small>"


def _sizes(counts: Sequence[float]) -> str:
    """The clusters where no more is known than their sizes."""
    order = sorted(range(len(counts)), key=lambda cluster: -counts[cluster])[:_MOST_ROWS]
    rows = [(str(cluster), f"{counts[cluster]:,.6g}") for cluster in order]
    return f"<h2>Clusters</h2>\n{_SCROLL.format('Sizes')}{table_html(rows, ('cluster', 'rows'))}</div>\n"


def _making(facts: Mapping[str, Any]) -> str:
    """How it was made, folded away."""
    stages = [
        (stage["name"], f"{stage['seconds']:.2f}", f"{stage['rows']:,}", f"{stage['read_bytes']:,}")
        for stage in facts["stages"]
    ]
    parameters = [(name, json.dumps(value)) for name, value in facts["parameters"].items()]
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    result = facts["result"]
    distortion = result["distortion"]
    more = [
        ("components of the sketch", f"{result['n_components']:,}"),
        (
            "objective in the sketch over that in the original space",
            "not measured" if distortion is None else _number(distortion),
        ),
        ("iterations of the last stage", f"{result['n_iter']:,}"),
        ("seed", str(result.get("seed"))),
    ]
    return (
        f"<details><summary>Stages</summary>{table_html(stages, ('stage', 'seconds', 'rows', 'bytes read'))}"
        f"{table_html(more)}</details>\n"
        f"<details><summary>Parameters and versions</summary>{table_html(parameters)}"
        f'<p class="faint">{html.escape(versions)}</p></details>\n'
    )


def figure_html(title: str, text: str, caption: str = "") -> str:
    """A figure with its title; what it shows is read out by screen readers.

    Parameters
    ----------
    text : str
        An SVG element.
    """
    label = html.escape(f"{title}. {caption}" if caption else title)
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    picture = text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return f"<h2>{html.escape(title)}</h2>\n<figure>{picture}{below}</figure>\n"


def table_html(rows: Sequence[tuple[str, ...]], head: tuple[str, ...] = ()) -> str:
    """A table of texts; with a head, all columns but the first are of numbers."""

    def cells(row: tuple[str, ...], tag: str) -> str:
        kinds = ["", *([' class="number"'] * (len(row) - 1 if head else 0)), *([""] * len(row))]
        return "".join(f"<{tag}{kind}>{html.escape(text)}</{tag}>" for text, kind in zip(row, kinds, strict=False))

    lines = [f"<tr>{cells(head, 'th')}</tr>"] if head else []
    lines += [f"<tr>{cells(row, 'td')}</tr>" for row in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>\n"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:,.6g}"
