"""Importing streamkm is cheap, and every public name is there."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import streamkm
from tests.tables import cases

HEAVY = ("numba", "sklearn", "dask", "distributed", "scipy", "h5py", "zarr", "matplotlib", "yaml", "pydantic", "rich")


def modules_after(code: str) -> set[str]:
    """Top-level packages that a fresh process has imported after some code."""
    code += "; import sys, json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_import_is_cheap():
    assert not modules_after("import streamkm; streamkm.__version__; dir(streamkm)").intersection(HEAVY)


def test_sources_are_cheap_to_import():
    assert not modules_after("import streamkm.sources").intersection(HEAVY)


def test_commands_import_little(tmp_path):
    """Neither pandas, nor what of SciPy scikit-learn's metrics need; what is left out works when it is asked for."""
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
import pandas, scipy.stats
from sklearn.utils.fixes import _mode
print(scipy.stats.mode([1, 2, 2]).mode, int(_mode([1, 2, 2])[0][0]), pandas.DataFrame({"a": [1]}).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["[]", "2 2 (1, 1)"]


def test_estimators_import_neither_optional_packages_nor_statistics():
    """scikit-learn's base classes ask for SciPy's: they get them, and so does everybody else, once they are called."""
    code = """
import sys, scipy
from streamkm import StreamKMeans, open_source
optional = {"distributed", "h5py", "zarr", "matplotlib", "pydantic", "rich", "anndata"}
print(sorted(optional.intersection(name.split(".")[0] for name in sys.modules)))
print([name for name in sys.modules if name.startswith("scipy.stats")], "stats" in vars(scipy))
from sklearn.utils.fixes import _mode
print(int(_mode([1, 2, 2])[0][0]))
import scipy.stats
print(type(scipy.stats).__name__, scipy.stats is sys.modules["scipy.stats"], scipy.stats.mode([1, 2, 2]).mode)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", "[] False", "2", "module True 2"]


def test_deferred_modules_that_are_used_stay():
    code = """
import sys
from streamkm.core.deferral import deferred
with deferred("xml", "dom"):
    import xml.dom
    before = type(xml.dom).__name__
    xml.dom.Node
print(before, type(xml.dom).__name__, sys.modules["xml.dom"] is xml.dom)
with deferred("xml", "dom"):
    import xml.dom
print(sys.modules["xml.dom"] is xml.dom)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["_LazyModule module True", "True"]


@cases("name", streamkm.__all__)
def test_public_names_resolve(name):
    assert getattr(streamkm, name) is not None
    assert name in dir(streamkm)


def test_public_names_are_those_of_the_types():
    from streamkm.core.exceptions import StreamkmError
    from streamkm.estimators.kmeans import StreamKMeans

    assert streamkm.StreamKMeans is StreamKMeans
    assert streamkm.StreamkmError is StreamkmError
    assert set(streamkm._HOMES) == set(streamkm.__all__) - {"__version__"}


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'KMeans'"):
        streamkm.KMeans  # noqa: B018
