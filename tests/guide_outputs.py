"""Pictures and notebooks of the guide, made by running its pages: ``python -m tests.guide_outputs``."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.guide import FENCE, GUIDE, blocks, page_names, text_of_page

NOTEBOOKS = ("start", "choosing-k", "text")
SHOWN = re.compile(r"^!\[[^\]]*\]\(([^)]+\.png)\)\n+", re.MULTILINE)


def write_all() -> None:
    """Run the pages that have pictures or notebooks, and write both."""
    home = Path.cwd()
    for name in page_names():
        pictures = SHOWN.findall(text_of_page(name))
        if not pictures and name not in NOTEBOOKS:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            outputs = run(name)
            for picture in pictures:
                shutil.copyfile(picture, GUIDE / picture)
            os.chdir(home)
        if name in NOTEBOOKS:
            text = json.dumps(notebook(name, outputs), indent=1, ensure_ascii=False)
            (GUIDE / f"{name}.ipynb").write_text(f"{text}\n", "utf-8")


def run(name: str) -> list[list[dict[str, Any]]]:
    """Run the Python of a page in this folder; give the outputs of each block."""
    page, outputs = ModuleType("page"), []
    for language, code in blocks(name):
        if language != "python":
            continue
        before = set(Path().glob("*.png"))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, f"{name}.md", "exec"), page.__dict__)
        made = [stream_output(printed.getvalue())] if printed.getvalue() else []
        made += [picture_output(path) for path in sorted(set(Path().glob("*.png")) - before)]
        outputs.append(made)
    return outputs


def stream_output(text: str) -> dict[str, Any]:
    """Printed text as an output of a cell."""
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def picture_output(path: Path) -> dict[str, Any]:
    """A picture as an output of a cell."""
    data = {"image/png": base64.b64encode(path.read_bytes()).decode()}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def cells_of(name: str) -> list[tuple[str, str]]:
    """Kind and source of each cell of a page: its Python is code, pictures come out of it, all else is text."""
    text = text_of_page(name)
    cells, start = [], 0
    for found in FENCE.finditer(text):
        if found[1] == "python":
            cells += [("markdown", text[start : found.start()]), ("code", found[2])]
            start = found.end()
    cells.append(("markdown", text[start:]))
    told = [(kind, (SHOWN.sub("", source) if kind == "markdown" else source).strip()) for kind, source in cells]
    return [(kind, source) for kind, source in told if source]


def notebook(name: str, outputs: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """A notebook (nbformat 4.4) of a page, with the outputs of its code cells in their order."""
    cells: list[dict[str, Any]] = []
    left = iter(outputs)
    for kind, source in cells_of(name):
        cell: dict[str, Any] = {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}
        if kind == "code":
            count = 1 + sum(each["cell_type"] == "code" for each in cells)
            cell |= {"execution_count": count, "outputs": next(left)}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 4}


if __name__ == "__main__":
    write_all()
