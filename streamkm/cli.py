"""The commands: ``streamkm fit``, ``plan``, ``sketch``, ``append``, ``cluster``, ``sweep``, ``distortion`` and others.

Responsible for arguments, for what is printed and for exit codes. The only module that imports click, prints, and sets
up logging. May import everything, but inside commands, so that ``--help`` is quick. The work is done elsewhere.

Exit codes: 0; 2 for wrong usage or input; 1 for a failure of streamkm; 130 when interrupted.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkm import __version__
from streamkm.errors import ConfigError, OutputError, StreamkmError

if TYPE_CHECKING:
    from streamkm.budget import Plan
    from streamkm.compute import ClusterSettings
    from streamkm.config import Override, Run
    from streamkm.progress import Stage
    from streamkm.sources.base import RowSource
    from streamkm.walk import OnInvalid, Walk

_REPORT_THIS = "This is a failure of streamkm, not of your input. Please report it with the lines above."


class _InputError(click.ClickException):
    """Input that streamkm refuses, on a line for each problem."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        for line in self.message.splitlines():
            click.echo(f"streamkm: error: {line}", err=True, file=file)


class _Commands(click.Group):
    """Turns exceptions of commands into messages and exit codes."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except StreamkmError as error:
            raise _InputError(str(error)) from None
        except KeyboardInterrupt:
            click.echo("streamkm: interrupted; results of earlier runs are as they were", err=True)
            ctx.exit(130)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            error.add_note(_REPORT_THIS)
            raise


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="streamkm")
def main() -> None:
    """Cluster data that need not fit in memory."""


def _set_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE",
        help="Set a key of the configuration, as in estimator.n_clusters=50 or data.dataset=/X. Repeatable.",
    )(command)  # fmt: skip


def _talk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("-v", "--verbose", is_flag=True, help="More log lines, and where errors were raised.")(
        command
    )
    return click.option("-q", "--quiet", is_flag=True, help="No progress, no log lines, no summary.")(command)


def _overwrite_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--overwrite", is_flag=True, help="Replace results of an earlier run.")(command)


def _restart_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--restart", is_flag=True, help="Forget what an interrupted run has done.")(command)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `fit` and `plan` are given."""
    for option in (
        click.argument("inputs", nargs=-1, required=True, metavar="CONFIG.yaml | DATA..."),
        click.option("-k", "--n-clusters", type=int, help="Number of clusters; needed without a configuration."),
        click.option("-o", "--output", type=click.Path(), help="Results directory.  [default: streamkm-out]"),
    ):
        command = option(command)
    return _set_option(_talk_options(command))


