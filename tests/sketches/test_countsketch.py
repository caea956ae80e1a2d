"""CountSketch and the identity: the contract of sketches, the explicit matrix, golden values, and the statistics."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError, ModelFileError
from streamkm.sketches import CountSketch, IdentitySketch, sketch_from_dict
from tests import naive
from tests.contracts import N_FEATURES, HashedSketchContract, UnboundedSketchContract, whole_numbers
from tests.tables import cases

N_SEEDS = 2000


class TestManyComponents(UnboundedSketchContract):
    """More than features: sparse rows stay sparse at any density."""

    def make_sketch(self):
        return CountSketch(3000, seed=2**64 - 1)


class TestFourBlocks(UnboundedSketchContract):
    def make_sketch(self):
        return CountSketch(16, seed=5, nnz_per_feature=4)


class TestIdentity(HashedSketchContract):
    def make_sketch(self):
        return IdentitySketch(N_FEATURES)

    @pytest.mark.parametrize("sparse", [False, True])
    def test_changes_nothing(self, sketch, sparse):
        X = whole_numbers()
        np.testing.assert_array_equal(naive.dense(sketch.apply(sp.csr_array(X) if sparse else X)), X)

    def test_refuses_wider_rows(self, sketch):
        with pytest.raises(InvalidInputError, match=r"41 features.*40"):
            sketch.apply(np.zeros((2, 41)))


@cases("n_blocks, n_components, density", [(1, 1, 1.0), (1, 64, 0.02), (1, 1000, 0.3), (3, 9, 0.3), (7, 1000, 0.3)])
def test_is_the_explicit_matrix(n_blocks, n_components, density):
    X, seed = whole_numbers(density), 123
    matrix = naive.countsketch_matrix(seed, N_FEATURES, n_components)
    wanted = X @ (matrix if n_blocks == 1 else naive.block_matrix(seed, N_FEATURES, n_components, n_blocks))
    sketch = CountSketch(n_components, seed, n_blocks)
    np.testing.assert_allclose(sketch.apply(X), wanted, rtol=1e-13 * (n_blocks > 1), atol=1e-13 * (n_blocks > 1))
    sketched = sketch.apply(sp.csr_array(X))
    assert sp.issparse(sketched) == (n_components == 1000)
    np.testing.assert_allclose(naive.dense(sketched), wanted, rtol=1e-6 * (n_blocks > 1), atol=1e-5 * (n_blocks > 1))
    if sp.issparse(sketched):
        assert (sketched.data.dtype, sketched.indices.dtype) == (np.float32, np.int32)
        np.testing.assert_array_equal(np.diff(sketched.indptr), n_blocks * (X != 0).sum(axis=1))


def test_golden_values():
    # with whole numbers the sketch is exact, so it can be frozen like the hash
    X = np.arange(1, 31).reshape(2, 15)
    one = [[18, -2, -1, 4, 0, -57], [33, -2, -1, 19, 0, -132]]
    four = [[16, 3, -57, 25, -13, 14, 8, -30, 38, -5, -9, 16]]
    for how in (np.asarray, sp.csr_array):
        assert CountSketch(6, seed=7).apply(how(X)).astype(int).tolist() == one
        assert CountSketch(12, seed=7, nnz_per_feature=4).apply(how(2 * X[:1])).astype(int).tolist() == four


def test_models_without_the_field_hold_one_bucket():
    described = {"kind": "countsketch", "n_components": 6, "seed": 7}
    assert sketch_from_dict(described, {}) == CountSketch(6, 7, 1)
    assert CountSketch(6, 7).to_dict() == {**described, "nnz_per_feature": 1}
    assert CountSketch(6, 7, 3).to_dict() == {**described, "nnz_per_feature": 3}


def test_features_up_to_the_largest_index():
    columns = np.array([0, 2**31, 2**40, 2**63 - 2], np.int64)
    X = sp.csr_array((np.array([1.0, 2.0, 4.0, 8.0]), columns, np.array([0, 2, 4])), shape=(2, 2**63 - 1))
    wanted = np.zeros((2, 64))
    for row, column, value in zip((0, 0, 1, 1), columns, X.data, strict=True):
        bucket, sign = naive.bucket_and_sign(9, int(column), 64)
        wanted[row, bucket] += sign * value
    np.testing.assert_array_equal(naive.dense(CountSketch(64, 9).apply(X)), wanted)


@cases("n_components, n_blocks", [(4, 1), (64, 4)])
def test_inner_products_are_unbiased_with_the_known_variance(n_components, n_blocks):
    rng = np.random.default_rng(1)
    x = rng.normal(size=60)
    y = 0.5 * x + rng.normal(size=60)
    both = np.stack([x, y])
    sketched = [CountSketch(n_components, seed, n_blocks).apply(both) for seed in range(N_SEEDS)]
    got = np.array([first @ second for first, second in sketched])
    # exact for fully independent hashes; at most 2 / m |x|^2 |y|^2
    variance = ((x @ x) * (y @ y) + (x @ y) ** 2 - 2 * (x**2 @ y**2)) / n_components
    assert variance <= 2 / n_components * (x @ x) * (y @ y)
    assert abs(got.mean() - x @ y) < 4 * np.sqrt(variance / N_SEEDS)
    assert 0.85 < got.var() / variance < 1.15


@cases(
    "given, message",
    [
        ((0, 0), "n_components=0; needed: 1 to"),
        ((2**31 + 1, 0), "n_components=2147483649; needed: 1 to"),
        ((4, -1), "seed"),
        ((4, 2**64), "seed"),
        ((64, 0, 0), "nnz_per_feature=0 with n_components=64"),
        ((100, 0, 65), "nnz_per_feature=65 with n_components=100"),
        ((3, 0, 4), "nnz_per_feature=4 with n_components=3"),
    ],
)
def test_refuses_parameters_out_of_range(given, message):
    with pytest.raises(InvalidParameterError, match=message):
        CountSketch(*given)


@cases("described", [{"kind": "tensorsketch", "n_components": 3}, {"n_components": 3}, {}])
def test_unknown_kinds_are_refused(described):
    with pytest.raises(ModelFileError, match="countsketch"):
        sketch_from_dict(described, {})


@pytest.mark.parametrize("nnz_per_feature", [1, 2])
def test_a_sketch_shares_nothing_with_its_rows_and_reads_no_entry_behind_them(nnz_per_feature):
    X = sp.random_array((40, 300), density=0.1, format="csr", rng=np.random.default_rng(0))
    sketch = CountSketch(500, seed=3, nnz_per_feature=nnz_per_feature)
    expected = sketch.apply(X).toarray()
    found = sketch.apply(X)
    for name in ("data", "indices", "indptr"):
        assert not np.shares_memory(getattr(found, name), getattr(X, name))
    found.sum_duplicates()
    longer = X.copy()
    longer.data, longer.indices = np.append(X.data, [9.0] * 50), np.append(X.indices, [7] * 50).astype(X.indices.dtype)
    np.testing.assert_array_equal(sketch.apply(longer).toarray(), expected)
