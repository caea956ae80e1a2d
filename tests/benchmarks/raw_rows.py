"""CSV files of raw results: a row a run, which names its versions, processor, threads, command and commit."""

from __future__ import annotations

import csv
import logging
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tests.benchmarks.measure import ROOT

log = logging.getLogger(__name__)


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV of runs; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def append(path: Path, columns: Sequence[str], rows: Sequence[dict[str, str]]) -> None:
    """Write rows behind those of a file, which is made where there is none."""
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


@lru_cache
def commit(*code: str) -> str:
    """The last commit that changed these paths, with a plus if they were changed since."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words, "--", *code], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    try:
        return git("log", "-1", "--format=%h").strip() + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError) as error:
        log.warning("the commit is written as unknown: %s", error)
        return "unknown"
