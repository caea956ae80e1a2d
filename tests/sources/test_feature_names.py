"""Names of features: the indices of svmlight text, and names that a user gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from tests.cli.test_cli import run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two groups of rows that features 1 and 4 of five tell apart, as svmlight text of both bases and as .npy."""
    monkeypatch.chdir(tmp_path)
    X = np.zeros((60, 5))
    X[::2, 1], X[1::2, 4], X[:, 0] = 3, np.linspace(2, 3, 30), np.linspace(0.1, 0.2, 60)
    dump_svmlight_file(X, np.zeros(60), "one.svm", zero_based=False)
    dump_svmlight_file(X, np.zeros(60), "zero.svm", zero_based=True)
    np.save("x.npy", X)
    return X


@pytest.mark.parametrize(("name", "first"), [("one.svm", 1), ("zero.svm", 0), ("x.npy", 0)])
def test_features_are_called_as_the_file_calls_them(folder, name, first):
    kmeans = StreamKMeans(2, random_state=0, progress=False).fit(name)
    kmeans.save("model.npz")
    wanted = {f"x{1 + first}", f"x{4 + first}"}
    for each in (kmeans, StreamKMeans.load("model.npz")):
        text = str(each.summary(n_traits=2))
        assert set(re.findall(r"x\d", text)) == wanted
    rows = str(kmeans.summary(rows=name))
    assert f"x{1 + first}=3" in rows or f"x{4 + first}=3" in rows or name == "x.npy"


@pytest.mark.parametrize("name", ["one.svm", "x.npy", "array", "sparse"])
def test_names_are_given_as_a_list_or_a_file(folder, name):
    X = {"array": folder, "sparse": sp.csr_array(folder)}.get(name, name)
    Path("names.txt").write_text("zero\none\ntwo\nthree\nfour\n")
    for names in (["zero", "one", "two", "three", "four"], "names.txt", Path("names.txt")):
        source = open_source(X, feature_names=names)
        kmeans = StreamKMeans(2, random_state=0, progress=False).fit(source)
        assert kmeans.feature_names_in_.tolist() == ["zero", "one", "two", "three", "four"]
    assert "one" in str(kmeans.summary())


def test_a_wrong_number_of_names_is_refused_with_both(folder):
    with pytest.raises(InvalidParameterError, match=r"gives 2 names, and x\.npy has 5 features"):
        open_source("x.npy", feature_names=["a", "b"])
    source = open_source("one.svm", feature_names=["a", "b", "c"])
    with pytest.raises(InvalidInputError, match="an index beyond 3"):
        StreamKMeans(2, progress=False).fit(source)


def test_the_command_line_and_the_configuration_take_a_file_of_names(folder):
    Path("below").mkdir()
    Path("below/names.txt").write_text("zero\none\ntwo\nthree\nfour\n")
    Path("below/c.yaml").write_text(
        "data:\n  path: ../one.svm\n  feature_names: names.txt\nestimator: {n_clusters: 2}\n"
    )
    for given in (("one.svm", "-k", 2, "--feature-names", "below/names.txt"), ("below/c.yaml",)):
        run("fit", *given, "-o", "out", "--no-report", "--overwrite")
        model = StreamKMeans.load("out/model.npz")
        assert model.feature_names_in_.tolist() == ["zero", "one", "two", "three", "four"]
