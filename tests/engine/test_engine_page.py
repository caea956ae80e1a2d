"""The page on what an engine must give: it names every call of the interface, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import streamkm
from streamkm.engine import Executor
from streamkm.engine.dask import DaskCluster

PAGE = Path(streamkm.__file__).parent / "README.md"


def test_the_page_names_the_calls_of_the_interface():
    section = PAGE.read_text("utf-8").partition("## What an engine must give")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    public = {name for name in vars(Executor) if not name.startswith("_")} - {"joins_here", "for_calls"}
    assert public <= named
    assert named <= public | {name for name in vars(DaskCluster) if not name.startswith("_")}
