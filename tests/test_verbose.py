"""`verbose`, as of scikit-learn's estimators: a line for each stage that is done."""

from __future__ import annotations

import numpy as np
import pytest

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.core.exceptions import InvalidParameterError

X = np.random.default_rng(0).normal(size=(300, 4))


@pytest.mark.parametrize("make", [StreamKMeans, StreamKernelKMeans])
def test_stages_are_told(capsys, make):
    for verbose, told in ((0, False), (False, False), (True, True), (2, True)):
        kmeans = make(3, verbose=verbose, random_state=0).fit(X)
        kmeans.predict(X)
        said = capsys.readouterr()
        assert not said.out
        stages = [
            line.split(":")[0] for line in said.err.splitlines() if not line.startswith("compiling kernels, once")
        ]
        assert stages == ([*(stage.name for stage in kmeans.stages_), "predict"] if told else [])
    for wrong in (-1, "yes", None):
        with pytest.raises(InvalidParameterError, match="verbose="):
            make(3, verbose=wrong).fit(X)
