"""Commands ``streamkm fit`` and ``plan``, which take the same arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkm.cli.common import Talk, counts_of, parsed, result_options, run_options
from streamkm.core.atomic_io import writing
from streamkm.core.display import aligned
from streamkm.core.exceptions import ConfigError, OutputError

if TYPE_CHECKING:
    from streamkm.cli.config import Run
    from streamkm.planning.plan import Plan


_OF_THIS_COMMAND = ("executor", "progress", "memory_limit")  # parameters that change no result


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of `fit` and `plan`."""
    how = "Number of clusters; needed without a configuration. With --incremental a range, too."
    command = click.option("-k", "--n-clusters", type=counts_of, metavar="K|FEWEST:MOST", help=how)(command)
    return click.argument("inputs", nargs=-1, required=True, metavar="CONFIG.yaml | DATA...")(run_options(command))


@click.command()
@_run_options
@result_options
@click.option("--resume/--restart", default=None, help="Go on with the run that was interrupted, or forget it.")
@click.option("--no-checkpoint", is_flag=True, help="Keep nothing of an interrupted run.")
def fit(inputs: Sequence[str], settings: Sequence[str], **options: Any) -> None:
    """Cluster rows; write labels, a model and a report.

    What is done is kept beside the results every few seconds: a run that was interrupted goes on with --resume.

    DATA are a sketch store, or files, folders or globs of one format: tables (CSV, Parquet, Arrow), svmlight text
    (plain or compressed), HDF5, Zarr, .npy or .npz; FILE:/path names a dataset inside a file. Documents are hashed:
    .jsonl, .csv and .parquet with --set text.field=NAME, lines of text with --set data.format=lines, folders of .txt
    files with a document each (other files with --set data.format=files). What the command line says wins over the
    configuration.
    """
    with Talk(**options) as talk:
        run, many = _load(inputs, settings, options), options["n_clusters"]
        from streamkm.cli import results
        from streamkm.cli.data import write_text_settings
        from streamkm.cli.summary import clusters_text, result_lines
        from streamkm.engine import open_cluster
        from streamkm.engine.checkpoint import KeptDirectory, forget
        from streamkm.estimators.kmeans import StreamKMeans
        from streamkm.estimators.model_files import cluster_summary, summarize
        from streamkm.passes.excerpts import row_ids

        estimator, output, place = talk.prepare(run.estimator), run.output, Path(run.output.directory)
        directory = None if options["no_checkpoint"] else KeptDirectory(run.checkpoint or f"{place}.checkpoint")
        digest, may = _check_places(run, place, directory, many, options)
        with ExitStack() as stack:
            stack.enter_context(open_cluster(run.cluster))
            talk.plan(_planned(run))
            source = run.data.weighted(estimator.executor, estimator.memory_limit)
            _choose_number(estimator, source, many)
            with results.staged(place, results.RESULT_NAMES, overwrite=may) as stage:
                labels = stage / f"labels.{output.labels}"
                written = output.labels != "npy" and isinstance(estimator, StreamKMeans)
                estimator.fit(source, checkpoint=directory, **({"labels_to": labels} if written else {}))
                stack.enter_context(writing(place))
                found = cluster_summary(estimator)
                if found is not None:
                    found = found.with_examples(row_ids(source, found.example_rows()), {})
                summary = summarize(estimator, found) | {results.RUN: {"digest": digest}}
                if output.labels == "npy":
                    results.write_npy(labels, estimator.labels_)
                elif not written:
                    estimator.predict_to(source, labels)
                estimator.save(stage / results.MODEL)
                if output.incremental:
                    more = estimator.incremental(half_life=output.half_life)
                    more.set_params(n_clusters=many or more.n_clusters).save(stage / results.INCREMENTAL)
                write_text_settings(stage, source, run.data.text)
                if output.report:
                    page = results.results_page(place, output.labels, summary, estimator)
                    results.stage_texts(stage, {results.REPORT: page})
                results.stage_texts(stage, {results.SUMMARY: results.json_text(summary)})
        if directory is not None:
            forget(directory)
        told = [*result_lines(summary), talk.time(summary["stages"]), ("results", output.directory)]
        talk.say(told, "" if found is None else clusters_text(found))


