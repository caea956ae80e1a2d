"""Warnings: the package's own are errors in tests, whoever they point at; those of other packages are not."""

from __future__ import annotations

import ast
import importlib
import warnings
from pathlib import Path

import numpy as np
import pytest

import streamkm
from streamkm import StreamKMeans
from streamkm.core.exceptions import StreamkmWarning

ROOT = Path(streamkm.__file__).parent


def categories(path):
    """Classes that a module's calls of `warnings.warn` name."""
    calls = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
    named = [call.args[1:] for call in calls if ast.unparse(call.func) == "warnings.warn"]
    if not named:
        return []
    module = importlib.import_module(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))
    return [getattr(module, ast.unparse(given[0])) for given in named]


def test_every_warning_is_the_packages_own():
    found = [category for path in sorted(ROOT.rglob("*.py")) for category in categories(path)]
    assert len(found) > 5
    assert all(issubclass(category, StreamkmWarning) for category in found)


def test_warnings_that_point_at_callers_are_errors():
    with pytest.raises(StreamkmWarning, match="found 1 cluster instead of 3"):
        StreamKMeans(3, progress=False).fit(np.ones((8, 2)))


@pytest.mark.parametrize("category", [DeprecationWarning, RuntimeWarning, UserWarning])
def test_warnings_of_its_lines_are_errors_and_those_of_other_packages_are_not(category):
    with pytest.raises(category, match="divide by zero"):
        warnings.warn_explicit("divide by zero", category, "rows.py", 1, module="streamkm.cluster.rows")
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn_explicit("of pandas", category, "frame.py", 1, module="pandas.core.frame")
    assert [each.category for each in seen] == [category]
