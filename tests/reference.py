"""The guide and the reference of the API as HTML pages: ``python -m tests.reference [FOLDER]``.

The reference is made of the docstrings, in a folder of its own; `tests.guide` makes the guide.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pdoc
import scipy.sparse as sp
from sklearn.base import BaseEstimator

import streamkm
from tests import guide

MODULES = (
    "streamkm",
    "streamkm.sketches",
    "streamkm.metrics",
    "streamkm.sources",
    "streamkm.text",
    "streamkm.preparation",
)


def build(folder: Path) -> list[str]:
    """Write the pages; give the names of the modules."""
    for name in streamkm.__all__:  # they are imported when they are first asked for
        getattr(streamkm, name)
    for name, module in list(sys.modules.items()):
        if name.startswith("streamkm"):
            vars(module).setdefault("sp", sp)  # which the annotation `Matrix` names, wherever it stands
    pdoc.render.configure(docformat="numpy", template_directory=guide.SITE / "reference")
    pdoc.render.env.globals["code_colours"] = guide.code_colours(".pdoc-code")
    for name in MODULES:
        complete(pdoc.doc.Module.from_name(name))
    pdoc.pdoc(*MODULES, output_directory=folder / "reference")
    guide.build(folder, with_reference=True)
    return list(MODULES)


def complete(module: pdoc.doc.Module) -> None:
    """Put `StreamKMeans` first in a module, then other estimators; on the page of each class also what it inherits."""
    members = sorted(
        module.members.items(), key=lambda item: (item[0] != "StreamKMeans", not is_estimator(item[1].obj))
    )
    module.members.clear()
    module.members.update(members)
    for member in module.members.values():
        member.docstring = as_text(member.docstring)
        if isinstance(member, pdoc.doc.Class):
            member.own_members = list(member.members.values())  # pdoc's own are those of documented bases alone
            for part in member.own_members:
                part.docstring = as_text(part.docstring)


def is_estimator(value: object) -> bool:
    """Whether a value is a class of estimators."""
    return isinstance(value, type) and issubclass(value, BaseEstimator)


def as_text(docstring: str) -> str:
    """A docstring in which ``<x, y>`` is no HTML tag; what stands in backquotes is code already."""
    parts = re.split(r"(``.+?``|`[^`\n]+`)", docstring)
    return "".join(part if part.startswith("`") else re.sub(r"<(?=[A-Za-z/])", "&lt;", part) for part in parts)


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "out/site"))
