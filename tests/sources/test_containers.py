"""Every container: equal rows give equal fits; damage ends no process, and no parser leaves its arrays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from streamkm import StreamKMeans
from streamkm.sources import open_source
from tests.containers import ALL, EQUAL, NAMES, values
from tests.contracts import assemble
from tests.programs import run_program
from tests.tables import row

TOP = Path(__file__).parents[2]


def test_equal_values_give_equal_rows_and_labels(tmp_path):
    X = values()
    wanted = StreamKMeans(3, random_state=0, progress=False).fit(X)
    for name, write in EQUAL.items():
        with row(name=name):
            write(tmp_path / name, X)
            source = open_source(tmp_path / name)
            found = np.asarray(assemble(source.stream(1 << 11), len(NAMES)), np.float64)
            np.testing.assert_array_equal((found + 0.0).view(np.int64), (X + 0.0).view(np.int64))
            model = StreamKMeans(3, random_state=0, progress=False).fit(tmp_path / name)
            assert adjusted_rand_score(model.labels_, wanted.labels_) == 1
            assert model.inertia_ == pytest.approx(wanted.inertia_, rel=1e-12)


LONG = (pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(3_600))


@pytest.mark.parametrize("n_mutants", [10, pytest.param(150, marks=LONG)])
def test_damage_is_refused(n_mutants, tmp_path):
    command = ["-m", "tests.containers", str(tmp_path), str(n_mutants), str(n_mutants)]
    try:
        done = run_program(command, folder=TOP, timeout=60 + 5 * n_mutants)
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs: {(tmp_path / 'last').read_text()}")
    assert done.returncode == 0, f"{(tmp_path / 'last').read_text()}\n{done.stderr}"
    counted = json.loads(done.stdout)
    assert sum(counted.values()) == len(ALL) * n_mutants
    assert {each.partition(" ")[2] for each in counted} == {"read", "refused"}, done.stdout
    for name in EQUAL:
        assert counted.get(f"{name} refused")


@pytest.mark.parametrize("n_examples", [pytest.param(60, marks=pytest.mark.slow), pytest.param(20_000, marks=LONG)])
def test_no_parser_leaves_its_arrays(n_examples, tmp_path):
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(TOP)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz_parsers", "0", str(n_examples)],
        cwd=TOP, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert sum(counted.values()) == 5 * n_examples
    for parser in ("fuzz_any_bytes", "fuzz_csr"):  # both sides are met
        assert min(counted[f"{parser} sound"], counted[f"{parser} refused"]) > n_examples / 20
