"""The commands ``streamkm update`` and ``drift``: more rows for a model that goes on, and how these differ.

Responsible for their options, for the order in which results and the model are written, and for doing no update twice.
The work is done by `IncrementalKMeans`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from streamkm.cli.common import Talk, work
from streamkm.cli.options import (
    counts_of,
    labels_format_option,
    memory_option,
    overwrite_option,
    restart_option,
    set_option,
    table_options,
    talk_options,
    threads_option,
)
from streamkm.core.exceptions import OutputError

WORSE_THAN_WANTED = 3
"""The exit code of ``drift`` where the verdict is that of --fail-on, or a worse one."""
_VERDICTS = ("too few updates", "stable", "shifted", "fit again")


def _rows_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `update` and `drift` are given."""
    command = click.argument("paths", nargs=-1, required=True, metavar="DATA...")(command)
    command = click.argument("model", type=click.Path())(command)
    for shared in (set_option, table_options, memory_option, threads_option, overwrite_option, talk_options):
        command = shared(command)
    return command


@click.command()
@_rows_options
@click.option(
    "-o", "--output", type=click.Path(), default="streamkm-update", show_default=True, help="Results directory."
)
@click.option("--model-to", type=click.Path(), help="Write the model to this file, and leave MODEL as it is.")
@click.option(
    "-k", "--n-clusters", callback=counts_of, metavar="K|FEWEST:MOST",
    help="Clusters from now on; with a range, updates split and join them.  [default: as MODEL says]",
)  # fmt: skip
@click.option(
    "--relabel-above", type=click.FloatRange(0, 1), default=0.01, show_default=True,
    help="Share of changed labels above which the update says that old rows should be labelled anew.",
)  # fmt: skip
@labels_format_option
@restart_option
def update(model: str, paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Take the rows of DATA into MODEL, follow its clusters, and label these rows.

    MODEL is the incremental.npz of streamkm fit --incremental, or a file that save() of an IncrementalKMeans wrote; it
    is replaced by the updated one when all results are complete. The results directory gets labels, which are ids that
    clusters keep, update.html, and update.json: drift, events, and the lineage of all clusters. DATA are read twice. An
    update that was interrupted goes on where it was when the same command is called again; one that is complete is not
    done twice.
    """
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.cli.results import check_target, prepare_labels, stage_labels, stage_texts, staged
        from streamkm.cli.summary import rows_text
        from streamkm.cli.update_results import (
            RUN,
            UPDATE,
            UPDATE_PAGE,
            UPDATE_RESULTS,
            check_model_place,
            data_digest,
            earlier_run,
            file_version,
            json_text,
            load_incremental,
            state_digest,
        )
        from streamkm.engine import is_on_cluster
        from streamkm.engine.checkpoint import KeptDirectory, forget, records
        from streamkm.metrics.drift_report import plain
        from streamkm.passes.labels import count_skipped
        from streamkm.reports.update_page import update_page

        executor, overwrite = options["executor"], options["overwrite"]
        version = file_version(model)
        estimator = load_incremental(model)
        kept = {name: getattr(estimator, name) for name in ("memory_limit", "progress")}
        _set_up(talk, estimator, executor, options["memory_limit"])
        if options["n_clusters"] is not None:
            estimator.set_params(n_clusters=options["n_clusters"])
        target = options["model_to"] or model
        check_model_place(model, target, overwrite=overwrite)
        directory = KeptDirectory(f"{output}.checkpoint")
        records(directory)  # refuses a directory of other files before data are opened
        if options["restart"]:
            forget(directory)
        with work(paths, settings, beside=model, memory_limit=options["memory_limit"], executor=executor) as source:
            run = {"data": data_digest(source), "before": state_digest(estimator)}
            earlier = earlier_run(Path(output) / UPDATE)
            if earlier.get("after") == run["before"]:
                forget(directory)  # of that update, whose command was killed at its end
            if earlier.get("data") == run["data"] and earlier.get("after") == run["before"]:
                talk.say(
                    [("rows", f"counted already: {output} has their update; choose another -o to count them again")]
                )
                return
            may = overwrite or all(earlier.get(name) == value for name, value in run.items())  # of an interrupted call
            check_target(output, overwrite=may, results=UPDATE_RESULTS)
            form = options["labels_format"] or "npy"
            done = estimator.update(
                source,
                checkpoint=directory,
                relabel_above=options["relabel_above"],
                labels_to=prepare_labels(output, form) if is_on_cluster(executor) else None,
            )
            n_skipped = count_skipped(estimator.labels_)
            run["after"] = state_digest(estimator)
            told = {**done.to_dict(), "lineage": [plain(asdict(event)) for event in estimator.lineage_], RUN: run}
            if file_version(model) != version:
                raise OutputError(f"{model} was changed while this update ran; nothing was written: call it again")
            with staged(Path(output), UPDATE_RESULTS, overwrite=may) as stage:
                stage_labels(stage, estimator, form, source)
                stage_texts(stage, {UPDATE: json_text(told), UPDATE_PAGE: update_page(done)})
        estimator.set_params(**kept).save(target, overwrite=True)
        forget(directory)
        talk.show(f"{done}\n")
        rows = rows_text(done.n_rows + n_skipped, n_skipped)
        talk.say([("rows", rows), talk.time(), ("model", target), ("results", output)])


@click.command()
@_rows_options
@click.option(
    "-o", "--output", type=click.Path(), help="Directory for drift.json and drift.html.  [default: print alone]"
)
@click.option(
    "--fail-on", type=click.Choice(_VERDICTS[2:]),
    help="End with exit code 3 at this verdict, or at a worse one.",
)  # fmt: skip
def drift(model: str, paths: Sequence[str], output: str | None, settings: Sequence[str], **options: Any) -> None:
    """Compare the rows of DATA with those that MODEL has counted.

    MODEL as for streamkm update; it is not changed. The verdict is "stable", "shifted" or "fit again"; before eight
    updates with figures it is "too few updates". DATA are read once.
    """
    with Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.cli.results import check_target, write_texts
        from streamkm.cli.update_results import DRIFT, DRIFT_PAGE, DRIFT_RESULTS, json_text, load_incremental
        from streamkm.reports.update_page import update_page

        executor, fail_on = options["executor"], options["fail_on"]
        estimator = load_incremental(model)
        _set_up(talk, estimator, executor, options["memory_limit"])
        if output is not None:
            check_target(output, overwrite=options["overwrite"], results=DRIFT_RESULTS)
        with work(paths, settings, beside=model, memory_limit=options["memory_limit"], executor=executor) as source:
            found = estimator.drift(source)
        if output is not None:
            texts = {DRIFT_PAGE: update_page(found), DRIFT: json_text(found.to_dict())}
            write_texts(output, texts, DRIFT_RESULTS, overwrite=options["overwrite"])
        talk.show(str(found))
        if fail_on is not None and _VERDICTS.index(found.verdict) >= _VERDICTS.index(fail_on):
            click.get_current_context().exit(WORSE_THAN_WANTED)


def _set_up(talk: Talk, estimator: Any, executor: int | str, memory_limit: str) -> None:
    """Give a loaded model what holds for this call; a limit that it was saved with stays unless another is given."""
    talk.prepare(estimator).set_params(executor=executor)
    if memory_limit != "auto":
        estimator.set_params(memory_limit=memory_limit)
