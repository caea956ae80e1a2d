"""The command line: its group, exit codes, and the commands ``streamkm inspect``, ``assign`` and ``warm``.

The other commands are in `fit`, `update` and `commands`, what they share in `common` and `options`; these modules alone
import click, print, and set up logging. The work is done elsewhere.

Exit codes: 0; 2 for wrong usage or input; 3 for rows whose verdict --fail-on names; 1 for a failure of streamkm, or no
space for what is printed; 130 when interrupted; 143 after SIGTERM; 141, without a word, where the reader of what is
printed has stopped (``| head``); a command that fails keeps its code, read or not.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from streamkm import __version__
from streamkm.cli.commands import dedupe, sketch, sweep
from streamkm.cli.common import Talk, TerminatedError, ended_in_order, parsed, work
from streamkm.cli.fit import fit, plan
from streamkm.cli.options import (
    COMMANDS,
    data_options,
    in_words_of,
    set_option,
    table_options,
    talk_options,
)
from streamkm.cli.update import update
from streamkm.core.atomic_io import is_full
from streamkm.core.display import aligned, without_secrets
from streamkm.core.exceptions import ConfigError, StreamkmError
from streamkm.core.progress import COMPILING

_CLOSED_PIPE = 141  # as shells tell that the signal of a closed pipe ended a program
_REPORT_THIS = "This is a failure of streamkm, not of your input. Please report it with the lines above."


_PURPOSES = {
    "Look at data": ("inspect", "sweep", "plan"),
    "Cluster": ("fit", "assign"),
    "More rows later": ("update",),
    "Large data": ("sketch", "dedupe"),
}  # commands of each in the help


class _InputError(click.ClickException):
    """Input that streamkm refuses, on a line for each problem."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        for line in self.message.splitlines():
            click.echo(f"streamkm: error: {line}", err=True, file=file)


class _OutputFullError(_InputError):
    """There is no space for what is printed."""

    exit_code = 1


def _show_failure(*failure: Any) -> None:
    """Print a traceback as Python does, but without secrets of URLs: it is made to be sent to others."""
    click.echo(without_secrets("".join(traceback.format_exception(*failure))), err=True, nl=False)


@contextmanager
def _told_in_order() -> Iterator[None]:
    """Take secrets out of messages; end where what is printed is lost: its reader has gone, or there is no space."""
    try:
        yield
    except click.ClickException as error:
        error.message = without_secrets(error.message)  # type: ignore[misc] # of all kinds, as click prints it
        error.show = partial(_show_if_read, error.show)  # type: ignore[method-assign]
        raise
    except OSError as error:
        is_broken = isinstance(error, BrokenPipeError)
        is_lost = (is_broken or is_full(error)) and any(map(_is_lost, (sys.stdout, sys.stderr)))
        if is_broken and not is_lost:  # which click would take for a reader that has gone
            raise ConnectionError(f"a connection was closed: {error}") from error
        if is_broken:
            _discard(sys.stdout, sys.stderr)
            raise click.exceptions.Exit(_CLOSED_PIPE) from None
        if not is_lost:
            raise
        _discard(sys.stdout)
        failure = f"standard output: no space ({error.strerror}); results in files are complete"
        raise _OutputFullError(failure) from None


def _show_if_read(show: Callable[..., None], file: Any = None) -> None:
    """Print a message; where nobody reads it, the exit code stays."""
    try:
        show(file)
    except OSError:
        _discard(sys.stdout, sys.stderr)


def _is_lost(stream: Any) -> bool:
    """Whether a line end cannot be written; what could not be written before it may be in no buffer."""
    try:
        stream.write("\n")
        stream.flush()
    except OSError:
        return True
    return False


