"""What pyproject.toml and the README promise; importing streamkm is cheap, and every public name is there."""

from __future__ import annotations

import importlib
import io
import json
import re
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import sklearn
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import streamkm
from tests.tables import cases

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["project"]
TOOLS = {"ruff", "mypy", "import-linter", "types-PyYAML", "streamkm"}
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("plot", "anndata", "zstd", "hdf5plugin", "text", "dev")


def requirements() -> list[Requirement]:
    texts = [*PROJECT["dependencies"], *(text for extra in EXTRAS for text in PROJECT["optional-dependencies"][extra])]
    return [requirement for requirement in map(Requirement, texts) if requirement.name not in TOOLS]


@pytest.fixture(scope="module")
def pinned() -> dict[str, Version]:
    lines = (TOP / ".ci" / "floors.txt").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {name: Version(version) for name, version in pairs}


@cases("requirement", requirements())
def test_floor_is_the_version_that_ci_installs(requirement, pinned):
    (specifier,) = requirement.specifier
    assert specifier.operator == ">="
    assert pinned[requirement.name] == Version(specifier.version)


@cases("python", PYTHONS)
def test_the_readme_installs_one_tested_set_of_versions(python):
    commands = [line for line in (TOP / "README.md").read_text("utf-8").splitlines() if "-m venv" in line]
    assert len(commands) == 2
    assert all("pip install -q -c constraints.txt " in command for command in commands)
    lines = (TOP / "constraints.txt").read_text("utf-8").splitlines()
    listed = [Requirement(line) for line in lines if not line.startswith("#")]
    here = {"python_version": python}
    found = {one.name: one.specifier for one in listed if one.marker is None or one.marker.evaluate(here)}
    assert len(found) == sum(one.marker is None or one.marker.evaluate(here) for one in listed)
    for requirement in requirements():
        (version,) = found[requirement.name.lower()]
        assert requirement.specifier.contains(version.version), requirement.name


def test_the_version_is_written_once_and_the_citation_names_the_project():
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    settings = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))
    text = (TOP / settings["tool"]["hatch"]["version"]["path"]).read_text("utf-8")
    assert f'__version__ = "{streamkm.__version__}"' in text
    citation = yaml.safe_load((TOP / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["authors"] == PROJECT["authors"]  # an entity, no person
    assert citation["license"] == PROJECT["license"]
    assert citation["version"] == streamkm.__version__
    changes = (TOP / "CHANGELOG.md").read_text("utf-8")
    assert f"## {streamkm.__version__} ({citation['date-released']})" in changes
    assert len(changes.splitlines()) <= 40
    assert max(map(len, changes.splitlines())) <= 120


def test_a_release_has_all_that_its_tests_read_and_no_large_file():
    settings = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]
    included = [TOP / place.lstrip("/") for place in settings["sdist"]["include"]]
    assert all(path.exists() for path in included)
    # these are in every sdist without being named
    always = {TOP / name for name in ("README.md", "LICENSE", "pyproject.toml", ".gitignore")}
    assert {path for path in TOP.iterdir() if path.suffix in (".md", ".cff", ".txt", ".yaml")} <= {*included, *always}
    assert TOP / ".ci" / "floors.txt" in included
    files = [file for path in included for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    kept = [file for file in files if "__pycache__" not in file.parts]
    assert max(file.stat().st_size for file in kept) < 1_000_000
    assert {file.suffix for file in (TOP / "streamkm").rglob("*") if file.is_file() and file in kept} <= {
        ".py", ".md", ".typed", ".jinja", ".js",
    }  # fmt: skip


def test_python_has_no_upper_limit_and_each_named_version_is_tested():
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    named = [text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)]
    assert named == list(PYTHONS)


def test_the_quickstart_prints_what_the_readme_says(monkeypatch, tmp_path):
    """The README's Python as it stands, in a copy of what a clone has."""
    text = (TOP / "README.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (tmp_path / "examples").symlink_to(TOP / "examples")
    monkeypatch.chdir(tmp_path)
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    said = re.findall(r"print\(.*?\)  # (\[.*?\]|[\d.]+)", code)
    assert printed.getvalue().splitlines()[: len(said)] == said
    assert "set apart by" in printed.getvalue()
    assert (tmp_path / "digits.npz").exists()


def test_the_readme_is_one_screen_and_its_links_lead_somewhere():
    places = ("README.md", "examples/README.md", "streamkm/README.md", "CONTRIBUTING.md", "tests/benchmarks/README.md")
    pages = [TOP / place for place in places]
    assert len(pages[0].read_text("utf-8").splitlines()) <= 80
    for page in pages:
        for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text("utf-8")):
            place, _, anchor = link.partition("#")
            target = page.parent / place if place else page
            assert target.exists(), f"{page}: {link}"
            if anchor:
                heads = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M)
                assert anchor in [head.lower().replace(" ", "-") for head in heads], f"{page}: {link}"


