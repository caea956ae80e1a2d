"""What pyproject.toml promises about versions."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
TOOLS = {"ruff", "mypy", "import-linter", "types-PyYAML", "streamkm"}
EXTRAS = ("plot", "anndata", "zstd", "hdf5plugin", "text", "dev")


def requirements() -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra])]
    return [requirement for requirement in map(Requirement, texts) if requirement.name not in TOOLS]


@pytest.fixture(scope="module")
def pinned() -> dict[str, Version]:
    lines = (TOP / ".ci" / "floors.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {name: Version(version) for name, version in pairs}


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_floor_is_the_version_that_ci_installs(requirement, pinned):
    (specifier,) = requirement.specifier
    assert specifier.operator == ">="
    assert pinned[requirement.name] == Version(specifier.version)
