"""Options of commands, and what errors and warnings say in their words: ``invalid="skip"`` is an option of Python's.

A flag that stands for a key of the configuration has the name of that key; `schema` checks its value.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import reduce
from typing import Any

import click

# a parameter, alone or with its value, which a message may leave to the reader; or as the one argument of a class
_NAMED = re.compile(
    r"""([A-Z]\w+\()?(?<![\w./=-])([a-z]\w*)(=(?!\{)(?:"[^"]*"|'[^']*'|\[[^]]*\]|[\w.+-]*\w|))?(?![\w("']|[./]\w)(?(1)\))"""
)


def _together(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator in place of several."""
    return lambda command: reduce(lambda made, option: option(made), reversed(options), command)


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
    for step, _, names in (part.partition(":") for part in value.split(",")):
        if step in steps:
            raise click.BadParameter(f"the step {step!r} is there twice; name it once, with all its columns: A+B")
        steps[step] = names.split("+") if names else None
    return steps


def _sizes(value: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+x\d+(x\d+)?", value):
        raise click.BadParameter(f"{value!r} is no shape of pictures like 28x28 or 32x32x3")
    return tuple(map(int, value.split("x")))


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
    click.option("--image-shape", type=_sizes, metavar="HxW", help="Show centers as pictures: 28x28, 32x32x3."),
)
"""What `fit` alone is given, of its results."""


def invalid_option(*choices: str, text: str) -> Callable[..., Any]:
    """Treatment of rows with NaN or infinity: `invalid`."""
    return click.option("--invalid", type=click.Choice(choices), default="raise", show_default=True, help=text)


def in_words_of(command: click.Command | None, text: str) -> str:
    """A message with the options and keys that a command has for the parameters in it."""
    from streamkm.cli.schema import SECTIONS

    known = command.params if command is not None else ()
    options = {str(each.name): each.opts[0] for each in known if isinstance(each, click.Option) and not each.is_flag}
    sections = ["text", "data"]
    if fits := command is not None and command.name in ("fit", "plan"):
        sections += ["kernel", "estimator"]
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
