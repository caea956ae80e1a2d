"""What commands share: rows that no configuration names, their cluster, logging, warnings, stdout, SIGTERM."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streamkm.core.display import aligned, without_secrets
from streamkm.core.exceptions import ConfigError, StreamkmError
from streamkm.core.progress import COMPILING, Progress

if TYPE_CHECKING:
    from streamkm.cli.config import Override
    from streamkm.planning.plan import Plan
    from streamkm.sources.base import RowSource


class _Formatter(logging.Formatter):
    """Log lines and the tracebacks below them, without secrets of URLs."""

    def format(self, record: logging.LogRecord) -> str:
        return without_secrets(super().format(record))


class Talk:
    """Logging and what is printed, for the time of one command; puts everything back afterwards."""

    def __init__(self, *, quiet: bool, verbose: bool, **_: Any):
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose exclude each other")
        self._started, self._compiled = time.perf_counter(), COMPILING.seconds
        self._quiet, self._bars = quiet, sys.stderr.isatty() and not quiet
        self._level = logging.DEBUG if verbose else logging.WARNING if quiet or self._bars else logging.INFO
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
        """The estimator, without bars where the command is quiet; what it was saved with stays where that is "auto"."""
        how = {name: value for name, value in given.items() if name == "executor" or value != "auto"}
        return estimator.set_params(**how, **({"progress": False} if self._quiet else {}))

    def progress(self) -> Progress:
        """Stages of work that no estimator does, with bars where there are bars."""
        return Progress(self._bars)

    def plan(self, plan: Plan) -> None:
        """Log what will be done."""
        self._logger.info("%s: %d passes, labels %s", plan.source, plan.passes, dict(plan.lines())["assignment"])
        for label, text in plan.lines():
            self._logger.debug("plan: %s: %s", label, text)

    def show(self, text: str) -> None:
        """Print text on stdout, unless quiet."""
        if not self._quiet:
            click.echo(text)

    def say(self, pairs: Iterable[tuple[str, str]], table: str = "", n_below: int = 0) -> None:
        """Print results on stdout, unless quiet; a table above the last `n_below` lines."""
        lines = aligned(pairs).splitlines()
        lines[len(lines) - n_below : len(lines) - n_below] = ["", table, ""] if table else []
        self.show("\n".join(lines))

    def book(self, name: str, summary: dict[str, Any], until: float) -> None:
        """Add to a summary, as a stage, the time `until` then that no stage of it has; and what was compiled."""
        stages = [stage for stage in summary["stages"] if stage["name"] != COMPILING.name]
        compiled = COMPILING.seconds - self._compiled
        rest = max(0.0, until - self._started - compiled - sum(stage["seconds"] for stage in stages))
        self._logger.info("%s: %.2f s", name, rest)
        for each, taken in ((name, rest), (COMPILING.name, compiled)):
            stages += [{"name": each, "seconds": taken, "read_bytes": 0, "rows": 0}] if taken else []
        summary |= {"stages": stages, "seconds": sum(stage["seconds"] for stage in stages)}

    def time(self, stages: Iterable[Mapping[str, Any]] = ()) -> tuple[str, str]:
        """Label and text: the wall time of the command, and what took it."""
        spent = {stage["name"]: stage["seconds"] for stage in stages if stage["name"] != COMPILING.name}
        spent["compiling kernels that no run before needed"] = COMPILING.seconds - self._compiled
        told = ", ".join(f"{name}: {seconds:.1f} s" for name, seconds in spent.items() if seconds >= 0.05)
        return "time", f"{time.perf_counter() - self._started:.2f} s" + (f" ({told})" if told else "")


@contextmanager
def work(
    paths: Sequence[str], settings: Sequence[str], options: Mapping[str, Any], beside: str | None = None
) -> Iterator[RowSource]:
    """What a command without a configuration reads, on the cluster that its settings name.

    Documents are weighted by frequencies that are counted now, but for those that are appended to a store.
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
    """What each ``--set KEY=VALUE`` sets, and each flag of the command with the name of a key of `sections`."""
    from streamkm.cli.config import Override, parse_set
    from streamkm.cli.schema import SECTIONS

    context, found = click.get_current_context(), [*map(parse_set, settings)]
    for option in context.command.params:
        name = str(option.name)
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            keys = [f"{section}.{name}" for section in sections if name in SECTIONS[section].model_fields]
            found += [Override(key, context.params[name], option.opts[0]) for key in keys]
    return found