def _discard(*streams: Any) -> None:
    """Send to nowhere what streams still hold, and will be given."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _complete_streams() -> None:
    """Open standard streams that are closed, and let them take names of files that are no UTF-8.

    Else the next file that is opened would get the number of a closed one, and what libraries write to that.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        stream = getattr(sys, name)
        if stream is None:
            handle = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
            os.set_inheritable(handle, handle == number)
            setattr(sys, name, open(handle, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


class _Commands(click.Group):
    """Turns exceptions of commands into messages and exit codes."""

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        for purpose, names in _PURPOSES.items():
            with formatter.section(purpose):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(90)) for name in names])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _complete_streams()
        return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _told_in_order():  # --help prints while arguments are read
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _told_in_order():
            try:
                with ended_in_order():
                    return super().invoke(ctx)
            except ConfigError as error:  # in the words of the command line already
                raise _InputError(str(error)) from None
            except StreamkmError as error:
                raise _InputError(in_words_of(ctx.invoked_subcommand or "", str(error))) from None
            except KeyboardInterrupt as error:
                word, code = ("ended by SIGTERM", 143) if isinstance(error, TerminatedError) else ("interrupted", 130)
                click.echo(f"streamkm: {word}; results of earlier runs are unchanged", err=True)
                ctx.exit(code)
            except (click.ClickException, click.exceptions.Exit, click.Abort):
                raise
            except Exception as error:
                error.add_note(_REPORT_THIS)
                sys.excepthook = _show_failure
                raise


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="streamkm")
def main() -> None:
    """Cluster data that need not fit in memory."""


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@set_option
@table_options
def inspect(paths: Sequence[str], settings: Sequence[str]) -> None:
    """Say what is in files, and for tables the fit to type.

    Reads the first rows of tables and no rows of other files, so some numbers are estimates ("about").
    With flags for columns it says how a table is read with these instead.
    """
    from streamkm.cli.config import inspected

    click.echo("\n\n".join(inspected(path, parsed(settings)) for path in paths))


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@data_options
@click.option(
    "-o", "--output", required=True, type=click.Path(),
    help="Labels: NAME.npy or NAME.zarr; NAME.csv or NAME.parquet with distances, NAME.parquet/ for a folder of these.",
)  # fmt: skip
def assign(model: str, paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Label rows with the centers of MODEL.

    MODEL is the model.npz of a results directory, or a file that save() of an estimator wrote. Each row gets the label
    of its nearest center. Tables are read by the columns, categories and dates of the fit, which MODEL keeps. Documents
    are hashed and weighted like those of the fit, by text.json and tfidf.npz beside MODEL.
    """
    with Talk(**options) as talk:
        from streamkm.cli.results import check_labels_target, write_npy
        from streamkm.cli.summary import rows_text
        from streamkm.estimators.files import load_estimator
        from streamkm.passes.label_tables import Written
        from streamkm.passes.labels import count_skipped
        from streamkm.sources.arrow import UNSEEN

        UNSEEN.clear()
        check_labels_target(output, overwrite=options["overwrite"])
        how = {name: options[name] for name in ("executor", "memory_limit")}
        estimator = talk.prepare(load_estimator(model), **how)
        with work(paths, settings, options, model) as source:
            if output.endswith(".npy"):
                labels = estimator.predict(source)
                write_npy(output, labels, overwrite=options["overwrite"])
            else:
                labels = estimator.predict_to(source, output, overwrite=options["overwrite"])
        told = labels if isinstance(labels, Written) else Written(labels.shape[0], count_skipped(labels))
        new = ", ".join(f"{n:,} of {name}" for name, n in UNSEEN.items() if n)  # of this process, not of a cluster's
        more = {"new values": f"{new}: the fit had not seen them"} if new else {}
        if left := source.details().get("left out", "").replace("not among columns=", "no feature of the fit"):
            more["left out"] = left
        talk.say([("rows", rows_text(told.n_rows, told.n_skipped)), *more.items(), ("labels", output), talk.time()])


@click.command(hidden=True)
@talk_options
def warm(*, quiet: bool, verbose: bool) -> None:
    """Compile kernels before the first fit, for all processes that share the cache.

    The cache is where NUMBA_CACHE_DIR says, else beside the package, or in the cache of the user. Use it when an image
    of a container is built, or on each machine before workers of a cluster are started: python -m streamkm warm.
    """
    with Talk(quiet=not verbose, verbose=verbose):  # how these fits go is of no interest
        from streamkm.estimators import fit_tiny
        from streamkm.kernels.centers.nearest import nearest_csr
        from streamkm.kernels.text.svmlight import parse_rows

        list(fit_tiny())
    compiled = f"{COMPILING.done:,.0f} compiled in {COMPILING.seconds:.0f} s"
    folder = os.path.commonpath([each.stats.cache_path for each in (nearest_csr, parse_rows)])
    if not quiet:
        click.echo(aligned([("kernels", compiled if COMPILING.done else "all in the cache before"), ("cache", folder)]))


for _command in (fit, plan, inspect, assign, update, sketch, dedupe, sweep, warm):
    main.add_command(_command)
COMMANDS.update(main.commands)
