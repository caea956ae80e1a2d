"""The hash of (seed, feature): published values of splitmix64, and the frozen table."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamkm.kernels.intrinsics import hashing
from streamkm.kernels.sketch.bucket_sums import sketch_csr
from streamkm.sketches import CountSketch
from tests import naive
from tests.tables import cases

# The first outputs for the seed 1234567, as several reference implementations publish them.
PUBLISHED = (
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
)

# (seed, feature, m, bucket, sign). A file format: models and stores that were written hold sketches made by it.
GOLDEN = (
    (0, 0, 512, 452, 1),
    (0, 1, 512, 220, -1),
    (0, 2**63 - 1, 512, 75, -1),
    (1, 1000, 2048, 955, -1),
    (1, 2**32 + 1, 2048, 941, 1),
    (42, 0, 7, 5, 1),
    (42, 2, 7, 1, -1),
    (42, 2**32 + 1, 7, 0, -1),
    (2**64 - 1, 1, 2**31, 1959787571, 1),
    (2**64 - 1, 2**31, 2**31, 558604402, 1),
    (2**64 - 1, 2**63 - 1, 2**31, 758388095, 1),
)


def kernel_hash(seed, feature, n_components):
    """Bucket and sign of one feature, by the kernel for sparse rows, which takes any 64-bit index."""
    bucket, value = np.empty(1, np.int32), np.empty(1, np.float32)
    index, one = np.array([feature], np.int64), np.ones(1, np.float32)
    seeds, bounds = np.array([seed], np.uint64), np.array([0, n_components], np.uint64)
    sketch_csr(seeds, bounds, np.float32(1), np.arange(2), index, one, bucket, value)
    return int(bucket[0]), int(value[0])


def priorities(seed, places):
    out = np.empty(len(places), np.int64)
    hashing.hash_places(np.uint64(seed), np.asarray(places, np.int64), out)
    return out


def test_twin_and_kernel_give_the_published_outputs():
    assert tuple(naive.splitmix64(1234567, i) for i in range(5)) == PUBLISHED
    assert priorities(1234567, range(5)).tolist() == [value >> 1 for value in PUBLISHED]
    # with 2^31 components the bucket is the upper 31 bits
    buckets, signs = CountSketch(1 << 31, 1234567).hash(0, 5)
    assert buckets.tolist() == [value >> 33 for value in PUBLISHED]
    assert signs.tolist() == [1.0 if value & 1 else -1.0 for value in PUBLISHED]


@cases("seed, feature, n_components, bucket, sign", GOLDEN)
def test_golden_values(seed, feature, n_components, bucket, sign):
    assert kernel_hash(seed, feature, n_components) == (bucket, sign)
    assert naive.bucket_and_sign(seed, feature, n_components) == (bucket, sign)


@given(
    seed=st.integers(0, 2**64 - 1),
    feature=st.integers(0, 2**63 - 1),
    n_components=st.one_of(st.integers(1, 5000), st.integers(1, 2**31)),
)
def test_kernel_is_the_naive_twin(seed, feature, n_components):
    assert kernel_hash(seed, feature, n_components) == naive.bucket_and_sign(seed, feature, n_components)
    assert priorities(seed, [feature]).tolist() == [naive.splitmix64(seed, feature) >> 1]


@cases("start", [0, 2**31 - 3, 2**32 - 3, 2**53 - 3, 2**63 - 8])
def test_ranges_are_the_single_features(start):
    buckets, signs = CountSketch(1000, 99).hash(start, start + 7)
    wanted = [kernel_hash(99, start + i, 1000) for i in range(7)]
    assert list(zip(buckets.tolist(), signs.tolist(), strict=True)) == wanted