@pytest.mark.parametrize("name", ["bench_curves", "bench_bounded"])
def test_each_chart_is_drawn_from_results_that_are_here(name, tmp_path):
    pytest.importorskip("matplotlib")
    benchmark = importlib.import_module(f"tests.benchmarks.{name}")
    rows = benchmark.read(benchmark.RESULTS)
    assert {tuple(row) for row in rows} == {benchmark.COLUMNS}
    benchmark.draw(rows, tmp_path / "drawn.svg")
    kept, drawn = (
        re.findall("<!-- (.+) -->|<text[^>]*>(.+)</text>", path.read_text("utf-8"))
        for path in (benchmark.PICTURE, tmp_path / "drawn.svg")
    )
    assert kept == drawn
    assert len(kept) > len({row["method"] for row in rows})


HEAVY = ("numba", "sklearn", "dask", "distributed", "scipy", "h5py", "zarr", "matplotlib", "yaml", "pydantic", "rich")

USED_AT_ONCE = Version(sklearn.__version__) < Version("1.7")
"""Earlier versions look at pandas' version as they are imported, and SciPy of their time at its special functions."""


def modules_after(code: str) -> set[str]:
    """Top-level packages that a fresh process has imported after some code."""
    code += "; import sys, json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_import_is_cheap():
    code = "import streamkm; streamkm.__version__; dir(streamkm); import streamkm.sources"
    assert not modules_after(code).intersection(HEAVY)


@pytest.mark.slow
def test_commands_import_little(tmp_path):
    """Neither pandas, nor what of SciPy scikit-learn's metrics need."""
    import pandas as pd

    table = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    table.to_csv(tmp_path / "x.csv", index=False)
    table.to_parquet(tmp_path / "x.parquet")
    code = """
import sys
from streamkm.cli.main import main
for name in ("x.csv", "x.parquet"):
    main(["fit", name, "-k", "2", "-q", "--no-report", "-o", name + ".out"], standalone_mode=False)
print(sorted({"pandas", "scipy.stats._stats_py", "sklearn.metrics", "distributed"}.intersection(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[]\n" or USED_AT_ONCE


def test_estimators_import_little():
    """No optional package, and what scikit-learn's base classes ask for once it is used, as everybody else gets it."""
    code = """
import sys, numpy, scipy
from streamkm import StreamKMeans, open_source
optional = {"distributed", "h5py", "zarr", "matplotlib", "pydantic", "rich", "anndata"}
print(sorted(optional.intersection(sys.modules)))
left = ("pandas", "scipy.stats", "scipy.special", "numpy.f2py", "numpy.testing")
print([name for name in sys.modules if name.startswith(left)])
print(StreamKMeans(2, random_state=0).fit_predict([[0.0], [1.0], [9.0]]).tolist())
from sklearn.utils.fixes import _mode, pd as kept
from sklearn.utils import _array_api
print(int(_mode([1, 2, 2])[0][0]), float(_array_api.special.expit(0.0)))
import numpy.testing, pandas, scipy.special, scipy.stats
print(type(scipy.stats).__name__, scipy.stats is sys.modules["scipy.stats"], scipy.stats.mode([1, 2, 2]).mode)
print(type(pandas).__name__, kept.DataFrame is pandas.DataFrame, numpy.testing.assert_equal(1, 1))
print(_array_api.special.expit is scipy.special.expit, numpy.testing is sys.modules["numpy.testing"])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    optional, left, *used = done.stdout.splitlines()
    assert optional == "[]"
    assert left == "[]" or USED_AT_ONCE
    assert used == ["[0, 0, 1]", "2 0.5", "module True 2", "module True None", "True True"]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["pandas", "scipy.stats", "numpy.testing"])
def test_what_was_imported_before_stays(first):
    code = f"""
import sys, {first}
before = sys.modules["{first}"]
from streamkm import StreamKMeans
print(sys.modules["{first}"] is before, type(before).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["True module"]


def test_deferred_modules_that_are_used_stay():
    code = """
import sys
from streamkm.core.process import deferred
with deferred("xml.dom", "no_such_module"):
    import xml.dom
    before, node = type(xml.dom).__name__, xml.dom.Node
    try:
        import no_such_module
    except ModuleNotFoundError as error:
        print(error)
print(before, type(xml.dom).__name__, sys.modules["xml.dom"] is xml.dom, node is xml.dom.Node)
with deferred("xml.dom", "json"):
    import xml.dom
    import json as kept
    from json import dumps
print(sys.modules["xml.dom"] is xml.dom, sys.modules["json"].dumps is kept.dumps is dumps)
with deferred("wave"):
    import wave
print("wave" in sys.modules, len(sys.meta_path))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    wanted = ["No module named 'no_such_module'", "_StandIn module True True", "True True", "False"]
    said = done.stdout.splitlines()
    assert [*said[:-1], said[-1].split()[0]] == wanted


def test_public_names_are_there_and_others_are_refused():
    from streamkm.core.exceptions import StreamkmError
    from streamkm.estimators.kmeans import StreamKMeans

    assert all(getattr(streamkm, name) is not None for name in streamkm.__all__)
    assert set(streamkm.__all__) <= set(dir(streamkm))
    assert streamkm.StreamKMeans is StreamKMeans
    assert streamkm.StreamkmError is StreamkmError
    assert set(streamkm._HOMES) == set(streamkm.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'KMeans'"):
        streamkm.KMeans  # noqa: B018
