"""Tests of many cases that differ by a value alone: one test goes through a table and names the row that fails."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def row(**named: Any) -> Iterator[None]:
    """Name the row of a table, in what fails within."""
    try:
        yield
    except BaseException as error:
        error.add_note("in the row " + ", ".join(f"{name}={value!r}" for name, value in named.items()))
        raise


def rows(**columns: Any) -> Iterator[dict[str, Any]]:
    """Every row of a table of all combinations of its columns' values, each to be given to `row` as well."""
    for values in itertools.product(*columns.values()):
        yield dict(zip(columns, values, strict=True))


@contextmanager
def _of_one_row(fixtures: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """The fixtures of a test for one row: a folder of its own, and patches that end with it."""
    given = dict(fixtures)
    if "tmp_path" in given:
        given["tmp_path"] = given["tmp_path"] / f"row{number}"
        given["tmp_path"].mkdir()
    with pytest.MonkeyPatch.context() as patched:
        if "monkeypatch" in given:
            given["monkeypatch"] = patched
        yield given


def slow_but(quick: Collection[Any], values: Iterable[Any], *, full: bool = False) -> list[Any]:
    """Values for `pytest.mark.parametrize`, tuples for several names: tests of all but the quick ones are slow.

    With `full` reduced runs leave them out.
    """
    given = [(value, value if isinstance(value, tuple) else (value,)) for value in values]
    slow = (pytest.mark.slow, pytest.mark.full) if full else (pytest.mark.slow,)
    return [pytest.param(*each, marks=() if value in quick else slow) for value, each in given]


def cases(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a test every row of a table, one after the other: as `pytest.mark.parametrize`, but as one test."""
    columns, values = [name.strip() for name in names.split(",")], list(values)

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def each_row(*args: Any, **fixtures: Any) -> None:
            skipped = []
            for number, value in enumerate(values):
                case = dict(zip(columns, value if len(columns) > 1 else (value,), strict=True))
                try:
                    with row(**case), _of_one_row(fixtures, number) as given:
                        function(*args, **given, **case)
                except pytest.skip.Exception as skip:  # of this row: the others run
                    skipped.append(skip)
            if len(skipped) == len(values):
                raise skipped[0]

        signature = inspect.signature(function)
        left = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        each_row.__signature__ = signature.replace(parameters=left)
        return each_row

    return decorate
