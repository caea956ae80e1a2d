"""Which estimator a model file is of."""

import json

import numpy as np
import pytest

from streamkm import IncrementalKMeans, StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import ModelFileError
from streamkm.estimators.model_files import load_estimator

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)


class Derived(StreamKMeans):
    """Has no line in the registry: its files are read as what it is derived from."""


def rewritten(path, change):
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    header = json.loads(str(arrays["header"]))
    change(header)
    np.savez(path, **{**arrays, "header": np.array(json.dumps(header))})
    return path


def test_streams_are_of_their_estimator(tmp_path):
    IncrementalKMeans(2, random_state=0, progress=False).fit(X).save(tmp_path / "m.npz")
    loaded = load_estimator(tmp_path / "m.npz")
    assert type(loaded) is IncrementalKMeans
    assert loaded.partial_fit(X).n_samples_seen_ == 120


def test_files_name_their_estimator(tmp_path):
    for made, wanted in ((StreamKMeans, StreamKMeans), (Derived, StreamKMeans), (StreamKernelKMeans,) * 2):
        fitted = made(2, random_state=0, progress=False).fit(X)
        path = tmp_path / f"{made.__name__}.npz"
        fitted.save(path)
        loaded = load_estimator(path)
        assert type(loaded) is wanted
        np.testing.assert_array_equal(loaded.predict(X), fitted.labels_, err_msg=made.__name__)
        with pytest.raises(ModelFileError, match=r"saved by 'MeanShift'; this release loads models of StreamKM"):
            load_estimator(rewritten(path, lambda header: header["fit"].update(estimator="MeanShift")))
        with pytest.raises(ModelFileError, match=r"fit\.estimator is 3; needed: str"):
            load_estimator(rewritten(path, lambda header: header["fit"].update(estimator=3)))