def _count(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """A whole number, also as 1e10."""
    if value is None:
        return None
    try:
        count = int(value) if value.isdecimal() else float(value)
    except ValueError:
        count = 0
    if not 1 <= count < 2**63 or count != int(count):
        raise click.BadParameter(f"{value!r} is no whole number from 1, like 250000 or 1e10")
    return int(count)


# options of plan, and what `forecasts.Cluster` calls them
_ASSUMED = {
    "threads": "threads", "cores": "cores", "task_time": "scheduler_s", "latency": "latency_s",
    "bandwidth": "bandwidth", "storage": "storage",
}  # fmt: skip


def _cluster_plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a cluster is taken to be; the defaults are those of `forecasts.Cluster`."""
    for option in (
        click.option("--storage", type=float, help="Bytes a second that all workers read.  [default: as here, each]"),
        click.option("--bandwidth", type=float, help="Bytes a second of each machine's network.  [default: 1.25e9]"),
        click.option("--latency", type=float, help="Seconds of a message and its answer.  [default: 0.005]"),
        click.option("--task-time", type=float, help="Seconds that the scheduler takes for a task.  [default: 0.001]"),
        click.option("--cores", type=click.IntRange(1), help="Processors of one machine that all of it runs on."),
        click.option("--threads", type=click.IntRange(1), help="Threads of each worker.  [default: 1]"),
    ):
        command = option(command)
    return command


@main.command()
@_run_options
@click.option("--labels-format", type=click.Choice(["npy", "zarr"]), help="How labels are written.  [default: npy]")
@click.option("--no-report", is_flag=True, help="Make no report.html.")
@click.option("--resume", is_flag=True, help="Go on with the run that was interrupted.")
@click.option("--restart", is_flag=True, help="Forget the run that was interrupted.")
@click.option("--no-checkpoint", is_flag=True, help="Keep nothing of an interrupted run.")
@_overwrite_option
def fit(
    inputs: Sequence[str],
    settings: Sequence[str],
    quiet: bool,
    verbose: bool,
    resume: bool,
    restart: bool,
    no_checkpoint: bool,
    **options: Any,
) -> None:
    """Cluster data; write labels, model, summary, report.

    What is done is kept beside the results every few seconds: a run that was interrupted goes on with --resume.

    DATA are files or globs of one format: svmlight text (plain or compressed), HDF5, Zarr, .npy or .npz;
    FILE:/path names a dataset inside a file. Documents are hashed: .jsonl, .csv and .parquet with
    --set text.field=NAME, lines of text with --set data.format=lines. What the command line says wins over the
    configuration.
    """
    with _Talk(quiet=quiet, verbose=verbose) as talk:
        run = _load(inputs, settings, options)
        from streamkm.estimators import StreamKMeans
        from streamkm.output import check_target, prepare_labels, write_results
        from streamkm.summary import result_lines, summarize

        check_target(run.output.directory, overwrite=run.output.overwrite)
        estimator = talk.prepare(run.estimator)
        with ExitStack() as stack:
            stack.enter_context(_on(run.cluster))
            talk.plan(run.plan())
            source = run.data.weighted(estimator.executor)
            saved = None
            if not no_checkpoint:
                directory = estimator.checkpoint or f"{Path(run.output.directory)}.checkpoint"
                saved = stack.enter_context(_checkpoint(estimator, source, directory, resume, restart))
            kept = {}
            if run.cluster is not None and isinstance(estimator, StreamKMeans):
                kept["labels_to"] = prepare_labels(run.output.directory, run.output.labels)
            estimator.set_params(checkpoint=saved).fit(source, **kept)
            summary = summarize(estimator, source, passes_before=int(run.data.counts))
            documents, labels = (source, run.data.text), run.output.labels
            write_results(run.output.directory, estimator, summary, labels_format=labels, documents=documents)
            if run.output.report:
                from streamkm.report import write_report

                write_report(run.output.directory)
            if saved is not None:
                saved.discard()
        talk.say([*result_lines(summary), ("results", run.output.directory)])


@contextmanager
def _checkpoint(estimator: Any, source: Any, directory: str, resume: bool, restart: bool) -> Iterator[Any]:
    """The state of a run; one that was interrupted is gone on with, or forgotten, only if that was asked for."""
    if resume and restart:
        raise click.UsageError("--resume and --restart exclude each other")
    from streamkm.estimators import open_checkpoint
    from streamkm.keeping import is_worth_resuming

    with open_checkpoint(estimator, source, directory, restart=restart) as saved:
        if is_worth_resuming(directory) and not resume:
            raise OutputError(
                f"{directory} holds what an interrupted run of this has done: go on with --resume, "
                "or begin anew with --restart"
            )
        try:
            yield saved
        except KeyboardInterrupt:
            if is_worth_resuming(directory):
                click.echo(f"streamkm: what was done is kept in {directory}; go on with --resume", err=True)
            raise


@main.command()
@_run_options
@click.option("--measure", is_flag=True, help="Read a few chunks and say how long it may take.")
@click.option("--rows", callback=_count, metavar="N", help="Plan for so many rows of the kind of DATA's, as in 1e10.")
@click.option("--workers", type=click.IntRange(1), help="Plan for a Dask cluster; implies --measure.")
@_cluster_plan_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    inputs: Sequence[str],
    settings: Sequence[str],
    quiet: bool,
    verbose: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what fit would do: passes, bytes, memory.

    Takes the arguments of fit and reads no rows, but with --measure or --workers: these walk a few chunks as fit would,
    and the time follows by the cost model of streamkm.planning. DATA may be a sample of what --rows says.
    """
    assumed = {name: options.pop(name) for name in _ASSUMED}
    measure, rows, workers = (options.pop(name) for name in ("measure", "rows", "workers"))
    given = [f"--{name.replace('_', '-')}" for name, value in assumed.items() if value is not None]
    if given and workers is None:
        raise click.UsageError(f"{given[0]} is of use with --workers only")
    with _Talk(quiet=quiet, verbose=verbose):
        run = _load(inputs, settings, options)
        if (measure or rows is not None or workers is not None) and not hasattr(run.estimator, "forecast"):
            raise click.UsageError(
                "--measure, --rows and --workers know k-means only; leave them out, or the section kernel"
            )
        seconds, forecast = None, None
        if workers is not None:
            from streamkm.forecasts import Cluster

            known = {_ASSUMED[name]: value for name, value in assumed.items() if value is not None}
            forecast = run.estimator.forecast(run.source, Cluster(workers, **known), rows)
            planned = forecast.plan
        else:
            planned = run.plan(rows)
            seconds = run.estimator.estimate_seconds(run.source, rows) if measure else None
        if as_json:
            import json

            more = {"seconds": seconds} if forecast is None else forecast.to_dict()
            click.echo(json.dumps({**planned.to_dict(), **more}, indent=2))
        else:
            taken = [] if seconds is None else [("time", f"about {seconds:.3g} s, from a measurement of a few chunks")]
            counted = [("tf-idf", "document frequencies are counted in the first pass")] if run.data.counts else []
            told = planned.lines() if forecast is None else [*planned.lines()[:-2], *forecast.lines()]
            _print_pairs([*told, *counted, *taken, ("results", run.output.directory)])


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@_set_option
def inspect(paths: Sequence[str], settings: Sequence[str]) -> None:
    """Say what is in files: rows, features, storage.

    Reads no rows, so some numbers are estimates ("about").
    """
    from streamkm.config import open_data
    from streamkm.summary import source_lines

    for number, path in enumerate(paths):
        if number:
            click.echo()
        _print_pairs(source_lines(open_data([path], _parsed(settings)).source))


@main.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("-o", "--output", required=True, type=click.Path(), help="Labels: a name that ends in .npy or .zarr.")
@_set_option
@_overwrite_option
@_talk_options
def assign(
    model: str, paths: Sequence[str], output: str, settings: Sequence[str], overwrite: bool, **talking: bool
) -> None:
    """Label the rows of PATH... with the centers of MODEL.

    MODEL is the model.npz of a results directory. Rows get the label of the nearest center. Documents are hashed and
    weighted as those of the fit, which text.json and tfidf.npz beside MODEL tell.
    """
    with _Talk(**talking) as talk:
        from streamkm.kernel_estimators import load_estimator
        from streamkm.labelling import count_skipped
        from streamkm.output import check_labels_target, write_labels
        from streamkm.summary import rows_text

        check_labels_target(output, overwrite=overwrite)
        estimator = talk.prepare(load_estimator(model))
        with _work(paths, settings, beside=model) as source:
            if output.endswith(".zarr"):
                labels = estimator.predict_to(source, output, overwrite=overwrite)
            else:
                labels = estimator.predict(source)
                write_labels(output, labels)
        talk.say([("rows", rows_text(labels.shape[0], count_skipped(labels))), ("labels", output)])


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("-o", "--output", required=True, type=click.Path(), help="The store, a directory: STORE.zarr.")
@click.option("--sketch", default="auto", show_default=True, help="auto, countsketch, pca or identity.")
@click.option("-m", "--n-components", type=int, help="Components.  [default: as fit]")
@click.option("--seed", type=click.IntRange(0, (1 << 64) - 1), default=0, show_default=True, help="Of the sketch.")
@click.option("--metric", type=click.Choice(["euclidean", "cosine"]), default="euclidean", show_default=True)
@click.option("--skip-invalid", is_flag=True, help="Keep rows with NaN or infinity as rows of NaN.")
@_set_option
@_overwrite_option
@_restart_option
@_talk_options
def sketch(paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Sketch DATA... into a store that can be clustered.

    One pass; a run that was interrupted goes on where it was. Cluster the store with streamkm cluster. Document
    frequencies are kept in STORE.tfidf.npz, for streamkm append --set text.tfidf=STORE.tfidf.npz.
    """
    with _Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.compute import open_executor
        from streamkm.configured import write_frequencies
        from streamkm.storing import choose_store_sketch, walk_for_store, write_store

        on_invalid: OnInvalid = "skip" if options["skip_invalid"] else "raise"
        with ExitStack() as stack:
            source = stack.enter_context(_work(paths, settings))
            walk = walk_for_store(source, options["metric"], on_invalid)
            workers = stack.enter_context(open_executor())
            stage = stack.enter_context(talk.stage("sketch", walk))
            how = (options["sketch"], options["n_components"] or "auto", options["seed"])
            found = choose_store_sketch(walk, *how, workers, stage)
            store = write_store(
                output, walk, found, workers, stage, overwrite=options["overwrite"], restart=options["restart"]
            )
        frequencies = write_frequencies(f"{output}.tfidf.npz", source)
        kept = [("frequencies", frequencies)] if frequencies else []
        talk.say([("rows", f"{store.n_rows:,}"), ("store", output), *store.details().items(), *kept])


@main.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.argument("paths", nargs=-1, required=True, metavar="MORE...")
@click.option("--columns", is_flag=True, help="MORE... are further features of the same rows, not further rows.")
@click.option("--first-feature", type=click.IntRange(0), help="Number of their first feature.  [default: the next]")
@click.option("--skip-invalid", is_flag=True, help="Keep rows with NaN or infinity as rows of NaN.")
@_set_option
@_restart_option
@_talk_options
def append(store: str, paths: Sequence[str], settings: Sequence[str], **options: Any) -> None:
    """Add rows, or features, of MORE... to STORE."""
    if options["first_feature"] is not None and not options["columns"]:
        raise click.UsageError("--first-feature is of use with --columns only")
    with _Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.compute import open_executor
        from streamkm.sources.stores import StoreInfo
        from streamkm.storing import append_columns, append_rows, walk_for_store

        on_invalid: OnInvalid = "skip" if options["skip_invalid"] else "raise"
        with ExitStack() as stack:
            source = stack.enter_context(_work(paths, settings, append=True))
            walk = walk_for_store(source, StoreInfo.read(store).metric, on_invalid)
            workers = stack.enter_context(open_executor())
            stage = stack.enter_context(talk.stage("append", walk))
            if options["columns"]:
                first, restart = options["first_feature"], options["restart"]
                found = append_columns(store, walk, workers, stage, first_feature=first, restart=restart)
            else:
                found = append_rows(store, walk, workers, stage, restart=options["restart"])
        talk.say([("rows", f"{found.n_rows:,}"), ("store", store), *found.details().items()])


@main.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.option("-k", "--n-clusters", type=int, required=True, help="Number of clusters.")
@click.option("-o", "--output", type=click.Path(), help="Results directory.  [default: streamkm-out]")
@click.option("--labels-format", type=click.Choice(["npy", "zarr"]), help="How labels are written.  [default: npy]")
@click.option("--no-report", is_flag=True, help="Make no report.html.")
@_overwrite_option
@_set_option
@_talk_options
@click.pass_context
def cluster(context: click.Context, /, store: str, settings: Sequence[str], **options: Any) -> None:
    """Cluster the rows of a sketch store, as fit does; the model labels original rows."""
    from streamkm.sources.stores import StoreInfo

    StoreInfo.read(store)
    context.invoke(fit, inputs=(store,), settings=settings, **options)


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("-k", "--n-clusters", default="2:200", show_default=True, help="Clusters: 2:200, 10:200:10 or 5,10.")
@click.option("--seeds", type=int, default=2, show_default=True, help="Runs; stability needs two.")
@click.option("--random-state", type=int, help="Seed of the sample, the sketch and the starts.")
@click.option("-o", "--output", type=click.Path(), default="streamkm-sweep", show_default=True, help="Results.")
@_set_option
@_overwrite_option
@_talk_options
def sweep(paths: Sequence[str], n_clusters: str, output: str, settings: Sequence[str], **options: Any) -> None:
    """Cluster a sample into many numbers of clusters and score each.

    DATA, or a sketch store, are read once. Writes sweep.csv, sweep.json and a picture with the elbow.
    """
    with _Talk(quiet=options["quiet"], verbose=options["verbose"]) as talk:
        from streamkm.output import check_target
        from streamkm.report import SWEEP_CSV, SWEEP_JSON, SWEEP_SVG, write_sweep
        from streamkm.sweeping import clusters_of
        from streamkm.sweeping import sweep as run_sweep

        check_target(output, overwrite=options["overwrite"], results=(SWEEP_CSV, SWEEP_JSON, SWEEP_SVG))
        with _work(paths, settings) as source:
            result = run_sweep(
                source,
                clusters_of(n_clusters),
                seeds=options["seeds"],
                random_state=options["random_state"],
                progress=False if options["quiet"] else "auto",
            )
        talk.say([*result.lines(), ("results", str(write_sweep(output, result)))])


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="DATA...")
@click.option("-k", "--n-clusters", type=int, default=8, show_default=True, help="Clusters that are found and kept.")
@click.option("--sketches", help="Names, with commas.  [default: those that suit the data]")
@click.option("-m", "--n-components", default="16,64,256", show_default=True, help="Sizes, with commas.")
@click.option("--sample-rows", type=int, default=10_000, show_default=True)
@click.option("--random-state", type=int, help="Seed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_set_option
@_talk_options
def distortion(paths: Sequence[str], n_clusters: int, settings: Sequence[str], **options: Any) -> None:
    """Say how well sketches of several sizes keep the objective of clusters, on a sample of DATA, before a long run."""
    with _Talk(quiet=options["quiet"], verbose=options["verbose"]), _work(paths, settings) as source:
        from streamkm.distortion import distortion as find_distortion

        names = options["sketches"]
        found = find_distortion(
            source,
            n_clusters,
            sketches=None if names is None else [name.strip() for name in names.split(",")],
            n_components=[int(size) for size in options["n_components"].split(",")],
            sample_rows=options["sample_rows"],
            random_state=options["random_state"],
        )
        if options["as_json"]:
            import json

            click.echo(json.dumps(found.to_dict(), indent=2))
        else:
            click.echo("\n".join(found.lines()))


@main.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@_talk_options
def report(directory: str, **talking: bool) -> None:
    """Make report.html of a results directory again."""
    with _Talk(**talking) as talk:
        from streamkm.report import write_report

        talk.say([("report", str(write_report(directory)))])


class _Talk:
    """Logging, warnings and what is printed, for the time of one command; puts everything back afterwards."""

    def __init__(self, *, quiet: bool, verbose: bool):
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose exclude each other")
        self._quiet, self._bars = quiet, sys.stderr.isatty() and not quiet
        self._level = logging.DEBUG if verbose else logging.WARNING if quiet or self._bars else logging.INFO
        self._logger = logging.getLogger("streamkm")
        self._handler = logging.StreamHandler()
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        self._warnings = warnings.catch_warnings()

    def __enter__(self) -> _Talk:
        self._old_level = self._logger.level
        self._logger.setLevel(self._level)
        self._logger.addHandler(self._handler)
        self._warnings.__enter__()
        warnings.showwarning = _show_warning
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StreamkmError):
            self._logger.debug("raised here", exc_info=error)
        self._warnings.__exit__(None, None, None)
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._old_level)

    def prepare(self, estimator: Any) -> Any:
        """The estimator, without bars where the command was told to be quiet."""
        return estimator.set_params(progress=False) if self._quiet else estimator

    def stage(self, name: str, walk: Walk) -> AbstractContextManager[Stage]:
        """One stage of work that no estimator does, with a bar where there are bars."""
        from streamkm.progress import Progress
        from streamkm.sources.base import ChunkedSource

        chunks = walk.source.chunks(walk.target_bytes) if isinstance(walk.source, ChunkedSource) else None
        return Progress(self._bars).stage(name, None if chunks is None else len(chunks))

    def plan(self, plan: Plan) -> None:
        """Log what will be done."""
        self._logger.info("%s: %d passes", plan.source, plan.passes)
        for label, text in plan.lines():
            self._logger.debug("plan: %s: %s", label, text)

    def say(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print results on stdout, unless quiet."""
        if not self._quiet:
            _print_pairs(pairs)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"streamkm: warning: {message}", err=True)


def _print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    pairs = list(pairs)
    width = max((len(label) for label, _ in pairs), default=0)
    for label, text in pairs:
        click.echo(f"{label:<{width}}  {text}")


def _load(inputs: Sequence[str], settings: Sequence[str], options: dict[str, Any]) -> Run:
    """A run from the arguments of `fit` and `plan`; values on the command line win over those of the file."""
    configs = [path for path in inputs if path.lower().endswith((".yaml", ".yml"))]
    if configs and len(inputs) > 1:
        raise click.UsageError(f"give one configuration ({configs[0]}) or data, not both")
    if (
        not configs
        and options["n_clusters"] is None
        and not any(s.startswith("estimator.n_clusters") for s in settings)
    ):
        raise click.UsageError("say how many clusters: -k 10")
    from streamkm.config import Override, load_run

    data = None if configs else inputs[0] if len(inputs) == 1 else list(inputs)
    given = (
        ("data.path", data, "DATA"),
        ("estimator.n_clusters", options["n_clusters"], "-k"),
        ("output.directory", options["output"], "-o"),
        ("output.labels", options.get("labels_format"), "--labels-format"),
        ("output.report", False if options.get("no_report") else None, "--no-report"),
        ("output.overwrite", True if options.get("overwrite") else None, "--overwrite"),
    )
    overrides = [*_parsed(settings), *(Override(*entry) for entry in given if entry[1] is not None)]
    return load_run(configs[0] if configs else None, overrides)


@contextmanager
def _work(
    paths: Sequence[str], settings: Sequence[str], *, beside: str | None = None, append: bool = False
) -> Iterator[RowSource]:
    """What a command without a configuration reads, on the cluster that its settings name.

    Documents are weighted by frequencies that are counted now, but for those of `append`.
    """
    from streamkm.config import open_work

    opened, cluster = open_work(paths, _parsed(settings), beside=beside)
    if append and opened.counts:
        raise ConfigError(
            "text.tfidf=true would weight the new documents by their own frequencies; give the file of those that the "
            "store was made with, or false"
        )
    with _on(cluster):
        yield opened.weighted()


@contextmanager
def _on(cluster: ClusterSettings | None) -> Iterator[None]:
    """Work on a cluster, if there is one; else on threads of this process."""
    if cluster is None:
        yield
        return
    from streamkm.compute import open_cluster

    with open_cluster(cluster) as client:
        logging.getLogger(__name__).info("cluster: %s, %d workers", client.scheduler.address, len(client.nthreads()))
        yield


def _parsed(settings: Sequence[str]) -> list[Override]:
    from streamkm.config import parse_set

    return [parse_set(text) for text in settings]
