"""The page of a report, one file that needs no other: what came out on one screen, how it was made below.

Responsible for what a page says; the templates beside it hold the markup and escape what comes from data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from streamkm.metrics.cluster_summary import blank_text, number_text

if TYPE_CHECKING:
    from jinja2 import Environment

TITLE = "<title>streamkm: "
"""At the head of every page, by which a file is known as one."""
WORTH = 0.01  # share of the objective that another round would have to gain to be worth it
_MOST_ROWS = 1000  # of the table of clusters
_NUMBERS = frozenset({"cluster", "size", "simplified_silhouette", "mean_distance", "nearest"})
_HEADS = {  # of the table of clusters: what it is called, and what it says
    "cluster": ("cluster", "the label of its rows"),
    "pictures": ("pictures", "its center; then rows nearest to it, and far ones, where there are some"),
    "size": ("rows, share", "and their share of all"),
    "simplified_silhouette": (
        "simplified silhouette",
        "mean over its rows, by distances to centers: 1 far from other clusters, 0 on the border",
    ),
    "mean_distance": ("distance, largest", "mean distance of its rows to the center, and the largest"),
    "nearest": ("nearest, how far", "the cluster whose mean lies nearest, and how far"),
    "traits": ("set apart by", "what its rows have more or less of than all rows"),
    "typical": ("typical rows", "those nearest to the center, by number, from 0"),
}

Card = tuple[str, str, str, str, str]  # head, value, text, and the classes of value and text


def render(template: str, **values: Any) -> str:
    """Fill in a template of `streamkm.reports`; a KeyError names a value that it lacks."""
    from jinja2 import UndefinedError

    try:
        return _environment().get_template(template).render(values)
    except UndefinedError as error:
        raise KeyError(str(error)) from error


@cache
def _environment() -> Environment:
    """The templates, which escape every value."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("streamkm.reports")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals["title_mark"] = TITLE
    made.filters |= {"count": "{:,}".format, "number": _number, "number_text": number_text}
    return made


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
    clusters, by_words, result = facts.get("clusters") or [], bool(facts.get("by_words")), facts["result"]
    counts, distortion, ids = result["counts"], result["distortion"], result.get("ids")
    order = sorted(range(len(counts)), key=lambda cluster: -counts[cluster])[:_MOST_ROWS]
    return render(
        "report.html.jinja",
        facts=facts,
        figures=figures,
        next=next_steps,
        by_words=by_words,
        lead=_lead(facts),
        cards=[*_cards(result)],
        cautions=facts.get("cautions", ()),
        columns=_columns(clusters, by_words),
        clusters=clusters[:_MOST_ROWS],
        sizes=[(cluster if ids is None else ids[cluster], _number(counts[cluster])) for cluster in order],
        stages=[
            (stage["name"], f"{stage['seconds']:.2f}", f"{stage['rows']:,}", f"{stage['read_bytes']:,}")
            for stage in facts["stages"]
        ],
        numbers=[
            ("components of the sketch", f"{result['n_components']:,}"),
            (
                "objective in the sketch over that in the original space",
                "not measured" if distortion is None else _number(distortion),
            ),
            ("iterations of the last stage", "not known" if result["n_iter"] is None else f"{result['n_iter']:,}"),
            ("seed", result.get("seed")),
        ],
        parameters=[(name, json.dumps(value)) for name, value in facts["parameters"].items()],
        versions=", ".join(f"{name} {number}" for name, number in facts["versions"].items()),
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
    missing = f"; {data['missing']}" if data.get("missing") else ""
    space = "" if result["assign_space"] == "original" else f", assigned in a sketch of {result['n_components']:,}"
    return (
        f"{data['n_samples']:,} rows{skipped}{blank} of {data['n_features']:,} features in {result['n_clusters']:,} "
        f"clusters{space}{taken}{missing}"
    )


def _cards(result: Mapping[str, Any]) -> Iterator[Card]:
    """How good it is, and how sure."""
    objective, explained = result["objective"], result.get("explained")
    per_row = f"sum of squared distances to the nearest center; {_number(result['objective_per_row'])} per row"
    yield "objective", _number(objective), per_row, "", ""
    if explained is not None:
        yield "explained variance", f"{explained:.1%}", "share of the total variance", "", ""
    yield from _silhouette_cards(result)
    gain = result.get("possible_gain")
    if gain is not None and gain > WORTH:
        text = "by rows drawn in the last pass: refine, or give more memory"
        yield "still to gain", f"at least {gain:.1%}", text, "warn", ""
    if result["distortion"] is not None and abs(result["distortion"] - 1) > WORTH:
        yield "objective in the sketch", f"{result['distortion']:.3g} x", "of the original one", "", ""
    if result["converged"] is False:
        yield "iterations", f"{result['n_iter']:,}", "stopped before convergence", "", "warn"


def _silhouette_cards(result: Mapping[str, Any]) -> Iterator[Card]:
    """The silhouette of sampled rows, and the simplified one of all rows, where they are known."""
    error, simplified = result.get("silhouette_error"), result.get("simplified_silhouette")
    if error is not None:
        rows = f"{result['silhouette_rows']:,} sampled rows{', sketched' if result['silhouette_sketched'] else ''}"
        yield "silhouette", f"{result['silhouette']:.2f} +- {error:.2f}", f"of {rows}, with its standard error", "", ""
    if simplified is not None:
        text = "of all rows, by distances to centers; higher than the silhouette, as a rule"
        yield "mean simplified silhouette", f"{simplified:.2f}", text, "", ""


def _columns(clusters: Sequence[Mapping[str, Any]], by_words: bool) -> list[tuple[str, str, str, str]]:
    """Columns of the table of clusters: name, head, class, and what it says."""
    known = [name for name in _HEADS if any(row.get(name) not in (None, [], ()) for row in clusters)]
    if "pictures" in known:  # they say more than the numbers of some pixels, and of rows that are shown
        told = {"traits", *(["typical"] if any(len(row["pictures"]) > 1 for row in clusters) else [])}
        known = [name for name in known if name not in told]
    heads = {**_HEADS, "traits": ("words", "that it has more of than all rows")} if by_words else _HEADS
    return [(name, heads[name][0], "number" if name in _NUMBERS else name, heads[name][1]) for name in known]


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:,.6g}"
