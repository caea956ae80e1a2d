"""Content of a report page, one file that needs no other; its templates hold the markup and escape data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from streamkm.metrics.cluster_summary import Trait, blank_text, number_text
from streamkm.reports.maps import cluster_colours, text_on

if TYPE_CHECKING:
    from jinja2 import Environment

TITLE = "<title>streamkm: "  # at the head of every page, by which a file is known as one
WORTH = 0.01  # share of the objective that another round would have to gain to be worth it
_MOST_ROWS = 1000  # of the table of clusters
_FINDINGS = 3  # sentences, unless there are more cautions
_HEADS = {  # of the table of clusters: what it is called, and what it says
    "cluster": ("cluster", "the label of its rows"),
    "traits": ("set apart by", "features whose mean in it lies farthest from that of all rows, in standard deviations"),
    "size": ("rows, share", "and their share of all"),
    "simplified_silhouette": (
        "simplified silhouette",
        "mean over its rows, by distances to centers: 1 far from other clusters, 0 on the border",
    ),
    "mean_distance": ("distance, largest", "mean distance of its rows to the center, and the largest"),
    "nearest": ("nearest, how far", "the cluster whose mean lies nearest, and how far"),
    "typical": ("typical rows", "those nearest to the center, by number, from 0"),
}
_APART, _OVERLAP = 0.5, 0.25  # silhouettes from which, and below which, clusters are told to be apart and to overlap


def render(template: str, **values: Any) -> str:
    """Fill in a template of `streamkm.reports`; UndefinedError of jinja2 names a missing value."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    """The environment of templates, which escape every value."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("streamkm.reports")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    script = loader.get_source(made, "table.js")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made.globals |= {"title_mark": TITLE, "script": script, "script_digest": digest}
    made.filters |= {"count": "{:,}".format, "number": _number, "number_text": number_text, "text_on": text_on}
    made.filters["trait_text"] = lambda trait: str(Trait(**trait))
    return made


def render_page(facts: Mapping[str, Any], figures: Mapping[str, str], next_steps: str) -> str:
    """Render facts of `summarize` as HTML that needs no other file; KeyError or UndefinedError for missing ones.

    `figures`: "map" and "Sizes", above the table. `next_steps`: commands or lines of Python that go on from here.
    """
    by_words, result = bool(facts.get("by_words")), facts["result"]
    counts = result["counts"]
    total, order = sum(counts) or 1, sorted(range(len(counts)), key=lambda cluster: -counts[cluster])
    clusters = facts.get("clusters") or [
        {"cluster": cluster, "size": counts[cluster], "share": counts[cluster] / total} for cluster in order
    ]
    return render(
        "report.html.jinja",
        facts=facts,
        figures=figures,
        next=next_steps,
        by_words=by_words,
        lead=_lead(facts),
        cards=[*_cards(result)],
        findings=_findings(facts),
        columns=_columns(clusters, by_words),
        clusters=clusters[:_MOST_ROWS],
        colours=cluster_colours(counts),
        labels=result.get("ids") or range(len(counts)),
        parameters=[(name, json.dumps(value)) for name, value in facts["parameters"].items()],
    )


def _lead(facts: Mapping[str, Any]) -> str:
    """Describe the clustered data, in a sentence."""
    data, result = facts["data"], facts["result"]
    skipped = f" ({data['n_skipped']:,} skipped)" if data["n_skipped"] else ""  # null where it is not known
    passes = [] if result["n_passes"] is None else [f"{result['n_passes']:,} passes over the data"]
    seconds = [] if facts["seconds"] is None else [f"{facts['seconds']:.2f} s"]
    taken = f"; {', '.join([*passes, *seconds])}" if passes or seconds else ""
    n_blank = data.get("n_blank")
    blank = f" ({blank_text(n_blank, by_words=bool(facts.get('by_words')))})" if n_blank else ""
    missing = f"; {data['missing']}" if data.get("missing") else ""
    space = "" if result["assign_space"] == "original" else f", assigned in a sketch of {result['n_components']:,}"
    return (
        f"{data['n_samples']:,} rows{skipped}{blank} of {data['n_features']:,} features in {result['n_clusters']:,} "
        f"clusters{space}{taken}{missing}"
    )


