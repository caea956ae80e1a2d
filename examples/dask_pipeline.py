"""Scale a Dask array by dask-ml, then cluster it, in one pipeline on a cluster; and the same without dask-ml.

python dask_pipeline.py

`preprocess=["standardize"]` does what the scaler does, as rows are read.
"""

import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from dask_ml.preprocessing import StandardScaler
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline

from streamkm import StreamKMeans


def main() -> None:
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.arange(8)
    rows = (rng.normal(0, 5, (4, 8))[rng.integers(0, 4, 20_000)] + rng.normal(0, 1, (20_000, 8))) * scales
    X = da.from_array(rows, chunks=(2_500, 8))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster):
        pipeline = make_pipeline(StandardScaler(), StreamKMeans(4, random_state=0)).fit(X)
        alone = StreamKMeans(4, preprocess=["standardize"], random_state=0).fit(X)
        labels, labels_alone = pipeline[-1].labels_, alone.labels_  # gathered from the workers, while they are there
    print(f"agreement of both: {adjusted_rand_score(labels, labels_alone):.3f}")
    print(f"cluster sizes {sorted(np.bincount(labels).tolist())}")


if __name__ == "__main__":
    main()
