"""Options, messages, logging and output that commands share.

A flag has the name of its configuration key, whose value `schema` checks. Messages name options of the command, not
Python's ``invalid="skip"``.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streamkm.core.display import aligned, without_secrets
from streamkm.core.exceptions import ConfigError, StreamkmError
from streamkm.core.progress import COMPILING, Progress

if TYPE_CHECKING:
    from streamkm.cli.config import Override
    from streamkm.planning.plan import Plan
    from streamkm.sources.row_source import RowSource


# a parameter, alone or with its value, which a message may leave to the reader; or as the one argument of a class
_NAMED = re.compile(
    r"""([A-Z]\w+\()?(?<![\w./=-])([a-z]\w*)(=(?!\{)(?:"[^"]*"|'[^']*'|\[[^]]*\]|[\w.+-]*\w|))?(?![\w("']|[./]\w)(?(1)\))"""
)


def _together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Join decorators into one."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


def counts_of(value: str) -> int | tuple[int, int]:
    """Read a number of clusters, or the fewest and the most."""
    counts = value.split(":")
    if len(counts) > 2 or not all(count.isdecimal() for count in counts):
        raise click.BadParameter(f"{value!r} is no number of clusters, like 20, nor fewest and most, like 10:40")
    return int(value) if len(counts) == 1 else (int(counts[0]), int(counts[1]))


def _steps(value: str) -> list[str] | dict[str, Any]:
    """Read steps by name, or by name and columns, as in ``log1p:fare,standardize:age+income``."""
    if ":" not in value:
        return [] if value == "none" else value.split(",")
    steps: dict[str, Any] = {}
    for step, _, names in (part.partition(":") for part in value.split(",")):
        if step in steps:
            raise click.BadParameter(f"the step {step!r} is there twice; name it once, with all its columns: A+B")
        steps[step] = names.split("+") if names else None
    return steps


def _count(value: str) -> int | str:
    return value if value == "auto" else int(value)


def _names(value: str) -> list[str]:
    return value.split(",")


column_options = _together(
    click.option("--columns", type=_names, metavar="A,B", help="Table columns to use as features."),
    click.option("--exclude", type=_names, metavar="A,B", help="Table columns to leave out."),
    click.option("--id-column", metavar="NAME", help="Table column that identifies rows; not used as a feature."),
    click.option("--categories", metavar="onehot|hash", help="Encoding of text columns."),
    click.option("--categories-unseen", metavar="raise|ignore", help="Categories new to the fit.  [default: raise]"),
    click.option("--feature-names", metavar="FILE", help="Names of features, one a line, for data without names."),
    click.option("--dates", metavar="days", help="Read dates and times as days since 1970."),
    click.option("--genes", metavar="NAME", help="Cells: the genes for which this column of var is true."),
)
talk_options = _together(
    click.option("-q", "--quiet", is_flag=True, help="No progress, no log lines, no summary."),
    click.option("-v", "--verbose", is_flag=True, help="More log lines, and where errors were raised."),
)
set_option = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key of config.yaml.")
machine_options = _together(
    click.option("--memory-limit", default="auto", metavar="SIZE", help="Memory: 1 GiB or 50%.  [default: 80 %]"),
    click.option("--threads", "executor", type=_count, default="auto", metavar="N", help="Threads.  [default: all]"),
)
preprocess_option = click.option(
    "--preprocess", type=_steps, metavar="A,B",
    help="Done to rows as they are read: table, standardize, robust, log1p, total, unit. Steps of some columns: "
    "log1p:fare,standardize:age+income.  [default: none; for tables with text table]",
)  # fmt: skip
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files that have the names of results.")
labels_format_option = click.option(
    "--labels-format", "labels", type=click.Choice(["npy", "zarr", "csv", "parquet"]), default="npy",
    help="csv, parquet: with distances.  [default: npy]",
)  # fmt: skip
restart_option = click.option("--restart", is_flag=True, help="Forget what an interrupted run has done.")
data_options = _together(
    click.argument("paths", nargs=-1, required=True, metavar="DATA..."),
    machine_options, set_option, column_options, overwrite_option, talk_options,
)  # fmt: skip
"""What commands that read rows by no configuration are given."""
run_options = _together(
    set_option,
    talk_options,
    click.option("-o", "--output", "directory", metavar="PATH", help="Results directory.  [default: streamkm-out]"),
    click.option("--seed", "random_state", type=int, metavar="N", help="Random seed; it determines the result."),
    click.option("--metric", metavar="NAME", help="euclidean, cosine or spherical.  [default: euclidean]"),
    preprocess_option,
    machine_options,
    click.option("--refine", type=_count, metavar="N", help="Further passes, each an exact step on all rows."),
    click.option("--invalid", metavar="raise|skip|mean", help="NaN, infinity: skip labels rows -1.  [default: raise]"),
    column_options,
)
"""What is set most often of a run, whatever commands say of its results."""
result_options = _together(
    labels_format_option,
    click.option("--no-report", "report", flag_value=False, default=True, help="Make no report.html."),
    click.option("--incremental", is_flag=True, help="Write incremental.npz too, which streamkm update goes on with."),
    click.option(
        "--half-life", type=float, metavar="ROWS", help="Rows after which one of incremental.npz counts half."
    ),
    overwrite_option,
)
"""What `fit` alone is given, of its results."""


def invalid_option(*choices: str, text: str) -> Callable[..., Any]:
    """The option ``--invalid``: treatment of rows with NaN or infinity."""
    return click.option("--invalid", type=click.Choice(choices), default="raise", show_default=True, help=text)


def in_words_of(command: click.Command | None, text: str) -> str:
    """Replace Python's parameters in a message by the command's options and keys."""
    from streamkm.cli.schema import SECTIONS

    known = command.params if command is not None else ()
    options = {str(each.name): each.opts[0] for each in known if isinstance(each, click.Option) and not each.is_flag}
    fits = command is not None and command.name in ("fit", "plan")
    sections = ("text", "data", "kernel", "estimator") if fits else ("text", "data")
    keys = {name: f"{section}.{name}" for section in sections for name in SECTIONS[section].model_fields}
    keys |= {"fit_on": "kernel.fit_on"} if fits else {}  # the only one that is advised

    def given(found: re.Match[str]) -> str:
        of, name, value = found.groups()
        if value is None:
            return options.get(name) or keys.get(name, name) if "_" in name and not of else found[0]
        value = value[1:].strip("\"'")
        if name in options:
            value = re.sub("[]\\['\" ]", "", value) if value.startswith("[") else value
            return f"{options[name]} {shlex.quote(value)}" if value else options[name]
        # YAML reads \t in double quotes alone
        value = "null" if value == "None" else f'"{value}"' if "\\" in value else value
        return f"--set {shlex.quote(f'{keys[name]}={value}')}" if name in keys else found[0]

    text = text.replace("pass overwrite", "pass --overwrite").replace("or start anew", "or begin anew with --restart")
    return _NAMED.sub(given, text)


class _Formatter(logging.Formatter):
    """A formatter of log lines and tracebacks that masks secrets in URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


class Talk:
    """Logging and output of one command; restores the logger at the end."""

    def __init__(self, *, quiet: bool, verbose: bool, **_: Any):
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose exclude each other")
        self._started, self._compiled = time.perf_counter(), COMPILING.seconds
        bars, self._quiet = sys.stderr.isatty() and not quiet, quiet
        self.progress = Progress(bars)  # of work that no estimator does
        self._level = logging.DEBUG if verbose else logging.WARNING if quiet or bars else logging.INFO
        self._logger = logging.getLogger("streamkm")
        self._handler = logging.StreamHandler()
        self._handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))

    def __enter__(self) -> Talk:
        self._old_level = self._logger.level
        self._logger.setLevel(self._level)
        self._logger.addHandler(self._handler)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, StreamkmError):
            self._logger.debug("raised here", exc_info=error)
        self._logger.removeHandler(self._handler)
        self._logger.setLevel(self._old_level)

    def prepare(self, estimator: Any, **given: Any) -> Any:
        """Set an estimator's executor, and other values that are not "auto"; no bars if the command is quiet."""
        how = {name: value for name, value in given.items() if name == "executor" or value != "auto"}
        return estimator.set_params(**how, **({"progress": False} if self._quiet else {}))

    def plan(self, plan: Plan) -> None:
        """Log a plan in one line; `streamkm plan` says more."""
        self._logger.info("%s: %d passes, labels %s", plan.source, plan.passes, dict(plan.lines())["assignment"])

    def show(self, text: str) -> None:
        """Print text on stdout, unless quiet."""
        if not self._quiet:
            click.echo(text)

    def say(self, pairs: Iterable[tuple[str, str]], table: str = "") -> None:
        """Print results on stdout, unless quiet; a table above the last line."""
        lines = aligned(pairs).splitlines()
        lines[-1:-1] = ["", table, ""] if table else []
        self.show("\n".join(lines))

    def time(self, stages: Iterable[Mapping[str, Any]] = ()) -> tuple[str, str]:
        """Label and text of the wall time of the command and its parts."""
        spent = {stage["name"]: stage["seconds"] for stage in stages if stage["name"] != COMPILING.name}
        spent["compiling kernels that no run before needed"] = COMPILING.seconds - self._compiled
        told = ", ".join(f"{name}: {seconds:.1f} s" for name, seconds in spent.items() if seconds >= 0.05)
        return "time", f"{time.perf_counter() - self._started:.2f} s" + (f" ({told})" if told else "")


@contextmanager
def work(
    paths: Sequence[str], settings: Sequence[str], options: Mapping[str, Any], beside: str | None = None
) -> Iterator[RowSource]:
    """Open the data of a command without configuration, on the cluster of its settings.

    Rows to append to a store keep given frequencies; other documents are weighted by frequencies that are counted now.
    """
    from streamkm.cli.config import open_work
    from streamkm.engine import open_cluster

    run = open_work(paths, parsed(settings), beside=beside)
    executor, append_to = options["executor"], options.get("append")
    if run.cluster is not None and executor != "auto":
        raise ConfigError(f"--threads {executor} and the section cluster exclude each other; leave one out")
    if append_to is not None and run.data.counts:
        raise ConfigError(
            "text.tfidf=true would weight the new documents by their own frequencies; "
            f"pass --set text.tfidf={append_to}.tfidf.npz, or false"
        )
    with open_cluster(run.cluster):
        yield run.data.weighted(executor, options["memory_limit"])


def parsed(settings: Sequence[str], sections: Sequence[str] = ("data",)) -> list[Override]:
    """Overrides by each ``--set KEY=VALUE``, and by each flag with the name of a key of `sections`."""
    from streamkm.cli.config import Override, parse_set
    from streamkm.cli.schema import SECTIONS

    context, found = click.get_current_context(), [*map(parse_set, settings)]
    for option in context.command.params:
        name = str(option.name)
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            keys = [f"{section}.{name}" for section in sections if name in SECTIONS[section].model_fields]
            found += [Override(key, context.params[name], option.opts[0]) for key in keys]
    return found
