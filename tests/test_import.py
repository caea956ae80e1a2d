"""Importing streamkm is cheap, and every public name is there."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import sklearn
from packaging.version import Version

import streamkm

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
