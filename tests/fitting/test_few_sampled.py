"""Clusters of heavy-tailed rows at the smallest limit, which leaves few of them to search on."""

import numpy as np
import pytest

from streamkm import StreamKMeans, open_source
from streamkm.core.exceptions import MemoryLimitError
from streamkm.core.memory import with_process_memory

K, PROCESS = 23, 256 << 20


@pytest.fixture(scope="module")
def heavy(tmp_path_factory):
    """Groups of very different sizes, of rare flags and of log-normal values; one row in 200 is far away."""
    rng = np.random.default_rng(2)
    n_rows, width = 60_000, 10
    sizes = np.arange(1, K + 1) ** -2.5
    groups = rng.choice(K, n_rows, p=sizes / sizes.sum())
    chances = np.exp(rng.uniform(np.log(1e-4), np.log(0.9), (K, width))) * (rng.random((K, width)) < 0.4)
    flags = rng.random((n_rows, width)) < chances[groups]
    means, spread = rng.normal(0, 2, (K, width)), rng.uniform(0, 1.5, (K, width))
    values = np.exp(means[groups] + spread[groups] * rng.standard_normal((n_rows, width)))
    far = rng.random(n_rows) < 0.005
    values[far] *= np.exp(rng.uniform(0, 4, (far.sum(), 1)))
    X = np.hstack([flags, values])
    X = X[:, X.std(axis=0) > 0]
    path = tmp_path_factory.mktemp("heavy") / "x.npy"
    np.save(path, ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32))
    return str(path)


def smallest_limit(path):
    with pytest.raises(MemoryLimitError) as refused:
        StreamKMeans(K, memory_limit=with_process_memory(1, PROCESS)).plan_for(open_source(path))
    return with_process_memory(refused.value.needed_bytes, PROCESS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_groups_that_a_small_sample_missed_are_found_at_the_smallest_limit(heavy, seed):
    free = StreamKMeans(K, random_state=seed, executor=2).fit(heavy)
    small = StreamKMeans(K, random_state=seed, executor=2, memory_limit=smallest_limit(heavy)).fit(heavy)
    assert small.plan_.few_sampled
    assert small.inertia_ <= 1.01 * free.inertia_
