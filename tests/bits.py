"""Bits of small fits and products, for comparison between processors: ``python -m tests.bits`` prints them as JSON.

    python -m tests.bits [fits] [kernels] [wide]

"fits": labels, centers and objectives of fits without LAPACK in their path. "kernels": products and nearest centers.
"wide": vectors of 64 bytes, whatever the processor has.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np
import scipy.sparse as sp


def digest(*arrays):
    """The first digits of a hash of arrays' bytes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def rows(n_rows, n_features, dtype, *, seed=0):
    """Rows of a few groups, the same on any machine: uniform draws and sums of them."""
    rng = np.random.default_rng(seed)
    centers = rng.random((12, n_features)) * 8
    return (centers[rng.integers(0, 12, n_rows)] + rng.random((n_rows, n_features))).astype(dtype)


def kernels():
    """Products, scores and nearest centers."""
    from streamkm.cluster.centers.nearest import NearestCenters
    from streamkm.kernels.intrinsics.panels import Panels

    found = {}
    for dtype in ("f4", "f8"):
        X, centers = rows(300, 150, dtype), rows(70, 150, "f8", seed=1)
        table = NearestCenters.build(centers, dtype)
        found[f"product {dtype}"] = digest(Panels.of(centers.T.astype(dtype)).product(X))
        found[f"nearest {dtype}"] = digest(*table.nearest(X), table.labels(X), table.scores(X))
        sparse = sp.csr_array(np.where(X > 4, X, 0))
        found[f"nearest sparse {dtype}"] = digest(*table.nearest(sparse), table.labels(sparse), table.scores(sparse))
    return found


def fits():
    """Fits of narrow dense rows and of sparse rows."""
    from streamkm import SketchOptions, StreamKMeans

    found = {}
    for name, X, options in (
        ("dense f4", rows(4_000, 16, "f4"), {}),
        ("dense f8", rows(4_000, 16, "f8"), {}),
        ("dense u1", (rows(4_000, 16, "f8") * 20).astype(np.uint8), {"sample_weight": True}),
        ("sparse f4", sp.csr_array(np.where(rows(4_000, 60, "f4") > 6, 1, 0).astype(np.float32)), {}),
        ("sparse f8, cosine", sp.csr_array(np.maximum(rows(4_000, 60, "f8") - 5, 0)), {"metric": "cosine"}),
        ("signs", rows(2_000, 200, "f4"), {"sketch": SketchOptions("signs", 32)}),
    ):
        weights = np.random.default_rng(2).integers(0, 4, X.shape[0]) if options.pop("sample_weight", False) else None
        fit = StreamKMeans(12, random_state=0, progress=False, **options).fit(X, sample_weight=weights)
        found[name] = digest(fit.labels_, fit.model_.centers, np.float64(fit.inertia_))
    return found | {"many f4": many()}


def many():
    """A fit with so many clusters that rows are assigned by an index of them, whose directions are LAPACK's."""
    from streamkm import StreamKMeans

    X = (rows(4_200, 256, "f8") / np.arange(1.0, 257.0)).astype(np.float32)
    fit = StreamKMeans(1100, random_state=0, progress=False, max_iter=5, chunk_bytes=1 << 23).fit(X)
    return digest(fit.labels_, fit.model_.centers, np.float64(fit.inertia_))


def main(names):
    """Write what is asked for."""
    if "wide" in names:
        from streamkm.kernels.intrinsics import forms

        forms.vector_bytes = lambda features: 64
    found = {}
    if "kernels" in names:
        found |= kernels()
    if "fits" in names:
        found |= fits()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