def _findings(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Sentences on the explained variance, cautions and clusters that stand out, and their classes."""
    result, clusters = facts["result"], [row for row in facts.get("clusters") or () if row["traits"]]
    explained, silhouette = result.get("explained"), result.get("silhouette")
    found = n_clusters = f"{result['n_clusters']:,} clusters"
    if explained is not None:
        found += f" explain {explained:.0%} of the variance"
    if result.get("silhouette_error") is not None:
        how = "are well apart" if silhouette >= _APART else "overlap" if silhouette < _OVERLAP else "touch each other"
        found += f"; by their silhouette of {silhouette:.2f}, they {how}"
    told = [(found, "")] if found != n_clusters else []
    told += [(caution, "warn") for caution in (*facts.get("cautions", ()), *_cautions(result))]
    if clusters and len(told) < _FINDINGS:
        largest = clusters[0]
        names = [trait["feature"] for trait in largest["traits"]][: None if facts.get("by_words") else 1]
        named = f"cluster {largest['cluster']} is the largest, with {largest['share']:.1%} of the rows"
        told.append((f"{named}, set apart by {', '.join(names)}", ""))
    if len(clusters) > 1 and len(told) < _FINDINGS and not facts.get("by_words"):
        row = max(clusters[1:], key=lambda row: abs(row["traits"][0]["deviations"]))
        trait, side = row["traits"][0], "above" if row["traits"][0]["deviations"] > 0 else "below"
        far = f"{abs(trait['deviations']):.1f} standard deviations {side} the mean of all rows"
        told.append((f"cluster {row['cluster']}, of {_number(row['size'])} rows, has {trait['feature']} {far}", ""))
    return told


def _cautions(result: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on remedies by another fit."""
    gain, distortion = result.get("possible_gain"), result["distortion"]
    if gain is not None and gain > WORTH:
        yield f"another round would lower the objective by at least {gain:.1%}: refine, or give more memory"
    if distortion is not None and abs(distortion - 1) > WORTH:
        yield f"the objective in the sketch is {distortion:.3g} times that in the original space: take more components"
    if result["converged"] is False:
        yield f"Lloyd's algorithm stopped before convergence, after {result['n_iter']:,} iterations: raise max_iter"


def _cards(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Head, value, text and definition of each measure of quality."""
    explained, error, simplified = (result.get(n) for n in ("explained", "silhouette_error", "simplified_silhouette"))
    if explained is not None:
        yield "explained variance", f"{explained:.1%}", "", "share of the total variance; 100%: rows are their centers"
    if error is not None:
        rows = f"{result['silhouette_rows']:,} sampled rows{', sketched' if result['silhouette_sketched'] else ''}"
        value = f"{result['silhouette']:.2f} \u00b1 {error:.1g}"
        said = "how much nearer rows are to their own cluster than to the next one: 1 far from it, 0 on the border"
        yield "silhouette", value, f"of {rows}, with its standard error", said
    elif simplified is not None:
        said = "1 - a / b, a the distance to the center, b to the second nearest; higher than the silhouette, as a rule"
        yield "simplified silhouette", f"{simplified:.2f}", "of all rows", said
    sizes = result.get("size_balance")
    if sizes is not None:
        before = f"without bounds {_number(sizes['smallest_before'])} to {_number(sizes['largest_before'])}"
        said = f"rows of the smallest and the largest cluster; {sizes['n_moved']:,} rows were moved one by one"
        yield "sizes", f"{_number(sizes['smallest'])} to {_number(sizes['largest'])}", before, said
    per_row = f"{_number(result['objective_per_row'])} per row"
    yield "objective", _number(result["objective"]), per_row, "sum of squared distances of rows to their centers"


def _columns(clusters: Sequence[Mapping[str, Any]], by_words: bool) -> list[tuple[str, str, str]]:
    """Name, head and description of each column of the table of clusters."""
    known = [name for name in _HEADS if any(row.get(name) not in (None, [], ()) for row in clusters)]
    heads = {**_HEADS, "traits": ("words", "that it has more of than all rows")} if by_words else _HEADS
    return [(name, *heads[name]) for name in known]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:,.6g}"
