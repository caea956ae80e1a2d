"""The command ``streamkm sweep``: its options, and the files that it writes. The work is done elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from streamkm.cli.common import Talk, work
from streamkm.cli.options import (
    column_steps_option,
    invalid_option,
    memory_option,
    overwrite_option,
    set_option,
    table_options,
    talk_options,
    threads_option,
)
from streamkm.core.exceptions import InvalidParameterError

SWEEP_CSV, SWEEP_JSON, SWEEP_SVG = "sweep.csv", "sweep.json", "sweep.svg"
SWEEP_RESULTS = (SWEEP_CSV, SWEEP_SVG, SWEEP_JSON)  # in the order in which they appear


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("-k", "--n-clusters", default="2:50", show_default=True, help="Clusters: 2:50, 10:200:10 or 5,10.")
@click.option("--seed", "--random-state", "random_state", type=int, help="Seed of the sample and the starts.")
@click.option("-o", "--output", type=click.Path(), default="streamkm-sweep", show_default=True, help="Results.")
@click.option("--metric", type=click.Choice(["euclidean", "cosine"]), default="euclidean", show_default=True)
@column_steps_option
@invalid_option("raise", "skip", "mean", text="skip: leave rows with NaN or infinity out; mean: fill NaN.")
@memory_option
@threads_option
@set_option
@table_options
@overwrite_option
@talk_options
def sweep(paths: Sequence[str], n_clusters: str, output: str, settings: Sequence[str], **options: Any) -> None:
    """Cluster a sample into many numbers of clusters and score each.

    DATA, or a sketch store, are read once. Writes sweep.csv, sweep.json and, with matplotlib, the picture sweep.svg.
    """
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.cli.data import usual_steps
        from streamkm.cli.results import check_target, json_text, write_texts
        from streamkm.model_selection.sweep import sweep as run_sweep
        from streamkm.reports.report import has_matplotlib

        check_target(output, overwrite=options["overwrite"], results=SWEEP_RESULTS)
        with work(paths, settings, memory_limit=options["memory_limit"], executor=options["executor"]) as source:
            given = ("metric", "preprocess", "invalid", "random_state", "memory_limit", "executor")
            how = {"progress": False if options["quiet"] else "auto", **{name: options[name] for name in given}}
            how["preprocess"] = options["preprocess"] or usual_steps(source, options["metric"])
            result = run_sweep(source, clusters_of(n_clusters), **how)
        texts = {SWEEP_CSV: result.csv_text(), SWEEP_JSON: json_text(result.to_dict())}
        if has_matplotlib():
            from streamkm.reports.drawing import svg_file

            texts[SWEEP_SVG] = svg_file(result.plot())
        write_texts(output, texts, SWEEP_RESULTS, overwrite=options["overwrite"])
        talk.say([*result.lines(), ("results", output)])


def clusters_of(text: str) -> list[int]:
    """Numbers of clusters that a text names: ``50``, ``2,5,10``, ``2:200`` (200 among them) or ``10:200:10``.

    Raises InvalidParameterError for anything else, or no number.
    """
    found: list[int] = []
    for part in text.split(","):
        bounds = [bound.strip() for bound in part.split(":")]
        if len(bounds) > 3 or not all(bound.isdecimal() for bound in bounds) or bounds[2:] == ["0"]:
            raise InvalidParameterError(f"clusters {part.strip()!r}; needed: a number (50) or a range (2:200:1)")
        first, last, step = (*map(int, bounds), *(int(bounds[0]), 1)[len(bounds) - 1 :])
        if last < first:
            raise InvalidParameterError(
                f"the range {part.strip()!r} is empty; needed: a number (50) or a range (2:200:1)"
            )
        found.extend(range(first, last + 1, step))
    return found
