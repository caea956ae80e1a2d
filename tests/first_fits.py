"""The kernels that first fits and other calls need, by kinds of data: ``python -m tests.first_fits`` writes their list.

Each in a process that has fitted nothing yet.
"""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import scipy.sparse as sp
from numba.core.dispatcher import Dispatcher
from sklearn.datasets import dump_svmlight_file

from streamkm import IncrementalKMeans, StreamKernelKMeans, StreamKMeans, dedupe, sweep
from streamkm.kernels import precompile
from tests.fresh import run_fresh

KINDS = ("dense float32", "dense float64", "sparse float32", "sparse float64")
ROWS, CLUSTERS = 40_000, 50


def rows(kind: str, folder: str) -> Any:
    """Rows of a kind, enough to be clustered as many are; sparse ones of float64 as svmlight text."""
    layout, dtype = kind.split()
    random = np.random.default_rng(0)
    if layout == "dense":
        centers = random.normal(size=(CLUSTERS, 64)) * 3
        return (centers[random.integers(CLUSTERS, size=ROWS)] + random.normal(size=(ROWS, 64))).astype(dtype)
    X = sp.random_array((ROWS // 4, 20_000), density=0.003, format="csr", dtype=np.dtype(dtype), rng=random)
    if dtype == "float32":
        return X
    dump_svmlight_file(X, np.zeros(len(X.indptr) - 1), f"{folder}/x.svm", zero_based=False)
    return f"{folder}/x.svm"


def called(kind: str) -> list[tuple[str, str]]:
    """Kernels that a fit of a kind calls in this process, which has fitted nothing yet, with the types, in order."""
    order: list[tuple[str, str]] = []
    compile_one, depth = Dispatcher.compile, [0]

    def noted(self: Any, signature: Any) -> Any:
        if depth[0] == 0 and self.py_func.__module__.startswith("streamkm.kernels."):  # others: called by compiled code
            order.append((precompile.name_of(self.py_func), precompile.text_of(signature)))
        depth[0] += 1
        try:
            return compile_one(self, signature)
        finally:
            depth[0] -= 1

    Dispatcher.compile = noted
    with TemporaryDirectory() as folder:
        if kind == precompile.OTHER_CALLS:
            call_others()
        else:
            StreamKMeans(CLUSTERS, random_state=0, progress=False, executor=2).fit(rows(kind, folder))
    return list(dict.fromkeys(order))


def call_others() -> None:
    """Small fits, and what else is called with rows of the same kinds; in one thread, so that the order is the same."""
    same: Any = {"random_state": 0, "progress": False, "executor": 1}
    random = np.random.default_rng(0)
    for dtype in ("f4", "f8"):
        for X in (
            random.normal(size=(600, 4)).astype(dtype),
            random.normal(size=(600, 64)).astype(dtype),
            sp.random_array((600, 500), density=0.05, format="csr", dtype=np.dtype(dtype), rng=random),
        ):
            for options in ({}, {"metric": "cosine"}, {"preprocess": ["unit"]}):
                kmeans = StreamKMeans(5, **options, **same).fit(X)
            kmeans.predict(X)
            kmeans.transform(X)
            kmeans.score(X)
            StreamKernelKMeans(5, **same).fit(X).predict(X)
            sweep(X, range(2, 6), **same)
            dedupe(X, **same)
            if not sp.issparse(X):
                StreamKMeans(5, preprocess=["standardize"], **same).fit(X)
            IncrementalKMeans(5, random_state=0).partial_fit(X)


CALLED = """
import json, sys

from tests.first_fits import called
print(json.dumps(called(sys.argv[1])))
"""

if __name__ == "__main__":
    lists = {kind: run_fresh(CALLED, [kind]) for kind in (*KINDS, precompile.OTHER_CALLS)}
    text = json.dumps(lists, indent=0).replace('[\n"', '["').replace('",\n"', '", "').replace('"\n]', '"]')
    precompile.LIST.write_text(text + "\n")
