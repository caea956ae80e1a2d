"""What commands share: options, what they read and where, and what they say.

Responsible for the options of more than one module, for rows that no configuration names, for the cluster that a
command works on, for logging and warnings in the time of one command, and for pairs on stdout.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamkm.cli.wording import in_words_of
from streamkm.core.atomic_io import writing
from streamkm.core.exceptions import ConfigError, OutputError, StreamkmError
from streamkm.core.gc_guard import collector_off
from streamkm.core.marks import Overwrite, check_ours
from streamkm.core.secrets import without_secrets
from streamkm.core.text_table import aligned

if TYPE_CHECKING:
    from streamkm.cli.config import Override
    from streamkm.core.progress import Progress, Stage
    from streamkm.engine import ClusterSettings
    from streamkm.passes.reader import RowReader
    from streamkm.planning.plan import Plan
    from streamkm.sources.base import RowSource


def set_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """A key of the configuration, `settings`."""
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE",
        help="Set a key of the configuration, as in estimator.n_clusters=50 or data.dataset=/X. Repeatable.",
    )(command)  # fmt: skip


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which columns of tables and which genes are features: keys of the section data, added to `settings`."""
    return _as_settings(
        command,
        {"columns": "data.columns", "exclude": "data.exclude", "id_column": "data.id_column",
         "categories": "data.categories", "categories_unseen": "data.categories_unseen",
         "dates": "data.dates", "genes": "data.genes"},
        click.option("--columns", callback=_names, metavar="A,B", help="Table columns to use as features."),
        click.option("--exclude", callback=_names, metavar="A,B", help="Table columns to leave out."),
        click.option("--id-column", metavar="NAME", help="Table column that identifies rows; not used as a feature."),
        click.option("--categories", type=click.Choice(["onehot", "hash"]), help="Encoding of text columns."),
        click.option(
            "--categories-unseen", type=click.Choice(["raise", "ignore"]),
            help="Categories that the fit has not seen: an error, or no category.  [default: raise]",
        ),
        click.option("--dates", type=click.Choice(["days"]), help="Read dates and times as days since 1970."),
        click.option(
            "--genes", callback=_genes, metavar="N|NAME",
            help="Cells: the N most variable genes of raw counts, or those for which a column of var is true.",
        ),
    )  # fmt: skip


def estimator_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is set most often of the section estimator, as flags; they are added to `settings`."""
    same = ("metric", "preprocess", "memory_limit", "refine")
    return _as_settings(
        command,
        {**{name: f"estimator.{name}" for name in same}, "seed": "estimator.random_state",
         "skip_invalid": "estimator.on_invalid", "on_missing": "estimator.on_missing"},
        click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), help="Random seed; it determines the result."),
        click.option("--metric", type=click.Choice(["euclidean", "cosine", "spherical"]), help="[default: euclidean]"),
        click.option(
            "--preprocess", callback=_steps, metavar="A,B",
            help="Done to rows as they are read: standardize, robust, log1p, total, unit. Steps of some columns: "
            "log1p:fare,standardize:age+income,weight:age=2.",
        ),
        click.option("--memory-limit", metavar="SIZE", help="Largest memory of the process: 1 GiB or 50%."),
        click.option("--refine", type=click.IntRange(0), help="Further passes, each an exact step on all rows."),
        click.option(
            "--skip-invalid", flag_value="skip", default=None, help="Rows with NaN or infinity get the label -1."
        ),
        click.option(
            "--on-missing", type=click.Choice(["raise", "skip", "mean", "masked"]),
            help="NaN: skip its rows, fill it with means, or compare other values (masked).  [default: raise]",
        ),
    )  # fmt: skip


def _threads(_: click.Context, __: click.Parameter, value: int | None) -> int | str:
    return "auto" if value is None else value


def threads_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """How many threads work: `executor`."""
    return click.option(
        "--threads", "executor", type=click.IntRange(1), callback=_threads,
        help="Threads of this process.  [default: one for each processor]",
    )(command)  # fmt: skip


def fit_threads_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """How many threads work, added to `settings`."""
    option = click.option(
        "--threads", type=click.IntRange(1), help="Threads of this process.  [default: one for each processor]"
    )
    return _as_settings(command, {"threads": "estimator.executor"}, option)


FORMER_OPTIONS = {"--steps": "--preprocess"}


def preprocess_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is done to rows as they are read: `preprocess`."""
    return click.option(
        "--preprocess", callback=_names, metavar="A,B",
        help="Done to rows as they are read: standardize, robust, log1p, total, unit.",
    )(command)  # fmt: skip


