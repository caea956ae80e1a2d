"""Options of commands, and what errors and warnings say in their words: ``invalid="skip"`` is an option of Python's.

A flag that stands for a key of the configuration has the type of that key, which `schema` takes from the signature.
"""

from __future__ import annotations

import functools
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
_SECTIONS = dict.fromkeys(_FITS, ("estimator", "kernel", "data", "text"))
_ROWS = ("data", "text")  # sections that all other commands take
_PHRASES = (
    ("pass overwrite", "pass --overwrite"),
    ("or start anew", "or begin anew with --restart"),
)  # fmt: skip
_YAML = {"None": "null", "True": "true", "False": "false"}
_OF = {"FeatureHashing": "text", "SketchOptions": "estimator"}  # sections that stand for their arguments
# a parameter with its value, which a message may leave to the reader
_GIVEN = re.compile(
    rf"""(?:({"|".join(_OF)})\()?(?<![\w./-])([a-z]\w*)=("[^"]*"|'[^']*'|\[[^\]]*\]|[\w.+-]*\w|)(?(1)\))"""
)
_NAMED = re.compile(r"(?<![\w./=-])[a-z]+_[a-z_]+(?![\w./=(-])")


def counts_of(_: click.Context, __: click.Parameter, value: str | None) -> int | tuple[int, int] | None:
    """A number of clusters, or the fewest and the most."""
    counts = [] if value is None else value.split(":")
    if len(counts) > 2 or not all(count.isdecimal() for count in counts):
        raise click.BadParameter(f"{value!r} is no number of clusters, like 20, nor fewest and most, like 10:40")
    return None if value is None else int(value) if len(counts) == 1 else (int(counts[0]), int(counts[1]))


def _steps(value: str) -> list[str] | dict[str, Any]:
    """Steps by name, or by name and columns, as in ``log1p:fare,standardize:age+income,weight:age=2``."""
    if ":" not in value:
        return [] if value == "none" else value.split(",")
    steps: dict[str, Any] = {}
    for part in value.split(","):
        step, colon, columns = part.partition(":")
        if step in steps:
            parts = (each.partition(":") for each in value.split(","))
            once = "+".join(names for name, _, names in parts if name == step and names)
            raise click.BadParameter(f"the step {step!r} is there twice; name it once, as in {step}:{once}")
        each = columns.split("+") if colon else None
        steps[step] = dict(map(_weight, each)) if step == "weight" and each else each
    return steps


def _weight(text: str) -> tuple[str, float]:
    column, _, weight = text.rpartition("=")
    try:
        return column, float(weight)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no column with its weight, as in weight:age=2+income=0.5") from None


def _sizes(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    sizes = () if value is None else tuple(value.lower().split("x"))
    if value is not None and not (len(sizes) in (2, 3) and all(size.isdecimal() for size in sizes)):
        raise click.BadParameter(f"{value!r} is no shape of pictures like 28x28 or 32x32x3")
    return None if value is None else tuple(map(int, sizes))


def _names(value: str) -> list[str]:
    return value.split(",")


def _number(value: str) -> float | str:
    try:
        return int(value) if value.removeprefix("-").isdecimal() else float(value)
    except ValueError:  # the section says what is needed
        return value


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
    "log1p:fare,standardize:age+income,weight:age=2.  [default: none; for tables with text table]"
)
_ESTIMATOR_KEYS: dict[str, tuple[Any, ...]] = {
    "seed": (_number, "N", "Random seed; it determines the result."),
    "metric": (None, "NAME", "euclidean, cosine or spherical.  [default: euclidean]"),
    "preprocess": (_steps, "A,B", _STEPS_HELP),
    "memory_limit": (None, "SIZE", _MEMORY_HELP),
    "refine": (_number, "N", "Further passes, each an exact step on all rows."),
    "invalid": (None, "raise|skip|mean", "NaN or infinity: skip labels rows -1.  [default: raise]"),
    "threads": (_number, "N", _THREADS_HELP),
}
_OUTPUT_KEYS: dict[str, tuple[Any, ...]] = {"output": (None, "PATH", "Results directory.  [default: streamkm-out]")}
FIT_KEYS: dict[str, tuple[Any, ...]] = {
    "no_report": (None, None, "Make no report.html."),
    "incremental": (None, None, "Write incremental.npz too, which streamkm update goes on with."),
    "half_life": (_number, "ROWS", "Later rows after which a row of incremental.npz counts half."),
    "overwrite": (None, None, "Replace files that have the names of results."),
}
"""Keys of the section output that `fit` alone takes."""
set_option = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key of config.yaml.")
threads_option = click.option(
    "--threads", "executor", type=click.IntRange(1), callback=lambda _, __, value: value or "auto", help=_THREADS_HELP
)
preprocess_option = click.option(
    "--preprocess",
    callback=lambda _, __, value: None if value is None else _steps(value),
    metavar="A,B",
    help=_STEPS_HELP,
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files that have the names of results.")
memory_option = click.option("--memory-limit", default="auto", metavar="SIZE", help=_MEMORY_HELP)
labels_format_option = click.option(
    "--labels-format", type=_FORMATS, help="csv, parquet: with distances.  [default: npy]"
)
image_option = click.option(
    "--image-shape", callback=_sizes, metavar="HxW", help="Show centers as pictures: 28x28, 32x32x3."
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

    def keep(read: Any, context: click.Context, option: click.Parameter, value: Any) -> None:
        if value not in (None, False):
            value = option.name != "no_report" if value is True else value if read is None else read(value)
            key = f"{section}.{_PARAMETERS.get(str(option.name), option.name)}"
            context.meta.setdefault(GIVEN, []).append((key, value, option.opts[0]))

    for name, (read, metavar, text) in reversed(keys.items()):
        flags = ["-o", "--output"] if name == "output" else [f"--{name.replace('_', '-')}"]
        kept, how = functools.partial(keep, read), {"metavar": metavar} if metavar else {"is_flag": True}
        command = click.option(*flags, callback=kept, expose_value=False, help=text, **how)(command)
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

    options, sections = _options(command), reversed(_SECTIONS.get(command, _ROWS))  # of equal keys the first section's
    keys = {name: f"{section}.{name}" for section in sections for name in SECTIONS[section].model_fields}
    keys |= {"fit_on": "kernel.fit_on"} if command in _FITS else {}  # a sketch's is in `_OF`

    def given(found: re.Match[str]) -> str:
        of, name, value = found.groups()
        value = _YAML.get(value, value.strip("\"'"))
        if name in options and not of:
            value = re.sub("[]\\['\" ]", "", value) if value.startswith("[") else value  # a list of names
            opens = found.string[found.end() :].startswith("{")  # steps with their columns
            return f"{options[name]} {shlex.quote(value) if value else ''}" if value or opens else options[name]
        value = f'"{value}"' if "\\" in value else value  # YAML reads it in double quotes alone
        key = f"{_OF[of]}.{name}" if of else keys.get(name)
        return found.group() if key is None else f"--set {shlex.quote(f'{key}={value}')}"

    for python, words in _PHRASES:
        text = text.replace(python, words)
    return _NAMED.sub(lambda found: options.get(found[0]) or keys.get(found[0], found[0]), _GIVEN.sub(given, text))


def _options(command: str) -> dict[str, str]:
    """Options of a command that take a value, by the names of Python's parameters."""
    known = [each for each in getattr(COMMANDS.get(command), "params", ()) if each.param_type_name == "option"]
    found = {str(each.name): each.opts[0] for each in known if not getattr(each, "is_flag", False)}
    return found | {python: found[name] for name, python in _PARAMETERS.items() if name in found}
