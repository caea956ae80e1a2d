"""Names in docstrings lead somewhere: no sentence speaks of a module, a function or a parameter that was renamed."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import streamkm
from tests.house import parsed

PACKAGE = Path(streamkm.__file__).parent
WORD = re.compile(r"(?<!`)`([A-Za-z_]\w*)`(?!`)")
DOTTED = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`(?!`)")
OF_SKLEARN = {"TfidfTransformer", "sample_size"}
"""Names of scikit-learn's that only docstrings have."""


def module_name(path: Path) -> str:
    """The dotted name of a file of the package."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def trees() -> dict[Path, ast.Module]:
    """The syntax trees of all files of the package."""
    return {PACKAGE / at: tree for at, tree in parsed().items() if not at.endswith("__main__.py")}


@cache
def walked() -> dict[Path, list[ast.AST]]:
    """All nodes of each syntax tree."""
    return {path: list(ast.walk(tree)) for path, tree in trees().items()}


def nodes() -> Iterator[tuple[Path, Any]]:
    """All nodes of all syntax trees, with their files."""
    for path, found in walked().items():
        for node in found:
            yield path, node


def docstrings() -> Iterator[tuple[str, str]]:
    """Where each docstring stands, and its text; strings below an attribute count too."""
    for path, node in nodes():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node.value.value


def owners() -> dict[str, list[Any]]:
    """Modules and classes by the last part of their names; other packages of the same names too."""
    found = defaultdict(list)
    for path, tree in trees().items():
        module = importlib.import_module(module_name(path))
        found[module.__name__.rpartition(".")[2]].append(module)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name in vars(module):
                found[node.name].append(vars(module)[node.name])
    for name in ("dask", "zarr"):
        found[name].append(importlib.import_module(name))
    return found


def attributes_set() -> dict[str, set[str]]:
    """Attributes of ``self`` in the methods of each class."""
    return {
        node.name: {
            each.attr
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
        }
        for _, node in nodes()
        if isinstance(node, ast.ClassDef)
    }


def leads_somewhere(owner: Any, parts: list[str], of_self: dict[str, set[str]]) -> bool:
    """Whether modules, classes and attributes are called so, each in the one before."""
    for number, part in enumerate(parts):
        if not hasattr(owner, part):
            classes = getattr(owner, "__mro__", ())
            fields = {name for each in classes for name in vars(each).get("__annotations__", ())}
            known = fields.union(*(of_self.get(each.__name__, ()) for each in classes))
            return part in known and number == len(parts) - 1
        owner = getattr(owner, part)
    return True


def identifiers(node: Any) -> tuple[str, ...]:
    """What a node calls things, or what it defines; texts that could be names are keys and choices."""
    names = [getattr(node, field, None) for field in ("id", "attr", "arg", "name")]
    if isinstance(node, ast.alias):
        names += (node.asname or node.name).split(".")
    if isinstance(node, ast.Constant):
        names.append(node.value)
    return tuple(name for name in names if isinstance(name, str))


def test_dotted_names_of_ours_lead_somewhere():
    by_name, of_self, lost = owners(), attributes_set(), []
    for where, text in docstrings():
        for name in DOTTED.findall(text):
            first, *rest = name.split(".")
            if first in by_name and not any(leads_somewhere(owner, rest, of_self) for owner in by_name[first]):
                lost.append(f"{where}: {name}")
    assert not lost, "\n".join(lost)


def test_single_names_are_those_of_something():
    known = {*dir(builtins), *OF_SKLEARN, *(part for path in trees() for part in path.with_suffix("").parts)}
    known.update(name for _, node in nodes() for name in identifiers(node))
    lost = [f"{where}: {name}" for where, text in docstrings() for name in WORD.findall(text) if name not in known]
    assert not lost, "\n".join(lost)
