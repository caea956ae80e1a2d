"""Sizes of the package, counted in its syntax trees: ``python -m tests.house [--where | --lower]``.

``--where`` adds the lines behind some counts. ``--lower`` writes counts that fell into `tests/house_budget.toml`, by
which `tests/test_house.py` fails where one grows.
"""

from __future__ import annotations

import ast
import gc
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "streamkm"
BUDGET = Path(__file__).with_name("house_budget.toml")
MOST_MODULES, MOST_LINES = 14, 300
Counts = dict[str, dict[str, int]]
"""Tables of the budget: the name of each count and its figure."""
OTHER_WORDS = {"kernel"}  # names of sketches that mean other things elsewhere; and a `method` is a kernel's
Trees = dict[str, ast.Module]


def code_lines(text: str, tree: ast.Module | None = None) -> int:
    """Lines that are neither blank, comments, imports nor docstrings."""
    left_out: set[int] = set()
    for node in statements(tree or ast.parse(text)):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, node.end_lineno + 1))
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return sum(bool(line) and not line.startswith("#") and number not in left_out for number, line in lines)


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node, at any depth."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, name, ())
        for each in below if isinstance(below, list) else ():
            yield each
            yield from statements(each)


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


def texts() -> dict[str, str]:
    """The text of each module, by its path below the package."""
    return {str(path.relative_to(PACKAGE)): path.read_text("utf8") for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def parsed() -> Trees:
    """The syntax tree of each module, left to no garbage collector, which would look at each node."""
    gc.disable()
    found = {at: ast.parse(text) for at, text in texts().items()}
    gc.freeze()
    gc.enable()
    return found


def count_house() -> Counts:
    """What the budget limits: code lines and modules of each package and in all, and what is to become rare."""
    read, trees = texts(), parsed()
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for at, text in read.items():
        n_lines = code_lines(text, trees[at])
        for name in ("all", at.split("/")[0] if "/" in at else "top"):
            lines[name] += n_lines
            modules[name] += 1
    folders = Counter(str(Path(at).parent) for at in read if not at.endswith("__init__.py"))
    rare = {
        f"modules above {MOST_LINES} lines": sum(len(text.splitlines()) > MOST_LINES for text in read.values()),
        f"folders above {MOST_MODULES} modules": sum(count > MOST_MODULES for count in folders.values()),
        "tuple parameters": sum(1 for tree in trees.values() for _ in anonymous_tuples(tree)),
        "modules that touch private names": len(private_modules(trees)),
    }
    return {"code lines": dict(sorted(lines.items())), "modules": dict(sorted(modules.items())), "rare": rare}


def private_modules(trees: Trees) -> list[str]:
    """Modules that touch private names."""
    return [at for at, tree in trees.items() if any(touches_private(node) for node in ast.walk(tree))]


def read_budget() -> Counts:
    """The figures that no count may exceed."""
    return tomllib.loads(BUDGET.read_text("utf8"))


def over_budget(counts: Counts, budget: Counts) -> list[str]:
    """One sentence for each count above its budget; a count without one has a budget of 0."""
    found = []
    for table, figures in counts.items():
        for name, count in figures.items():
            most = budget.get(table, {}).get(name, 0)
            if count > most:
                what = f"{count:,}" if table == "rare" else f"{count:,} {table}"
                found.append(f"{name}: {what}, {count - most:,} above the budget of {most:,}")
    return found


def lowered(counts: Counts, budget: Counts) -> Counts:
    """The budget, but today's count where that is lower; counts that are 0 now have no line."""
    least = {
        table: {name: min(figures.get(name, 0), most) for name, most in budget[table].items()}
        for table, figures in counts.items()
    }
    return {table: {name: count for name, count in figures.items() if count} for table, figures in least.items()}


def write_budget(budget: Counts) -> None:
    """Write the file of the budget."""
    text = "# What no commit raises; `python -m tests.house --lower` writes what has fallen.\n"
    for table, figures in budget.items():
        text += f'\n["{table}"]\n' + "".join(f'"{name}" = {count}\n' for name, count in figures.items())
    BUDGET.write_text(text, "utf8")


def main() -> None:
    """Print the table, or lower the budget."""
    if "--lower" in sys.argv:
        write_budget(lowered(count_house(), read_budget()))
        return
    read, trees = texts(), parsed()
    data = [node for node in classes(trees).values() if any("dataclass" in names_in(d) for d in node.decorator_list)]
    sizes = {node.name: sum("ClassVar" not in ast.unparse(each) for each in fields(node).values()) for node in data}
    largest = max(sizes.keys() - {"Plan"}, key=lambda name: (sizes[name], name))
    kinds, sources = sketch_kinds(trees), source_classes(trees)
    lines = {
        "lines that ask for a sketch's class or name": lines_where(
            trees, lambda node: asks_for_sketch(node, kinds), "sketches/"
        ),
        "lines that ask for a source's class": lines_where(
            trees, lambda node: asks_for_source(node, sources), "sources/"
        ),
        "tuple parameters": [
            f"{at}:{arg.lineno} {arg.arg}" for at, tree in trees.items() for arg in anonymous_tuples(tree)
        ],
        "modules that touch private names": private_modules(trees),
    }
    counts = count_house()
    table = {
        "lines": sum(len(text.splitlines()) for text in read.values()),
        **{f"code lines, {name}": count for name, count in counts["code lines"].items()},
        "modules": counts["modules"]["all"],
        **counts["rare"],
        "fields of Plan": sizes["Plan"],
        f"fields of the largest other dataclass, {largest}": sizes[largest],
        **{what: len(found) for what, found in lines.items()},
    }
    for what, count in table.items():
        print(f"{count:8,}  {what}", *(lines.get(what, ()) if "--where" in sys.argv else ()), sep="\n" + 10 * " ")


if __name__ == "__main__":
    main()
