"""Sizes of the package that its layout aims at, counted in its syntax trees: ``python -m tests.house [--where]``.

A report, not a test: a number tells where to look. ``--where`` adds the lines behind the last four counts.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "streamkm"
MOST_MODULES, MOST_LINES = 12, 300
OTHER_WORDS = {"kernel"}  # names of sketches that mean other things elsewhere; and a `method` is a kernel's
Trees = dict[str, ast.Module]
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(text: str) -> int:
    """Lines with code: neither blank nor comments nor docstrings."""
    lines: set[int] = set()
    starts_statement = True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE and not (token.type == tokenize.STRING and starts_statement):
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            starts_statement = token.type in NO_CODE
    return len(lines)


def names_in(node: ast.AST) -> set[str]:
    """Names and attributes that an expression mentions."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def classes(trees: Trees) -> dict[str, ast.ClassDef]:
    """All classes by name."""
    return {node.name: node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def fields(node: ast.ClassDef) -> dict[str, ast.AnnAssign]:
    """What a class body annotates, class variables among them."""
    return {each.target.id: each for each in node.body if isinstance(each, ast.AnnAssign)}  # type: ignore[union-attr]


def sketch_kinds(trees: Trees) -> dict[str, str]:
    """Sketch classes and the names that users give them."""
    kinds = {}
    for name, node in classes({at: tree for at, tree in trees.items() if at.startswith("sketches/")}).items():
        value = getattr(fields(node).get("kind"), "value", None)
        if isinstance(value, ast.Constant):
            kinds[name] = value.value
    return kinds


def source_classes(trees: Trees) -> set[str]:
    """`RowSource` and all classes that inherit it."""
    found, known = {"RowSource"}, classes(trees)
    while more := {name for name, node in known.items() if name not in found and found & bases(node)}:
        found |= more
    return found


def bases(node: ast.ClassDef) -> set[str]:
    """Names of the classes that a class inherits."""
    return {name for base in node.bases for name in names_in(base)}


def calls_isinstance(node: ast.AST, of: set[str]) -> bool:
    """Whether an expression asks if something is one of these classes."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
    return called and bool(names_in(node.args[1]) & of)  # type: ignore[attr-defined]


def asks_for_sketch(node: ast.AST, kinds: dict[str, str]) -> bool:
    """Whether a node asks for a sketch's class, or compares a name with a sketch's."""
    if isinstance(node, ast.Attribute) and node.attr == "kind":
        return isinstance(node.value, ast.Name) and node.value.id in kinds
    if isinstance(node, ast.Compare):
        constants = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
        return bool(constants & set(kinds.values()) - OTHER_WORDS) and "method" not in names_in(node)
    return calls_isinstance(node, set(kinds))


def asks_for_source(node: ast.AST, names: set[str]) -> bool:
    """Whether a node asks for a source's class."""
    return calls_isinstance(node, names)


def anonymous_tuples(tree: ast.Module) -> Iterator[ast.arg]:
    """Parameters that are tuples of a fixed number of things, but shapes and ranges."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            for each in ast.walk(node.annotation):
                if isinstance(each, ast.Subscript) and ast.unparse(each.value) == "tuple":
                    members = ast.unparse(each.slice)
                    if "..." not in members and set(members.split(", ")) != {"int"}:
                        yield node
                        break


def touches_private(node: ast.AST) -> bool:
    """Whether a node takes a private name of another package, or of an object that is not its own."""
    if isinstance(node, ast.ImportFrom):
        foreign = not (node.module or "").startswith("streamkm") and node.module != "__future__"
        private = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        return foreign and any(name.startswith("_") for name in private)
    if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
        return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    return False


def lines_where(trees: Trees, asked, outside: str) -> list[str]:
    """Lines outside a package of ours that a question is asked in."""
    found = {(at, node.lineno) for at, tree in trees.items() for node in ast.walk(tree) if asked(node)}
    return [f"{at}:{line}" for at, line in sorted(found) if not at.startswith(outside)]


def main() -> None:
    """Print the table."""
    texts = {str(path.relative_to(PACKAGE)): path.read_text("utf8") for path in sorted(PACKAGE.rglob("*.py"))}
    trees = {at: ast.parse(text) for at, text in texts.items()}
    folders = Counter(str(Path(at).parent) for at in texts if not at.endswith("__init__.py"))
    data = [node for node in classes(trees).values() if any("dataclass" in names_in(d) for d in node.decorator_list)]
    sizes = {node.name: sum("ClassVar" not in ast.unparse(each) for each in fields(node).values()) for node in data}
    largest = max(sizes.keys() - {"Plan"}, key=lambda name: (sizes[name], name))
    kinds, sources = sketch_kinds(trees), source_classes(trees)
    private = {at for at, tree in trees.items() if any(touches_private(node) for node in ast.walk(tree))}
    lines = {
        "lines that ask for a sketch's class or name": lines_where(
            trees, lambda node: asks_for_sketch(node, kinds), "sketches/"
        ),
        "lines that ask for a source's class": lines_where(
            trees, lambda node: asks_for_source(node, sources), "sources/"
        ),
        "anonymous tuple parameters": [
            f"{at}:{arg.lineno} {arg.arg}" for at, tree in trees.items() for arg in anonymous_tuples(tree)
        ],
        "modules that touch private names": sorted(private),
    }
    table = {
        "lines": sum(len(text.splitlines()) for text in texts.values()),
        "lines of code": sum(code_lines(text) for text in texts.values()),
        "modules": len(texts),
        f"folders above {MOST_MODULES} modules": sum(count > MOST_MODULES for count in folders.values()),
        f"modules above {MOST_LINES} lines": sum(len(text.splitlines()) > MOST_LINES for text in texts.values()),
        "fields of Plan": sizes["Plan"],
        f"fields of the largest other dataclass, {largest}": sizes[largest],
        **{what: len(found) for what, found in lines.items()},
    }
    for what, count in table.items():
        print(f"{count:8,}  {what}", *(lines.get(what, ()) if "--where" in sys.argv else ()), sep="\n" + 10 * " ")


if __name__ == "__main__":
    main()