def _as_settings(command: Callable[..., Any], keys: dict[str, str], *options: Any) -> Callable[..., Any]:
    """Give a command options, of which each that is given becomes one of its `settings`."""

    @functools.wraps(command)
    def wrapped(*args: Any, settings: Sequence[str], **given: Any) -> Any:
        values = {key: given.pop(name, None) for name, key in keys.items()}
        more = [f"{key}={json.dumps(value)}" for key, value in values.items() if value is not None]
        return command(*args, settings=(*settings, *more), **given)

    made: Callable[..., Any] = wrapped
    for option in reversed(options):
        made = option(made)
    return made


def _names(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else value.split(",")


def _genes(_: click.Context, __: click.Parameter, value: str | None) -> str | int | None:
    return int(value) if value is not None and value.isdecimal() else value


def _steps(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | dict[str, Any] | None:
    """Steps by name, or by name and columns, as in ``log1p:fare,standardize:age+income,weight:age=2``."""
    if value is None or ":" not in value:
        return None if value is None else value.split(",")
    steps: dict[str, Any] = {}
    for part in value.split(","):
        step, colon, columns = part.partition(":")
        if step in steps:
            raise click.BadParameter(f"the step {step!r} is there twice; give it all of its columns once")
        each = columns.split("+") if colon else None
        steps[step] = dict(map(_weight, each)) if step == "weight" and each else each
    return steps


def _weight(text: str) -> tuple[str, float]:
    column, _, weight = text.rpartition("=")
    try:
        return column, float(weight)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no column with its weight, as in weight:age=2+income=0.5") from None


def talk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How much is said: `quiet` and `verbose`."""
    command = click.option("-v", "--verbose", is_flag=True, help="More log lines, and where errors were raised.")(
        command
    )
    return click.option("-q", "--quiet", is_flag=True, help="No progress, no log lines, no summary.")(command)


def overwrite_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whether results of an earlier run may go: `overwrite`."""
    return click.option("--overwrite", is_flag=True, help="Replace results of an earlier run.")(command)


def force_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whether any file may go: `force`."""
    return click.option("--force", is_flag=True, help="Replace a file that is no result of streamkm's, too.")(command)


def memory_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """What the command may hold: `memory_limit`."""
    return click.option(
        "--memory-limit", default="auto", show_default=True, metavar="SIZE",
        help="Memory of this process at most: 1 GiB, 50%, or auto, 80 % of the machine's.",
    )(command)  # fmt: skip


def image_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whether a report shows clusters as pictures: `image_shape`."""
    return click.option(
        "--image-shape", callback=_sizes, metavar="HxW",
        help="For rows of pixels, like 28x28 or 32x32x3: show each cluster's center as a picture.",
    )(command)  # fmt: skip


def _sizes(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    sizes = () if value is None else tuple(value.lower().split("x"))
    if value is not None and not (len(sizes) in (2, 3) and all(size.isdecimal() for size in sizes)):
        raise click.BadParameter(f"{value!r} is no shape of pictures like 28x28 or 32x32x3")
    return None if value is None else tuple(map(int, sizes))


def restart_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Whether a pass begins anew: `restart`."""
    return click.option("--restart", is_flag=True, help="Forget what an interrupted run has done.")(command)


class _Formatter(logging.Formatter):
    """Log lines and the tracebacks below them, without secrets of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


class Talk:
    """Logging, warnings and what is printed, for the time of one command; puts everything back afterwards."""

    def __init__(self, *, quiet: bool, verbose: bool):
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose exclude each other")
        self._quiet, self._bars = quiet, sys.stderr.isatty() and not quiet
        self._level = logging.DEBUG if verbose else logging.WARNING if quiet or self._bars else logging.INFO
        self._logger = logging.getLogger("streamkm")
        self._handler = logging.StreamHandler()
        self._handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        self._warnings = warnings.catch_warnings()

    def __enter__(self) -> Talk:
        self._old_level = self._logger.level
        self._logger.setLevel(self._level)
        self._logger.addHandler(self._handler)
        self._warnings.__enter__()
        warnings.showwarning = _show_warning
        with collector_off:  # it would look through all that is imported, and find no garbage
            import streamkm.estimators.kernel_kmeans
            import streamkm.estimators.kmeans  # noqa: F401
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StreamkmError):
            self._logger.debug("raised here", exc_info=error)
        self._warnings.__exit__(None, None, None)
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._old_level)

    def prepare(self, estimator: Any) -> Any:
        """The estimator, without bars where the command is quiet."""
        return estimator.set_params(progress=False) if self._quiet else estimator

    def progress(self) -> Progress:
        """Stages of work that no estimator does, with bars where there are bars."""
        from streamkm.core.progress import Progress

        return Progress(self._bars)

    def stage(self, name: str, reader: RowReader) -> AbstractContextManager[Stage]:
        """One stage of work that no estimator does, with a bar where there are bars."""
        return self.progress().stage(name, reader.source.n_chunks(reader.target_bytes))

    def plan(self, plan: Plan) -> None:
        """Log what will be done."""
        self._logger.info("%s: %d passes, labels %s", plan.source, plan.passes, dict(plan.lines())["assignment"])
        for label, text in plan.lines():
            self._logger.debug("plan: %s: %s", label, text)

    def say(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Print results on stdout, unless quiet."""
        if not self._quiet:
            print_pairs(pairs)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    context = click.get_current_context(silent=True)
    text = str(message) if context is None else in_words_of(context.info_name or "", str(message))
    click.echo(f"streamkm: warning: {without_secrets(text)}", err=True)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print labels and texts on stdout, the texts below each other."""
    click.echo(aligned(pairs))


def check_output(target: str, suffix: str, what: str, overwrite: Overwrite) -> None:
    """Refuse a file that could not be written at the end, or may not be replaced."""
    path = Path(target)
    if path.suffix != suffix:
        raise OutputError(f"{what} are written as {suffix}, not as {path.name}; choose such a name with -o")
    check_ours(path, f"file of {what}", overwrite)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def work(
    paths: Sequence[str],
    settings: Sequence[str],
    *,
    beside: str | None = None,
    append_to: str | None = None,
    memory_limit: Any = "auto",
    executor: int | str = "auto",
) -> Iterator[RowSource]:
    """What a command without a configuration reads, on the cluster that its settings name.

    Documents are weighted by frequencies that are counted now, but for those that are appended to a store.
    """
    from streamkm.cli.config import open_work

    opened, cluster = open_work(paths, parsed(settings), beside=beside)
    if cluster is not None and executor != "auto":
        raise ConfigError(f"--threads {executor} and the section cluster exclude each other; leave one out")
    if append_to is not None and opened.counts:
        known = f"{append_to}.tfidf.npz"
        those = (
            f"--set text.tfidf={known}" if os.path.exists(known) else "the file of those that the store was made with"
        )
        raise ConfigError(
            f"text.tfidf=true would weight the new documents by their own frequencies; pass {those}, or false"
        )
    with on_cluster(cluster):
        yield opened.weighted(executor, memory_limit)


@contextmanager
def on_cluster(cluster: ClusterSettings | None) -> Iterator[None]:
    """Work on a cluster, if there is one; else on threads of this process."""
    if cluster is None:
        yield
        return
    from streamkm.engine import open_cluster

    with open_cluster(cluster) as client:
        logging.getLogger(__name__).info("cluster: %s, %d workers", client.scheduler.address, len(client.nthreads()))
        yield


def parsed(settings: Sequence[str]) -> list[Override]:
    """What each ``--set KEY=VALUE`` sets."""
    from streamkm.cli.config import parse_set

    return [parse_set(text) for text in settings]
