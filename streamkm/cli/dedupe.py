"""The command ``streamkm dedupe``.

Responsible for its options, for its checkpoint, and for the file of row numbers. The work is done in deduplication.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from streamkm.cli.common import Talk, work
from streamkm.cli.options import (
    invalid_option,
    memory_option,
    overwrite_option,
    restart_option,
    set_option,
    table_options,
    talk_options,
    threads_option,
)
from streamkm.core.atomic_io import check_new, replace_file, writing
from streamkm.core.exceptions import OutputError


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("--threshold", type=float, default=0.95, show_default=True, help="Cosine of near-duplicates, at least.")
@click.option("-o", "--output", required=True, type=click.Path(), help="Numbers of the rows that are kept: KEEP.npy.")
@click.option(
    "--keep", type=click.Choice(["nearest", "farthest"]), default="nearest", show_default=True,
    help="Which of near-duplicates: that nearest to the center of its cluster, or farthest from it.",
)  # fmt: skip
@click.option("-k", "--n-clusters", type=click.IntRange(1), help="Clusters to compare in.  [default: sqrt(rows) / 4]")
@click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), default=0, show_default=True, help="Of the clusters.")
@invalid_option("raise", "skip", text="skip: leave rows with NaN or infinity out.")
@memory_option
@threads_option
@set_option
@table_options
@overwrite_option
@restart_option
@talk_options
def dedupe(paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Find the rows of DATA... that are left without near-duplicates.

    Rows are clustered by their angles; within a cluster a row goes if its cosine to one that is kept is THRESHOLD or
    more. Numbers of the others, counted from 0, are written to KEEP.npy, ascending. Pairs in different clusters are not
    compared; the summary says how many these are, about. A run that was interrupted goes on where it was.
    """
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        import numpy as np

        from streamkm.deduplication import dedupe as find_duplicates
        from streamkm.engine.checkpoint import KeptDirectory, forget, records

        _check_target(output, overwrite=options["overwrite"])
        directory = KeptDirectory(f"{output}.checkpoint")
        records(directory)  # refuses a directory of other files before data are opened
        if options["restart"]:
            forget(directory)
        with work(paths, settings, memory_limit=options["memory_limit"], executor=options["executor"]) as source:
            found = find_duplicates(
                source,
                n_clusters=options["n_clusters"] or "auto",
                checkpoint=directory,
                progress=False if options["quiet"] else "auto",
                random_state=options["seed"],
                **{name: options[name] for name in ("threshold", "keep", "memory_limit", "executor", "invalid")},
            )
        replace_file(
            output,
            lambda file: np.save(file, found.rows, allow_pickle=False),
            found.rows.nbytes,
            overwrite=options["overwrite"],
        )
        forget(directory)
        talk.say([*found.lines()[:-1], talk.time(), ("numbers", output)])  # not that of the stages alone


def _check_target(target: str, *, overwrite: bool) -> None:
    """Refuse a file that could not be written at the end, or may not be replaced."""
    path = Path(target)
    if path.suffix != ".npy":
        raise OutputError(f"row numbers are written as .npy, not as {path.name}; choose such a name with -o")
    check_new(path, overwrite=overwrite)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
