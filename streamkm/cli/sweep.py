"""The commands that try what suits a sample of the data: ``streamkm sweep`` and ``distortion``.

Responsible for their options and for what they say: how many clusters, which sketch and of what size. The work is done
elsewhere.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from streamkm.cli.common import Talk, work
from streamkm.cli.options import (
    column_steps_option,
    memory_option,
    overwrite_option,
    restart_option,
    set_option,
    steps_text,
    table_options,
    talk_options,
    threads_option,
)
from streamkm.core.secrets import masked

_OF_A_FIT = (  # options of a sweep that a fit has too
    "random_state", "metric", "preprocess", "skip_invalid", "on_missing", "memory_limit", "executor", "settings",
    "columns", "exclude", "id_column", "categories", "categories_unseen", "dates", "genes",
)  # fmt: skip


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("-k", "--n-clusters", default="2:200", show_default=True, help="Clusters: 2:200, 10:200:10 or 5,10.")
@click.option("--seeds", type=int, default=2, show_default=True, help="Runs; stability needs two.")
@click.option(
    "--seed", "--random-state", "random_state", type=int, help="Seed of the sample, the sketch and the starts."
)
@click.option("-o", "--output", type=click.Path(), default="streamkm-sweep", show_default=True, help="Results.")
@click.option("--metric", type=click.Choice(["euclidean", "cosine"]), default="euclidean", show_default=True)
@column_steps_option
@click.option("--skip-invalid", is_flag=True, help="Leave rows with NaN or infinity out.")
@click.option(
    "--on-missing",
    type=click.Choice(["raise", "skip", "mean"]),
    default="raise",
    show_default=True,
    help="NaN: skip its rows, or fill it with means.",
)
@memory_option
@threads_option
@set_option
@table_options
@click.option("--extend", is_flag=True, help="Try more clusters where a score is best at the end of the range.")
@overwrite_option
@restart_option
@talk_options
def sweep(paths: Sequence[str], n_clusters: str, output: str, settings: Sequence[str], **options: Any) -> None:
    """Cluster a sample into many numbers of clusters and score each.

    DATA, or a sketch store, are read once. Writes sweep.csv, sweep.json and a picture with the elbow. A run that was
    interrupted goes on where it was.
    """
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.cli.report import SWEEP_CSV, SWEEP_JSON, SWEEP_PAGE, SWEEP_SVG, write_sweep
        from streamkm.cli.results import check_target
        from streamkm.model_selection.sweep import sweep as run_sweep
        from streamkm.model_selection.sweep_parameters import clusters_of

        check_target(output, overwrite=options["overwrite"], results=(SWEEP_CSV, SWEEP_JSON, SWEEP_PAGE, SWEEP_SVG))
        with work(paths, settings, memory_limit=options["memory_limit"], executor=options["executor"]) as source:
            result = run_sweep(
                source,
                clusters_of(n_clusters),
                seeds=options["seeds"],
                metric=options["metric"],
                preprocess=options["preprocess"],
                on_invalid="skip" if options["skip_invalid"] else "raise",
                on_missing=options["on_missing"],
                random_state=options["random_state"],
                memory_limit=options["memory_limit"],
                executor=options["executor"],
                checkpoint=f"{Path(output)}.checkpoint",
                restart=options["restart"],
                extend=options["extend"],
                progress=False if options["quiet"] else "auto",
            )
        written = write_sweep(output, result, _fit_command(result.verdict()[0]))
        talk.say([*result.lines(), ("results", str(written))])


def _fit_command(n_clusters: int) -> str:
    """The command that clusters all rows as this sweep did: with those of its options that `fit` has too."""
    context = click.get_current_context()
    words = ["streamkm", "fit", *map(masked, context.params["paths"])]
    for option in context.command.params:
        name = option.name or ""
        if name not in _OF_A_FIT or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        if isinstance(option, click.Option) and option.is_flag:
            words.append(option.opts[0])
        elif option.multiple:
            words += [word for each in value for word in (option.opts[0], each)]
        else:
            words += [option.opts[0], steps_text(value) if isinstance(value, list | dict) else str(value)]
    return shlex.join([*words, "-k", str(n_clusters), "-o", "results"])


def _numbers(_: click.Context, __: click.Parameter, value: str) -> list[int]:
    sizes = [size.strip() for size in value.split(",")]
    if not all(size.isdecimal() for size in sizes):
        raise click.BadParameter(f"{value!r} is no list of whole numbers like 16,64")
    return [int(size) for size in sizes]


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("-k", "--n-clusters", type=int, default=8, show_default=True, help="Clusters that are found and kept.")
@click.option("--sketches", help="Names, with commas.  [default: those that suit the data]")
@click.option(
    "-m", "--n-components", callback=_numbers, default="16,64,256", show_default=True, help="Sizes, with commas."
)
@click.option("--sample-rows", type=int, default=10_000, show_default=True)
@click.option("--seed", "--random-state", "random_state", type=int, help="Seed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@threads_option
@set_option
@table_options
@talk_options
def distortion(paths: Sequence[str], n_clusters: int, settings: Sequence[str], **options: Any) -> None:
    """Say how well sketches of several sizes keep the objective of clusters, on a sample of DATA, before a long run."""
    executor = options["executor"]
    with (
        Talk(quiet=options["quiet"], verbose=options["verbose"]),
        work(paths, settings, executor=executor) as source,
    ):
        from streamkm.model_selection.distortion import distortion as find_distortion

        names = options["sketches"]
        found = find_distortion(
            source,
            n_clusters,
            sketches=None if names is None else [name.strip() for name in names.split(",")],
            n_components=options["n_components"],
            sample_rows=options["sample_rows"],
            executor=executor,
            random_state=options["random_state"],
        )
        if options["as_json"]:
            import json

            click.echo(json.dumps(found.to_dict(), indent=2))
        else:
            click.echo("\n".join(found.lines()))
