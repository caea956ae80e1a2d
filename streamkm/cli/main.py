"""The command line: its group, exit codes, and the commands ``streamkm inspect``, ``assign`` and ``warm``.

Only modules of commands and `common` import click, print, and set up logging. Exit codes: 0; 2 for wrong usage or
input; 3 for rows whose verdict --fail-on names; 1 for a failure of streamkm, and if nobody reads what is printed
(``| head``); 130 when interrupted; 143 after SIGTERM.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import click

from streamkm import __version__
from streamkm.cli.commands import dedupe, sketch, sweep
from streamkm.cli.common import Talk, column_options, data_options, in_words_of, parsed, set_option, talk_options, work
from streamkm.cli.fit import fit, plan
from streamkm.cli.update import update
from streamkm.core.display import aligned, without_secrets
from streamkm.core.exceptions import ConfigError, StreamkmError
from streamkm.core.progress import COMPILING

_REPORT_THIS = "This is a failure of streamkm, not of your input. Please report it with the lines above."

# commands of each purpose in the help
_PURPOSES = {"Look at data": "inspect sweep plan", "Cluster": "fit assign update", "Large data": "sketch dedupe"}


class _InputError(click.ClickException):
    """Refused input, with a line for each problem."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        for line in self.message.splitlines():
            click.echo(f"streamkm: error: {line}", err=True, file=file)


def _show_failure(*failure: Any) -> None:
    """Print a traceback without secrets of URLs, because users send it to others."""
    click.echo(without_secrets("".join(traceback.format_exception(*failure))), err=True, nl=False)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    context = click.get_current_context(silent=True)
    text = in_words_of(None if context is None else context.command, str(message))
    click.echo(f"streamkm: warning: {without_secrets(text)}", err=True)


def _terminate(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second one would stop what cleans up
    raise KeyboardInterrupt(number)


class _Commands(click.Group):
    """A group that turns exceptions into messages and exit codes."""

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        for purpose, names in _PURPOSES.items():
            with formatter.section(purpose):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(90)) for name in names.split()])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no UTF-8
        return super().main(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings(), ExitStack() as stack:
                warnings.showwarning = _show_warning
                is_main = threading.current_thread() is threading.main_thread()
                if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the caller handles it
                    signal.signal(signal.SIGTERM, _terminate)
                    stack.callback(signal.signal, signal.SIGTERM, signal.SIG_DFL)
                return super().invoke(ctx)
        except StreamkmError as error:
            text = str(error)  # of a configuration: in the words of the command line already
            if not isinstance(error, ConfigError):
                text = in_words_of(self.commands.get(ctx.invoked_subcommand or ""), text)
            raise _InputError(without_secrets(text)) from None
        except KeyboardInterrupt as error:
            word, code = ("ended by SIGTERM", 143) if error.args == (signal.SIGTERM,) else ("interrupted", 130)
            told = "results of earlier runs are unchanged, and a fit goes on with --resume"
            click.echo(f"streamkm: {word}; {told}", err=True)
            ctx.exit(code)
        except click.ClickException as error:
            error.message = without_secrets(error.message)  # type: ignore[misc] # of all kinds, as click prints it
            raise
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError):  # click then ends without a word
                click.echo(f"streamkm: a pipe or connection was closed: {error}", err=True)
            elif not isinstance(error, OSError):
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
@column_options
def inspect(paths: Sequence[str], settings: Sequence[str], **_: Any) -> None:
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
    help="Labels: NAME.npy or NAME.zarr; NAME.csv or NAME.parquet with distances.",
)  # fmt: skip
@click.option("--partition-by", type=click.Choice(["cluster"]), help="Write Parquet rows below PATH/cluster=LABEL.")
def assign(model: str, paths: Sequence[str], output: str, settings: Sequence[str], **options: Any) -> None:
    """Label rows with the centers of MODEL.

    MODEL is the model.npz of a results directory, or a file that save() of an estimator wrote. Each row gets the label
    of its nearest center. Tables are read by the columns, categories and dates of the fit, which MODEL keeps. Documents
    are hashed and weighted like those of the fit, by text.json and tfidf.npz beside MODEL.

    With --partition-by cluster, the rows of Parquet files are written with all their columns, a directory a cluster,
    beside centers.npy and centers.arrow. DATA are read twice.
    """
    with Talk(**options) as talk:
        from streamkm.cli.results import check_labels_target, write_npy
        from streamkm.cli.summary import rows_text
        from streamkm.estimators.model_files import load_estimator
        from streamkm.passes.label_tables import Written
        from streamkm.passes.labels import count_skipped
        from streamkm.sources.arrow import UNSEEN

        UNSEEN.clear()
        by, overwrite = options["partition_by"], options["overwrite"]
        if by is None:
            check_labels_target(output, overwrite=overwrite)
        how = {name: options[name] for name in ("executor", "memory_limit")}
        estimator = talk.prepare(load_estimator(model), **how)
        with work(paths, settings, options, model) as source:
            if by is None and output.endswith(".npy"):
                labels = estimator.predict(source)
                write_npy(output, labels, overwrite=overwrite)
            else:
                labels = estimator.predict_to(source, output, partition_by=by, overwrite=overwrite)
        told = labels if isinstance(labels, Written) else Written(labels.shape[0], count_skipped(labels))
        left = source.details().get("left out", "").replace("not among columns=", "no feature of the fit")
        new = ", ".join(f"{n:,} of {name}" for name, n in UNSEEN.items() if n)  # of this process, not of a cluster's
        seen = [("new values", new and f"{new}: the fit had not seen them"), ("left out", left)]
        lines = [("rows", rows_text(told.n_rows, told.n_skipped)), *seen, ("files", f"{told.n_files:,}" if by else "")]
        talk.say([*(line for line in lines if line[1]), ("labels", output), talk.time()])


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
