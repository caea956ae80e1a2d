"""Options that more than one command has."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from streamkm.cli.wording import COLUMN_FLAGS

_THREADS_HELP = "Threads of this process.  [default: one for each processor]"


def _names(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | None:
    return None if value is None else value.split(",")


def counts_of(_: click.Context, __: click.Parameter, value: str | None) -> int | tuple[int, int] | None:
    """A number of clusters, or the fewest and the most."""
    counts = [] if value is None else value.split(":")
    if len(counts) > 2 or not all(count.isdecimal() for count in counts):
        raise click.BadParameter(f"{value!r} is no number of clusters, like 20, nor fewest and most, like 10:40")
    return None if value is None else int(value) if len(counts) == 1 else (int(counts[0]), int(counts[1]))


def _steps(_: click.Context, __: click.Parameter, value: str | None) -> list[str] | dict[str, Any] | None:
    """Steps by name, or by name and columns, as in ``log1p:fare,standardize:age+income,weight:age=2``."""
    if value is None or ":" not in value:
        return None if value is None else value.split(",")
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


set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Set a key of the configuration, as in estimator.n_clusters=50 or data.dataset=/X. Repeatable.",
)  # fmt: skip
"""A key of the configuration, `settings`."""
threads_option = click.option(
    "--threads", "executor", type=click.IntRange(1), callback=lambda _, __, value: value or "auto", help=_THREADS_HELP
)  # fmt: skip
"""How many threads work: `executor`."""
preprocess_option = click.option(
    "--preprocess", callback=_names, metavar="A,B",
    help="Done to rows as they are read: standardize, robust, log1p, total, unit.",
)  # fmt: skip
"""What is done to rows as they are read: `preprocess`."""
column_steps_option = click.option(
    "--preprocess", callback=_steps, metavar="A,B",
    help="Done to rows as they are read: table, standardize, robust, log1p, total, unit. Steps of some columns: "
    "log1p:fare,standardize:age+income,weight:age=2.  [default for tables with text: table]",
)  # fmt: skip
"""What is done to rows, or to some of their columns, as they are read: `preprocess`."""
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace files that have the names of results.")
"""Whether files may be replaced: `overwrite`."""
memory_option = click.option(
    "--memory-limit", default="auto", show_default=True, metavar="SIZE",
    help="Memory of this process at most: 1 GiB, 50%, or auto, 80 % of the machine's.",
)  # fmt: skip
"""What the command may hold: `memory_limit`."""
labels_format_option = click.option(
    "--labels-format", type=click.Choice(["npy", "zarr", "csv", "parquet"]),
    help="Labels as an array, or as a table with distances, which takes one more pass.  [default: npy]",
)  # fmt: skip
"""As what labels are written: `labels_format`."""
image_option = click.option(
    "--image-shape", callback=_sizes, metavar="HxW",
    help="For rows of pixels, like 28x28 or 32x32x3: show each cluster's center as a picture.",
)  # fmt: skip
"""Whether a report shows clusters as pictures: `image_shape`."""
restart_option = click.option("--restart", is_flag=True, help="Forget what an interrupted run has done.")
"""Whether a pass begins anew: `restart`."""


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which columns of tables and which genes are features: keys of the section data, added to `settings`."""
    return _as_settings(
        command,
        {name: f"data.{name}" for name in COLUMN_FLAGS},
        click.option("--columns", callback=_names, metavar="A,B", help="Table columns to use as features."),
        click.option("--exclude", callback=_names, metavar="A,B", help="Table columns to leave out."),
        click.option("--id-column", metavar="NAME", help="Table column that identifies rows; not used as a feature."),
        click.option("--categories", type=click.Choice(["onehot", "hash"]), help="Encoding of text columns."),
        click.option(
            "--categories-unseen", type=click.Choice(["raise", "ignore"]),
            help="Categories that the fit has not seen: an error, or no category.  [default: raise]",
        ),
        click.option("--feature-names", metavar="FILE", help="Names of features, one a line, for data without names."),
        click.option("--dates", type=click.Choice(["days"]), help="Read dates and times as days since 1970."),
        click.option("--genes", metavar="NAME", help="Cells: the genes for which this column of var is true."),
    )  # fmt: skip


def estimator_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What is set most often of the section estimator, as flags; they are added to `settings`."""
    keys = {name: f"estimator.{name}" for name in ("metric", "preprocess", "memory_limit", "refine", "invalid")}
    return _as_settings(
        command,
        {**keys, "seed": "estimator.random_state", "threads": "estimator.executor"},
        click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), help="Random seed; it determines the result."),
        click.option("--metric", type=click.Choice(["euclidean", "cosine", "spherical"]), help="[default: euclidean]"),
        column_steps_option,
        click.option("--memory-limit", metavar="SIZE", help="Largest memory of the process: 1 GiB or 50%."),
        click.option("--refine", type=click.IntRange(0), help="Further passes, each an exact step on all rows."),
        click.option(
            "--invalid", type=click.Choice(["raise", "skip", "mean"]),
            help="Rows with NaN or infinity: skip gives them the label -1; mean fills NaN.  [default: raise]",
        ),
        click.option("--threads", type=click.IntRange(1), help=_THREADS_HELP),
    )  # fmt: skip


def invalid_option(*choices: str, text: str) -> Callable[..., Any]:
    """Treatment of rows with NaN or infinity: `invalid`."""
    return click.option("--invalid", type=click.Choice(choices), default="raise", show_default=True, help=text)


def _as_settings(command: Callable[..., Any], keys: dict[str, str], *options: Any) -> Callable[..., Any]:
    """Give a command options, of which each that is given becomes one of its `settings`."""

    @functools.wraps(command)
    def wrapped(*args: Any, settings: Sequence[str], **given: Any) -> Any:
        values = {key: given.pop(name, None) for name, key in keys.items()}
        flags = {each.name: each.opts[0] for each in click.get_current_context().command.params}
        more = [(key, values[key], flags[name]) for name, key in keys.items() if values[key] is not None]
        return command(*args, settings=(*settings, *more), **given)

    made: Callable[..., Any] = wrapped
    for option in reversed(options):
        made = option(made)
    return made


def talk_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How much is said: `quiet` and `verbose`."""
    command = click.option("-v", "--verbose", is_flag=True, help="More log lines, and where errors were raised.")(
        command
    )
    return click.option("-q", "--quiet", is_flag=True, help="No progress, no log lines, no summary.")(command)
