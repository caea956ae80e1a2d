"""Cluster a Zarr array, by path or as an open array, and write the labels beside it.

python zarr_array.py
"""

import tempfile
from pathlib import Path

import numpy as np
import zarr
from sklearn.datasets import load_digits

from streamkm import StreamKMeans


def main() -> None:
    digits, _ = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    digits = rng.poisson(digits[rng.integers(0, len(digits), 40_000)])  # more of them, each a little different
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "digits.zarr"
        array = zarr.create_array(str(store), shape=digits.shape, dtype="uint8", chunks=(4096, 64))
        array[:] = digits.astype(np.uint8)

        kmeans = StreamKMeans(10, random_state=0).fit(store)
        print(f"objective {kmeans.inertia_:,.0f} in {kmeans.n_passes_} passes")

        # the open array is the same source; each further pass is an exact step that lowers the objective a little more
        refined = StreamKMeans(10, refine=2, random_state=0).fit(array)
        gain = kmeans.inertia_ - refined.inertia_
        print(f"objective {refined.inertia_:,.0f} in {refined.n_passes_} passes, {gain:,.0f} lower")

        labels = zarr.create_array(str(Path(folder) / "labels.zarr"), shape=kmeans.labels_.shape, dtype="int32")
        labels[:] = kmeans.labels_
        print(f"cluster sizes {np.bincount(labels[:]).tolist()}")


if __name__ == "__main__":
    main()
