"""Numbers of components: the formulas, what is refused, and promises held against all partitions of small matrices."""

from __future__ import annotations

import csv
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import binomtest
from threadpoolctl import threadpool_limits

from streamkm import SketchOptions, StreamKMeans
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.sketches import CountSketch, LeverageSampling, SignProjection, SparseJL
from streamkm.sketches.subspace import Subspace
from streamkm.sketches.theory.bounds import (
    ALL_PARTITIONS,
    BEST_PARTITION,
    EXACT,
    FORMULAS,
    UP_TO_A_CONSTANT,
    eps_of_loss,
    feature_hashing,
    hashing_spread,
    kernel_columns,
    n_components,
    nnz_per_feature,
    nystroem_columns,
    sizing,
    which_sketch,
)
from streamkm.sketches.theory.choices import RATIOS
from tests import naive
from tests.benchmarks import sketch_sizes
from tests.tables import cases

DELTA = 0.1
N_ROWS, N_FEATURES = 7, 300
N_SEEDS = 100
OBLIVIOUS = ("countsketch", "signs", "gaussian", "sparse", "sparse-jl")


def matrices():
    """Rows that are hard for one sketch or another: (7, 300) each."""
    rng = np.random.default_rng(0)
    line = rng.normal(size=N_ROWS)
    pairs = np.repeat(10 * rng.normal(size=(4, N_FEATURES)), 2, axis=0)[:N_ROWS]
    words = 1 / np.arange(1, N_FEATURES + 1)
    return {
        "random": rng.normal(size=(N_ROWS, N_FEATURES)),
        "line": np.outer(line, rng.normal(size=N_FEATURES)),
        "plane": rng.normal(size=(N_ROWS, 2)) @ rng.normal(size=(2, N_FEATURES)),
        "one-feature": np.outer(line, np.eye(N_FEATURES)[5]),
        "feature-each": np.eye(N_ROWS, N_FEATURES),
        "two-features-each": np.kron(np.eye(N_ROWS, N_FEATURES // 2), np.ones(2)),
        "pairs": pairs + 0.01 * rng.normal(size=(N_ROWS, N_FEATURES)),
        "zipf-text": rng.multinomial(60, words / words.sum(), size=N_ROWS).astype(float),
        "heavy": rng.normal(size=(N_ROWS, N_FEATURES)) * np.where(np.arange(N_FEATURES) % 50 == 0, 50.0, 1.0),
    }


def explicit_map(sketch, m, n_clusters, eps, seed):
    """The map as a matrix (300, m), as the papers define it."""
    rng = np.random.default_rng(seed)
    if sketch == "countsketch":
        return CountSketch(m, seed).apply(np.eye(N_FEATURES))
    if sketch == "signs":
        return rng.choice([-1.0, 1.0], (N_FEATURES, m)) / math.sqrt(m)
    if sketch == "gaussian":
        return rng.normal(size=(N_FEATURES, m)) / math.sqrt(m)
    if sketch == "sparse":
        return rng.choice([-1.0, 0.0, 1.0], (N_FEATURES, m), p=[1 / 6, 2 / 3, 1 / 6]) * math.sqrt(3 / m)
    s = nnz_per_feature(n_clusters=n_clusters, eps=eps, delta=DELTA)
    return CountSketch(m, seed, s).apply(np.eye(N_FEATURES))


def costs_as_forms(n_clusters):
    """Matrices Q with cost = trace(X' Q X), one for each partition."""
    forms = []
    for labels in naive.partitions(N_ROWS, n_clusters):
        same = labels[:, None] == labels[None, :]
        forms.append(np.eye(N_ROWS) - same / same.sum(axis=1))
    return np.array(forms)


def test_the_forms_are_the_costs():
    X = matrices()["random"]
    costs = [naive.within(X, labels) for labels in naive.partitions(N_ROWS, 3)]
    np.testing.assert_allclose(np.einsum("pij,ij->p", costs_as_forms(3), X @ X.T), costs)


def shares_of_failures(sketch, m, n_clusters, eps):
    """For each matrix, how many of the maps change the cost of some partition by more than eps."""
    forms, hard = costs_as_forms(n_clusters).reshape(-1, N_ROWS**2), matrices()
    failed = dict.fromkeys(hard, 0)
    wanted = {name: forms @ (X @ X.T).ravel() for name, X in hard.items()}
    with threadpool_limits(1, user_api="blas"):  # products too small to share
        for seed in range(N_SEEDS):
            stacked = np.vstack(list(hard.values())) @ explicit_map(sketch, m, n_clusters, eps, seed)
            for (name, X), Y in zip(hard.items(), np.split(stacked, len(hard)), strict=True):
                got, counted = forms @ (Y @ Y.T).ravel(), wanted[name] > 1e-9 * (X**2).sum()
                failed[name] += bool((np.abs(got[counted] / wanted[name][counted] - 1) > eps).any())
    return {name: count / N_SEEDS for name, count in failed.items()}


def interval(share, n_seeds=N_SEEDS):
    """Where the probability of failing lies, with 95 % confidence (Clopper and Pearson)."""
    found = binomtest(round(share * n_seeds), n_seeds).proportion_ci(0.95, method="exact")
    return found.low, found.high


@cases("n_clusters, eps", [(1, 0.5), (2, 0.5), (3, 0.4), (6, 0.45)])
@cases("sketch", OBLIVIOUS)
def test_costs_of_all_partitions_are_kept(sketch, n_clusters, eps):
    bound = sizing(sketch, n_clusters=n_clusters, eps=eps, delta=DELTA)
    assert (bound.keeps, bound.sketch) == (ALL_PARTITIONS, sketch)
    failed = shares_of_failures(sketch, bound.n_components, n_clusters, eps)
    assert interval(max(failed.values()))[1] < DELTA, failed


def test_a_quarter_of_the_components_is_not_enough():
    # so that the test above can fail
    m = n_components("gaussian", n_clusters=3, eps=0.4) // 4
    assert interval(shares_of_failures("gaussian", m, 3, 0.4)["pairs"])[0] > DELTA


@cases("n_clusters, eps", [(1, 0.5), (2, 0.5), (3, 0.75)])
def test_singular_vectors_keep_all_costs_but_for_a_constant(n_clusters, eps):
    m = n_components("svd", n_clusters=n_clusters, eps=eps)
    forms = costs_as_forms(n_clusters).reshape(-1, N_ROWS**2)
    for name, X in matrices().items():
        u, s, _ = np.linalg.svd(X, full_matrices=False)
        Y = u[:, :m] * s[:m]
        constant = (X**2).sum() - (Y**2).sum()
        wanted, got = (forms @ (rows @ rows.T).ravel() for rows in (X, Y))
        assert (np.abs(got + constant - wanted) <= eps * wanted + 1e-9 * (X**2).sum()).all(), name


@pytest.mark.parametrize(("n_clusters", "eps"), [(2, 0.5), (3, 0.6)])
def test_the_best_partition_by_leverage_costs_at_most_three_plus_eps(n_clusters, eps):
    m = n_components("leverage", n_clusters=n_clusters, eps=eps, delta=DELTA, n_features=N_FEATURES)
    assert m < N_FEATURES
    forms = costs_as_forms(n_clusters).reshape(-1, N_ROWS**2)
    for name, X in matrices().items():
        costs, n_failed = forms @ (X @ X.T).ravel(), 0
        _, s, vt = np.linalg.svd(X, full_matrices=False)
        leading = Subspace(vt[:n_clusters].T, s[:n_clusters] ** 2, None, np.dtype(float))
        for seed in range(N_SEEDS):
            Y = LeverageSampling(m, seed)(leading).apply(X)
            n_failed += costs[(forms @ (Y @ Y.T).ravel()).argmin()] > (3 + eps) * costs.min() + 1e-9 * (X**2).sum()
        assert interval(n_failed / N_SEEDS)[1] < DELTA, name


@pytest.mark.parametrize("k", [5, 20])
def test_the_constant_that_lemma_10_of_boutsidis_needs(k):
    # A_k = A R (V_k' R)^+ V_k' + E with |E| <= 3 eps |A - A_k|, and squared singular values of V_k' R within 1 +- eps
    eps, rng = 0.3, np.random.default_rng(k)
    X = rng.normal(size=(60, k)) @ rng.normal(size=(k, N_FEATURES)) + rng.normal(size=(60, N_FEATURES))
    u, s, vt = np.linalg.svd(X, full_matrices=False)
    best, leading = (u[:, :k] * s[:k]) @ vt[:k], np.ascontiguousarray(vt[:k])
    rest, moved = np.linalg.norm(X - best), {}
    for theorem in ("boutsidis-2015", "boutsidis-2015-lemma-10"):
        bound = sizing("signs", n_clusters=k, eps=eps, theorem=theorem)
        moved[theorem], errors = 0, []
        for seed in range(N_SEEDS):
            sketch = SignProjection(bound.n_components, seed)
            inner = sketch.apply(leading)
            moved[theorem] += np.abs(np.linalg.svd(inner, compute_uv=False) ** 2 - 1).max() > eps
            found = sketch.apply(X) @ np.linalg.pinv(inner) @ leading
            errors.append((np.linalg.norm(best - found) / rest, np.linalg.norm(X - found) / rest))
        of_best, of_all = np.array(errors).T
        assert (of_best <= 3 * eps).mean() >= 0.97
        assert (of_all >= 1 - 1e-9).all()  # with A in the place of A_k, E is never small
    assert moved["boutsidis-2015"] >= 90  # the constant 1 is no theorem
    assert moved["boutsidis-2015-lemma-10"] <= 3  # as the lemma says: with probability 0.97


N_WIDE, N_WIDE_SEEDS = 10**6, 400


def rows_of_own_features(k, eps):
    """Rows (k + 1, 10^6) of ones in fewer than 1 / eps features each, none in two rows: CSR."""
    n_own = math.ceil(1 / eps) - 1
    features = np.random.default_rng(0).choice(N_WIDE, (k + 1) * n_own, replace=False)
    starts = np.arange(0, len(features) + 1, n_own)
    return sp.csr_array((np.ones(len(features)), features, starts), shape=(k + 1, N_WIDE))


def share_of_failures(sketch, X, eps, n_seeds=N_WIDE_SEEDS):
    """How often the cost of some two of the rows, a partition into k clusters, changes by more than eps."""
    n_failed, pairs = 0, np.triu_indices(X.shape[0], 1)
    own = X[:, X.indices].toarray()
    wanted = naive.d2_matrix(own, own)[pairs]
    for seed in range(n_seeds):
        Y = sp.csr_array(sketch(seed).apply(X)).astype(np.float64)
        products = (Y @ Y.T).toarray()
        got = (np.diag(products)[:, None] + np.diag(products) - 2 * products)[pairs]
        n_failed += (np.abs(got / wanted - 1) > eps * (1 + 1e-6)).any()
    return n_failed / n_seeds


@cases("k, eps", [(3, 0.3), (5, 0.3), (10, 0.15), (20, 0.3)])
def test_rows_of_own_features_are_kept(k, eps):
    X, known = rows_of_own_features(k, eps), {"n_clusters": k, "eps": eps, "delta": DELTA}
    bound = sizing("countsketch", **known)
    enough = share_of_failures(lambda seed: CountSketch(bound.n_components, seed), X, eps)
    assert interval(enough, N_WIDE_SEEDS)[1] < DELTA
    printed = sizing("countsketch", theorem="liu-2017", **known).n_components
    few = share_of_failures(lambda seed: CountSketch(printed, seed), X, eps)
    assert k < 5 or interval(few, N_WIDE_SEEDS)[0] > DELTA  # from there the bound as printed is no bound
    m, s = n_components("sparse-jl", **known), nnz_per_feature(**known)
    fewer = {"signs": lambda seed: SignProjection(n_components("signs", **known), seed)}
    fewer |= {"sparse-jl": lambda seed: CountSketch(m, seed, s)}
    for name, sketch in fewer.items():
        assert name in dict(bound.less)
        assert interval(share_of_failures(sketch, X, eps, n_seeds=50), 50)[1] < DELTA, name


def failures_by_conjecture(k, eps, share=1.0, n_seeds=N_SEEDS):
    """How often m = 4 (k + ln(2 / delta)) / eps^2 components, or a share of them, fail for rows of own features."""
    known = {"n_clusters": k, "eps": eps, "delta": DELTA}
    m = math.ceil(share * sizing("sparse-jl", theorem="nelson-nguyen-conjecture", **known).n_components)
    s = min(m, nnz_per_feature(**known))
    return share_of_failures(lambda seed: SparseJL(m, seed, s), rows_of_own_features(k, eps), eps, n_seeds)


@cases("k, eps", [(3, 0.3), (10, 0.15), (20, 0.3)])
def test_blocks_keep_rows_with_components_linear_in_k(k, eps):
    assert interval(failures_by_conjecture(k, eps))[1] < DELTA


def test_a_quarter_of_the_conjectured_components_is_not_enough():
    assert interval(failures_by_conjecture(10, 0.15, 0.25))[0] > DELTA


@pytest.mark.slow
@cases("k, eps", [(1, 0.5), (3, 0.3), (5, 0.3), (10, 0.15), (20, 0.2), (20, 0.3), (40, 0.5), (100, 0.4)])
def test_blocks_keep_rows_with_components_linear_in_k_in_400_seeds(k, eps):
    assert interval(failures_by_conjecture(k, eps, n_seeds=N_WIDE_SEEDS), N_WIDE_SEEDS)[1] < DELTA


@pytest.mark.slow
@cases("n_clusters, eps", [(1, 0.5), (2, 0.5), (3, 0.4), (6, 0.45)])
def test_blocks_keep_all_partitions_with_components_linear_in_k(n_clusters, eps):
    known = {"n_clusters": n_clusters, "eps": eps, "delta": DELTA}
    m = sizing("sparse-jl", theorem="nelson-nguyen-conjecture", **known).n_components
    failed = shares_of_failures("sparse-jl", m, n_clusters, eps)
    assert interval(max(failed.values()))[1] < DELTA, failed


def test_the_conjecture_is_asked_for_by_name():
    known = {"n_clusters": 50, "eps": 0.3}
    asked = sizing("sparse-jl", theorem="nelson-nguyen-conjecture", **known)
    assert (asked.n_components, sizing("sparse-jl", **known).n_components) == (2356, 15_351)
    assert "conjecture" in asked.keeps
    assert "Cohen, SODA 2016" in asked.source


SIZES_CSV = Path(__file__).parents[1] / "benchmarks" / "results" / "sketch_sizes.csv"


def sizes_measured():
    """Lines of the committed table, by sketch."""
    with SIZES_CSV.open() as file:
        lines = list(csv.DictReader(file))
    return {name: [line for line in lines if line["sketch"] == name] for name in RATIOS}


def test_ratios_are_those_measured():
    for name, lines in sizes_measured().items():
        ratios = [float(line["ratio"]) for line in lines]
        assert (min(ratios), max(ratios)) == RATIOS[name]
        for line in lines:
            assert float(line["ratio"]) == pytest.approx(
                int(line["theorem_asks"]) / int(line["seeds_needed"]), abs=0.06
            )
            if name != "hadamard":
                known = {"n_clusters": int(line["k"]), "eps": float(line["eps"]), "delta": float(line["delta"])}
                assert int(line["theorem_asks"]) == n_components(name, **known)


@pytest.mark.slow
@cases("kind", ["countsketch", "sparse-jl", "signs", "sparse", "gaussian"])
def test_seeds_need_what_the_table_says(kind):
    line = next(line for line in sizes_measured()[kind] if line["k"] == "5")
    assert sketch_sizes.needed(kind, int(line["theorem_asks"]), 5, 0.3) == int(line["seeds_needed"])


def test_the_guide_has_the_table_measured():
    guide = (Path(__file__).parents[2] / "examples" / "README.md").read_text()
    for name, lines in sizes_measured().items():
        ten = next(line for line in lines if line["k"] == "10")
        low, high = RATIOS[name]
        asked, least = int(ten["theorem_asks"]), int(ten["seeds_needed"])
        row = next(line for line in guide.splitlines() if line.startswith(f"| `{name}` |"))
        assert f"| {asked:,} | {least:,} | {low:g} to {high:g} | {1000 * float(ten['seconds']):.1f} ms |" in row


def test_choices_keep_the_promise_and_the_fastest_comes_first():
    known = {"n_clusters": 50, "eps": 0.3, "n_features": 47_236}
    choices = which_sketch(**known, nnz=300)
    assert [choice.recommended for choice in choices] == [True] + [False] * (len(choices) - 1)
    assert [choice.microseconds for choice in choices] == sorted(choice.microseconds for choice in choices)
    assert (choices[0].sketch, choices[0].n_components) == ("signs", 825)
    for choice in choices:
        if choice.sketch != "identity":
            bound = sizing(choice.sketch, **known)
            assert (bound.n_components, bound.keeps) == (choice.n_components, ALL_PARTITIONS)
            assert choice.needed[0] <= choice.needed[1] < choice.n_components < 47_236
    by_name = {choice.sketch: choice for choice in choices}
    assert set(by_name) == {"signs", "gaussian", "sparse", "sparse-jl", "identity"}  # others ask for d or more
    assert by_name["sparse-jl"].nnz_per_feature == 24
    assert sizing("signs", **known).choices == which_sketch(**known)
    assert "identity" not in {choice.sketch for choice in which_sketch(n_clusters=5, eps=0.3)}
    # rows of few entries are fastest as they are
    assert which_sketch(**known, nnz=20)[0].sketch == "identity"
    with pytest.raises(InvalidParameterError, match="nnz=0"):
        which_sketch(**known, nnz=0)


def test_sketches_that_would_do_are_named_beside_identity(caplog):
    with caplog.at_level(logging.INFO, "streamkm"):
        bound = sizing("countsketch", n_clusters=50, eps=0.3, n_features=47_236)
    assert (bound.sketch, dict(bound.less)["signs"]) == ("identity", 825)
    assert "take them all, or signs with 825 components" in caplog.text
    X = sp.random_array((2000, 47_236), density=75 / 47_236, format="csr", rng=np.random.default_rng(0))
    with caplog.at_level(logging.INFO, "streamkm"):
        plan = StreamKMeans(50, sketch=SketchOptions(eps=0.3), progress=False).plan(X)
    assert plan.sketch == "identity"
    assert plan.why_sketch.endswith("signs with 825 components keeps the same promise")
    assert f"no sketch: {plan.why_sketch}" in caplog.text
    narrow = StreamKMeans(50, sketch=SketchOptions("signs", eps=0.1), progress=False).plan(np.eye(60))
    assert narrow.sketch == "identity"
    assert "promise" not in narrow.why_sketch  # nothing would do


def test_sketches_that_need_less_are_named():
    bound = sizing("countsketch", n_clusters=10, eps=0.25)
    assert bound.less == tuple(sorted(bound.less, key=lambda named: named[1]))
    assert {"signs", "gaussian", "sparse", "sparse-jl"} == set(dict(bound.less))
    for name, m in bound.less:
        assert m == n_components(name, n_clusters=10, eps=0.25) < bound.n_components
    assert sizing("leverage", n_clusters=10, eps=0.25).less == ()  # promises another thing
    # blocks of more non-zeros a feature than CountSketch takes are not named
    assert "sparse-jl" not in dict(sizing("countsketch", n_clusters=10, eps=0.05).less)


@cases(
    "sketch, options, wanted",
    [
        ("countsketch", {"n_clusters": 3, "eps": 0.5}, 480),
        ("countsketch", {"n_clusters": 100, "eps": 0.5}, 404_000),
        ("countsketch", {"n_clusters": 100, "eps": 0.01, "delta": 0.5}, 202_000_000),
        ("hadamard-countsketch", {"n_clusters": 3, "eps": 0.5}, 480),
        ("signs", {"n_clusters": 2, "eps": 0.5}, 80),
        ("gaussian", {"n_clusters": 50, "eps": 0.5}, 332),
        ("gaussian", {"n_clusters": 50, "eps": 0.5, "n_rows": 60}, 252),
        ("sparse-jl", {"n_clusters": 10, "eps": 0.5}, 848),
        ("svd", {"n_clusters": 10, "eps": 0.3}, 34),
        ("pca", {"n_clusters": 10, "eps": 0.3, "n_rows": 20}, 20),
        ("leverage", {"n_clusters": 10, "eps": 0.5}, 848),
        ("hadamard", {"n_clusters": 2, "eps": 0.9, "n_features": 60_000}, 4_501),
    ],
)
def test_formulas(sketch, options, wanted):
    assert n_components(sketch, **options) == wanted


@cases(
    "sketch, theorem, wanted, factor",
    [
        ("signs", "boutsidis-2015", 400, "2 + eps"),
        ("signs", "boutsidis-2015-lemma-10", 2400, "2 + eps"),
        ("signs", "cohen-2015", 1792, "every partition"),
        ("svd", "drineas-1999", 25, "factor 2"),
        ("pca", "feldman-2013", 400, "1 + eps"),
        ("svd", "cohen-2015", 100, "but for a constant"),
        ("countsketch", "liu-2017", 960, "not for all rows"),
    ],
)
def test_theorems_by_name(sketch, theorem, wanted, factor):
    bound = sizing(sketch, n_clusters=25, eps=0.25, theorem=theorem)
    assert (bound.theorem, bound.n_components) == (theorem, wanted)
    assert factor in bound.keeps
    with pytest.raises(InvalidParameterError, match=f"needed: one of .*{theorem}"):
        sizing(sketch, n_clusters=25, eps=0.25, theorem="fermat")


def test_a_loss_needs_half_of_it_as_eps():
    for loss in (0.01, 0.5, 2.0):
        eps = eps_of_loss(loss)
        assert 2 * eps / (1 - eps) == pytest.approx(loss)  # Liu, Shen and Tsang, lemma 1
    for loss in (0, -0.1, math.inf, math.nan):
        with pytest.raises(InvalidParameterError, match="loss="):
            eps_of_loss(loss)


def test_columns_of_the_kernel_matrix():
    assert kernel_columns(n_rows=10_000, eps=0.5, delta=0.1) == 439
    assert kernel_columns(n_rows=10_000, eps=0.05) * 0.05**2 / 8 == pytest.approx(
        math.log(10_000) + math.log(10) / 2, 0.04
    )
    with pytest.raises(InvalidParameterError, match="eps=1"):
        kernel_columns(n_rows=100, eps=1)


@cases("method", ["sub-gaussian", "sub-gaussian-entries", "ros", "sampled-columns"])
def test_sizing_of_sketches_of_the_kernel_matrix(method):
    bound = sizing(method, n_clusters=10, eps=0.5, n_rows=10_000)
    assert (bound.n_components, bound.sketch, bound.theorem) == (439, method, "yin-2022")
    assert "excess risk" in bound.keeps
    few = sizing(method, n_clusters=10, eps=0.5, n_rows=200)
    assert (few.n_components, few.sketch) == (200, "identity")
    assert "asks for" in few.source
    with pytest.raises(InvalidParameterError, match="needs n_rows"):
        sizing(method, n_clusters=10, eps=0.5)
    with pytest.raises(InvalidParameterError, match="needed: one of"):
        StreamKMeans(10, sketch=SketchOptions(method, eps=0.5)).plan(np.eye(20))


def test_columns_of_nystroem_features():
    known = {"rank": 20, "eps": 0.1, "n_rows": 10_000, "coherence": 3.0}
    sizes = {
        name: nystroem_columns(name, **known) for name in ("gaussian", "leverage", "srht", "uniform", "countsketch")
    }
    assert sizes == {"gaussian": 200, "leverage": 260, "srht": 380, "uniform": 780, "countsketch": 600}
    for sketch, options, message in (
        ("uniform", {}, "needs coherence"),
        ("srht", {}, "needs n_rows"),
        ("signs", {}, "needed: one of uniform"),
    ):
        with pytest.raises(InvalidParameterError, match=message):
            nystroem_columns(sketch, rank=20, eps=0.1, **options)


def test_logarithm_of_many_clusters_is_less_than_their_number():
    few, many = (sizing("gaussian", n_clusters=k, eps=0.2) for k in (2, 1000))
    assert few.formula.startswith("4 (k + ")
    assert many.formula.startswith("4 ln(k / ")
    assert "Makarychev" in many.source


@cases("sketch", ["countsketch", "hadamard-countsketch", "sparse-jl", "hadamard", "leverage", "svd"])
def test_sub_gaussian_bounds_are_for_sub_gaussian_maps_alone(sketch):
    bound = sizing(sketch, n_clusters=10**6, eps=0.5, n_features=10**15)
    assert "Makarychev" not in bound.source
    assert bound.n_components >= 10**6


def test_other_promises_are_said():
    assert sizing("svd", n_clusters=3, eps=0.1).keeps == UP_TO_A_CONSTANT
    assert sizing("leverage", n_clusters=3, eps=0.1).keeps == BEST_PARTITION


@pytest.mark.parametrize("sketch", FORMULAS)
def test_never_more_than_the_features(sketch, caplog):
    with caplog.at_level(logging.INFO, "streamkm"):
        bound = sizing(sketch, n_clusters=20, eps=0.05, n_features=64)
    assert (bound.n_components, bound.formula, bound.sketch, bound.keeps) == (64, "d", "identity", EXACT)
    assert "take them all" in caplog.text
    assert "no sketch at all" in bound.source


@cases("sketch", FORMULAS)
def test_more_for_less_error(sketch):
    many = {"n_features": 10**15}
    usual = n_components(sketch, n_clusters=20, eps=0.2, **many)
    assert n_components(sketch, n_clusters=20, eps=0.1, **many) >= usual
    assert n_components(sketch, n_clusters=21, eps=0.2, **many) > usual
    assert n_components(sketch, n_clusters=20, eps=0.2, delta=0.01, **many) >= usual


@cases(
    "options, message",
    [
        ({"sketch": "countsketsh"}, "did you mean 'countsketch'"),
        ({"sketch": "sampling"}, "else pass n_components"),
        ({"sketch": "hadamard"}, "needs n_features"),
        ({"eps": 0.0}, "eps=0.0; needed"),
        ({"eps": 1.0}, "eps=1.0; needed"),
        ({"eps": math.nan}, "eps=nan; needed"),
        ({"delta": 1.5}, "delta=1.5; needed"),
        ({"n_clusters": 0}, "n_clusters=0; needed"),
        ({"n_features": 0}, "n_features=0; needed"),
        ({"n_rows": 4}, "n_clusters=5 and n_rows=4"),
    ],
)
def test_refuses_nonsense(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        n_components(**{"sketch": "signs", "n_clusters": 5, "eps": 0.5, **options})


def counts_of_words(n_rows, seed=0):
    """Rows (n, 800) of word counts, Zipf's law, and groups of rows that share words."""
    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 4, n_rows)
    shares = 1 / np.arange(1, 801) * (1 + 3 * (np.arange(800) % 4 == np.arange(4)[:, None]))
    shares /= shares.sum(axis=1, keepdims=True)
    return sp.csr_array(np.array([rng.multinomial(80, shares[group]) for group in groups]).astype(float)), groups


def residuals(X, labels):
    rows = naive.dense(X).astype(float)
    return rows - np.stack([rows[labels == label].mean(axis=0) for label in range(labels.max() + 1)])[labels]


def test_the_spread_of_hashed_objectives_is_the_sum_over_pairs():
    X, groups = counts_of_words(60)
    rest = residuals(X, groups)
    # Senuma's psi: twice the sum over different features of x_i x_j y_i y_j
    wanted = sum(2 * ((x @ y) ** 2 - (x**2 * y**2).sum()) for x in rest for y in rest)
    assert hashing_spread(X, groups) == pytest.approx(wanted, rel=1e-9)
    assert hashing_spread(X.toarray(), groups) == pytest.approx(wanted, rel=1e-9)


def test_the_spread_of_a_sample_is_that_of_all_rows():
    X, groups = counts_of_words(1500)
    rng, whole, found = np.random.default_rng(1), hashing_spread(X, groups), []
    for _ in range(30):
        picked = rng.choice(1500, 300, replace=False)
        found.append(hashing_spread(X[picked], groups[picked], n_rows=1500))
    assert np.mean(found) == pytest.approx(whole, rel=0.05)
    assert np.std(found) < 0.2 * whole


def test_hashed_objectives_keep_senumas_bound():
    X, groups = counts_of_words(300)
    rest = residuals(X, groups)
    drss, n_seeds = 0.05 * (rest**2).sum(), 200
    bound = feature_hashing(X, groups, drss=drss, delta=DELTA)
    moved = np.empty((n_seeds, 2))
    for i, m in enumerate((bound.n_components, max(1, bound.n_components // 40))):
        for seed in range(n_seeds):
            moved[seed, i] = abs((CountSketch(m, seed).apply(rest) ** 2).sum() - (rest**2).sum())
    kept, far_fewer = (moved < drss).mean(axis=0)
    assert interval(1 - kept, n_seeds)[1] < DELTA
    assert interval(1 - far_fewer, n_seeds)[0] > DELTA
    # Chebyshev's inequality is what the theorem is made of: the variance is what it says
    assert np.sqrt(np.mean(moved[:, 0] ** 2)) == pytest.approx(drss * math.sqrt(DELTA), rel=0.2)


def test_feature_hashing_refuses_what_cannot_be():
    X, groups = counts_of_words(20)
    for options, message in (
        ({"drss": 0.0}, "drss=0.0; needed"),
        ({"drss": math.nan}, "drss=nan; needed"),
        ({"drss": 1.0, "delta": 1.0}, "delta=1.0; needed"),
    ):
        with pytest.raises(InvalidParameterError, match=message):
            feature_hashing(X, groups, **options)
    for labels in (groups[:5], groups - 9):
        with pytest.raises(InvalidInputError, match=r"labels .* of 20 rows"):
            feature_hashing(X, labels, drss=1.0)