def _check_places(
    run: Run, place: Path, checkpoint: str | None, many: Any, options: dict[str, Any]
) -> tuple[str, bool]:
    """Digest of the run, and whether it may replace results; refuses other files; ends a complete resumed run."""
    from streamkm.cli.results import SUMMARY, check_target, digest_of, earlier_run
    from streamkm.engine.checkpoint import forget, saved_stages
    from streamkm.estimators.validation import plain
    from streamkm.sources.fingerprints import fingerprint

    source = run.data.source
    values = {name: value for name, value in run.estimator.get_params().items() if name not in _OF_THIS_COMMAND}
    output = run.output.model_dump(exclude={"directory", "overwrite"})
    digest = digest_of([fingerprint(source), plain(values), output, run.data.text, run.data.sublinear_tf, many])
    is_known, resume = earlier_run(place / SUMMARY).get("digest") == digest, options["resume"]
    stages = [] if checkpoint is None or resume is False else saved_stages(checkpoint)
    if stages and not resume:
        raise OutputError(
            f"{checkpoint} holds what an interrupted run of this has done: go on with --resume, "
            "or begin anew with --restart"
        )
    if resume and is_known and not (stages or run.output.overwrite):
        forget(checkpoint or "")  # of a run that was killed when all was done
        click.echo(f"streamkm: {place} is complete: nothing to resume", err=True)
        click.get_current_context().exit()
    may = run.output.overwrite or (bool(stages) and is_known)  # an interrupted run has written those
    check_target(place, overwrite=may)
    if resume is False:
        forget(checkpoint or "")
    if resume and checkpoint is not None:
        at = f"goes on behind {', '.join(stages)}" if stages else "holds nothing to resume: this run begins anew"
        click.echo(f"streamkm: {checkpoint} {at}", err=True)
    return digest, may


def _planned(run: Run) -> Plan:
    """Plan of the fit; refuses a model that goes on if it cannot be made, before a row is read."""
    from streamkm.estimators.incremental import unfitted_incremental
    from streamkm.estimators.kmeans import StreamKMeans

    plan, output = run.plan(), run.output
    if output.half_life is not None and not output.incremental:
        raise ConfigError("--half-life is of use with --incremental only; pass both, or leave it out")
    if output.incremental and not isinstance(run.estimator, StreamKMeans):
        raise ConfigError("--incremental is for k-means alone; leave it out, or the section kernel")
    if output.incremental and plan.expected_space == "sketch":
        raise ConfigError(
            "--incremental needs clusters in the original space, and this fit will have them in the sketch alone; "
            "raise --memory-limit, pass --set estimator.assign_space=original, or leave --incremental out"
        )
    if output.incremental:
        unfitted_incremental(run.estimator, half_life=output.half_life)
    return plan


def _choose_number(estimator: Any, source: Any, many: Any) -> None:
    """Set an estimator's number of clusters to the one that updates find in the rows, for a range."""
    if not isinstance(many, tuple):
        return
    seed = estimator.random_state
    estimator.set_params(n_clusters=many[0], random_state=seed or 0)  # a run that is resumed must choose the same
    more = estimator.fit(source).incremental().set_params(n_clusters=many)
    del more.stream_  # what the fit has found but for the preparation: the rows are taken anew
    more.update(source)
    estimator.set_params(n_clusters=len(more.cluster_ids_), random_state=seed)


@click.command()
@_run_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(inputs: Sequence[str], settings: Sequence[str], as_json: bool, **options: Any) -> None:
    """Say what fit would do: passes, bytes, memory; all with --verbose.

    Takes the arguments of fit. Reads no rows, except where one pass finds the columns or their types: for
    --categories onehot, and for any --categories of CSV files. Then it says what --preprocess table makes of each
    column by the first rows; the fit decides by rows drawn from all.
    """
    with Talk(**options):
        run = _load(inputs, settings, options)
        from streamkm.cli.summary import fates_of_columns

        planned = run.plan()
        if as_json:
            click.echo(json.dumps(planned.to_dict(), indent=2))
            return
        lines = planned.lines() if options["verbose"] else planned.main_lines()
        lines += fates_of_columns(run.data.source) if "table" in (run.estimator.preprocess or ()) else []
        lines += [("not stored", missing)] if (missing := run.data.source.origin.missing_chunks) else []
        click.echo(aligned([*lines, ("results", run.output.directory)]))


def _load(inputs: Sequence[str], settings: Sequence[str], options: dict[str, Any]) -> Run:
    """Open the run that the arguments of `fit` and `plan` describe; command-line values override those of a file."""
    from streamkm.cli.config import Override, load_run

    many = options["n_clusters"]
    config = next((path for path in inputs if path.lower().endswith((".yaml", ".yml"))), None)
    if config and len(inputs) > 1:
        raise click.UsageError(f"give one configuration ({config}) or data, not both")
    if not config and many is None and not any("estimator.n_clusters" in each for each in settings):
        raise click.UsageError("say how many clusters: -k 10")
    given = parsed(settings, ("data", "estimator", "output"))
    if not config:
        given.append(Override("data.path", inputs[0] if len(inputs) == 1 else list(inputs), "DATA"))
    if isinstance(many, tuple):
        given.append(Override("estimator.n_clusters", many[1], "-k"))
    run = load_run(config, given)
    if isinstance(many, tuple) and not run.output.incremental:
        raise click.UsageError(f"-k {many[0]}:{many[1]} is for fit --incremental; give one number, as -k 10")
    return run
