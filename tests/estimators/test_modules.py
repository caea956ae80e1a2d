"""Modules of the estimators meet in functions and classes, not in private methods of each other."""

from __future__ import annotations

import ast
from pathlib import Path

from streamkm import estimators


def test_private_methods_are_called_where_they_are_defined():
    modules = {path.name: ast.parse(path.read_text("utf-8")) for path in Path(estimators.__file__).parent.glob("*.py")}
    private = {name: {each for each in defined(tree) if each.startswith("_")} for name, tree in modules.items()}
    assert "_follow" in private["incremental.py"]
    everywhere = set().union(*private.values())
    crossed = [
        f"{name}:{node.lineno} {node.attr}"
        for name, tree in modules.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in everywhere - private[name]
    ]
    assert not crossed


def defined(tree: ast.Module) -> set[str]:
    """Names of the functions and methods of a module."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
