"""Options of commands, and what errors and warnings say in their words: ``invalid="skip"`` is an option of Python's.

A flag that stands for a key of the configuration has the type of that key, which `schema` takes from the signature.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import click

_THREADS_HELP = "Threads of this process.  [default: one for each processor]"
_MEMORY_HELP = "Memory of this process at most: 1 GiB or 50%.  [default: 80 % of the machine's]"
_FORMATS = click.Choice(["npy", "zarr", "csv", "parquet"])
COMMANDS: dict[str, Any] = {}  # by name; `main` fills it
_FITS = ("fit", "plan")
# what Python calls some options
_PARAMETERS = {"seed": "random_state", "threads": "executor", "output": "directory", "no_report": "report"}
# a parameter, alone or with its value, which a message may leave to the reader; or as the one argument of a class
_NAMED = re.compile(
    r"""([A-Z]\w+\()?(?<![\w./=-])([a-z]\w*)(=(?!\{)(?:"[^"]*"|'[^']*'|\[[^]]*\]|[\w.+-]*\w|))?(?![\w("']|[./]\w)(?(1)\))"""
)


def counts_of(value: str) -> int | tuple[int, int]:
    """A number of clusters, or the fewest and the most."""
    counts = value.split(":")
    if len(counts) > 2 or not all(count.isdecimal() for count in counts):
        raise click.BadParameter(f"{value!r} is no number of clusters, like 20, nor fewest and most, like 10:40")
    return int(value) if len(counts) == 1 else (int(counts[0]), int(counts[1]))


def _steps(value: str) -> list[str] | dict[str, Any]:
    """Steps by name, or by name and columns, as in ``log1p:fare,standardize:age+income``."""
    if ":" not in value:
        return [] if value == "none" else value.split(",")
    steps: dict[str, Any] = {}
    for part in value.split(","):
        step, _, columns = part.partition(":")
        if step in steps:
            raise click.BadParameter(f"the step {step!r} is there twice; name it once, with all its columns: A+B")
        steps[step] = columns.split("+") if columns else None
    return steps


def _sizes(value: str) -> tuple[int, ...]:
    sizes = value.lower().split("x")
    if len(sizes) not in (2, 3) or not all(size.isdecimal() for size in sizes):
        raise click.BadParameter(f"{value!r} is no shape of pictures like 28x28 or 32x32x3")
    return tuple(map(int, sizes))


def _count(value: str) -> int | str:
    return value if value == "auto" else int(value)


def _names(value: str) -> list[str]:
    return value.split(",")


_COLUMN_KEYS: dict[str, tuple[Any, ...]] = {
    "columns": (_names, "A,B", "Table columns to use as features."),
    "exclude": (_names, "A,B", "Table columns to leave out."),
    "id_column": (None, "NAME", "Table column that identifies rows; not used as a feature."),
    "categories": (None, "onehot|hash", "Encoding of text columns."),
    "categories_unseen": (None, "raise|ignore", "Categories that no row of the fit has.  [default: raise]"),
    "feature_names": (None, "FILE", "Names of features, one a line, for data without names."),
    "dates": (None, "days", "Read dates and times as days since 1970."),
    "genes": (None, "NAME", "Cells: the genes for which this column of var is true."),
}
COLUMN_FLAGS = tuple(_COLUMN_KEYS)
GIVEN = "streamkm.given"  # in `meta` of a context: keys with their values and flags
_STEPS_HELP = (
    "Done to rows as they are read: table, standardize, robust, log1p, total, unit. Steps of some columns: "
    "log1p:fare,standardize:age+income.  [default: none; for tables with text table]"
)
_ESTIMATOR_KEYS: dict[str, tuple[Any, ...]] = {
    "seed": (int, "N", "Random seed; it determines the result."),
    "metric": (None, "NAME", "euclidean, cosine or spherical.  [default: euclidean]"),
    "preprocess": (_steps, "A,B", _STEPS_HELP),
    "memory_limit": (None, "SIZE", _MEMORY_HELP),
    "refine": (_count, "N", "Further passes, each an exact step on all rows."),
    "invalid": (None, "raise|skip|mean", "NaN or infinity: skip labels rows -1.  [default: raise]"),
    "threads": (_count, "N", _THREADS_HELP),
}
_OUTPUT_KEYS: dict[str, tuple[Any, ...]] = {"output": (None, "PATH", "Results directory.  [default: streamkm-out]")}
FIT_KEYS: dict[str, tuple[Any, ...]] = {
    "no_report": (None, None, "Make no report.html."),
    "incremental": (None, None, "Write incremental.npz too, which streamkm update goes on with."),
    "half_life": (float, "ROWS", "Later rows after which a row of incremental.npz counts half."),
    "overwrite": (None, None, "Replace files that have the names of results."),
}
"""Keys of the section output that `fit` alone takes."""
set_option = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key of config.yaml.")
threads_option = click.option(
    "--threads", "executor", type=click.IntRange(1), callback=lambda _, __, value: value or "auto", help=_THREADS_HELP
)
preprocess_option = click.option("--preprocess", type=_steps, metavar="A,B", help=_STEPS_HELP)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files that have the names of results.")
memory_option = click.option("--memory-limit", default="auto", metavar="SIZE", help=_MEMORY_HELP)
labels_format_option = click.option(
    "--labels-format", type=_FORMATS, help="csv, parquet: with distances.  [default: npy]"
)
image_option = click.option(
    "--image-shape", type=_sizes, metavar="HxW", help="Show centers as pictures: 28x28, 32x32x3."
)
restart_option = click.option("--restart", is_flag=True, help="Forget what an interrupted run has done.")


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which columns of tables and which genes are features: keys of the section data."""
    return keys_of(command, "data", _COLUMN_KEYS)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is set most often of a run, whatever commands say of its results."""
    command = keys_of(table_options(command), "estimator", _ESTIMATOR_KEYS)
    return set_option(talk_options(keys_of(command, "output", _OUTPUT_KEYS)))


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What commands that read rows by no configuration are given: where these are, and how the command works."""
    for shared in (talk_options, overwrite_option, table_options, set_option, threads_option, memory_option):
        command = shared(command)
    return click.argument("paths", nargs=-1, required=True, metavar="DATA...")(command)


def invalid_option(*choices: str, text: str) -> Callable[..., Any]:
    """Treatment of rows with NaN or infinity: `invalid`."""
    return click.option("--invalid", type=click.Choice(choices), default="raise", show_default=True, help=text)


def keys_of(command: Callable[..., Any], section: str, keys: dict[str, tuple[Any, ...]]) -> Callable[..., Any]:
    """Give a command flags for keys of a section; what is given of them is in `GIVEN` of the context."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            key = f"{section}.{_PARAMETERS.get(str(option.name), option.name)}"
            given = option.name != "no_report" if value is True else value
            context.meta.setdefault(GIVEN, []).append((key, given, option.opts[0]))

    for name, (read, metavar, text) in reversed(keys.items()):
        flags = ["-o", "--output"] if name == "output" else [f"--{name.replace('_', '-')}"]
        how = {"metavar": metavar, "type": read} if metavar else {"is_flag": True}
        command = click.option(*flags, callback=keep, expose_value=False, help=text, **how)(command)
    return command


def talk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How much is said: `quiet` and `verbose`."""
    loud = click.option("-v", "--verbose", is_flag=True, help="More log lines, and where errors were raised.")
    return click.option("-q", "--quiet", is_flag=True, help="No progress, no log lines, no summary.")(loud(command))


def in_words_of(command: str, text: str) -> str:
    """A message with the options and keys that a command has for the parameters in it.

    `command`: ``fit``.

    Examples
    --------
    >>> from streamkm.cli.main import main  # it fills `COMMANDS`
    >>> in_words_of("fit", 'NaN in row 7; pass invalid="skip" to leave such rows out')
    'NaN in row 7; pass --invalid skip to leave such rows out'
    >>> in_words_of("sketch", 'NaN in row 7; pass invalid="skip" to leave such rows out')
    'NaN in row 7; pass --invalid skip to leave such rows out'
    """
    from streamkm.cli.schema import SECTIONS

    known = [each for each in getattr(COMMANDS.get(command), "params", ()) if each.param_type_name == "option"]
    options = {str(each.name): each.opts[0] for each in known if not each.is_flag}
    options |= {python: options[name] for name, python in _PARAMETERS.items() if name in options}
    sections = ("text", "data", "kernel", "estimator") if command in _FITS else ("text", "data")
    keys = {name: f"{section}.{name}" for section in sections for name in SECTIONS[section].model_fields}
    keys |= {"fit_on": "kernel.fit_on"} if command in _FITS else {}  # the only one that is advised

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
