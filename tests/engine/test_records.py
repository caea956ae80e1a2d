"""Records: what is packed comes back bit by bit, by annotations alone; what cannot be packed is refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from streamkm.core.matrix import Matrix
from streamkm.engine import Folded
from streamkm.engine.checkpoint import Checkpoint
from streamkm.engine.records import pack, unpack
from streamkm.sketches import CountSketch, PCASketch, Sketch
from tests.tables import cases

NUMBERS = st.floats(width=64) | st.sampled_from([np.inf, -np.inf, np.nan, -0.0, 5e-324])
ARRAYS = hnp.arrays(
    st.sampled_from([np.float64, np.float32, np.int64, np.int32, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=5),
)


@dataclass(frozen=True, slots=True)
class Inner:
    X: Matrix
    limit: float
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    inner: Inner | None
    pieces: tuple[NDArray[Any], ...]
    nodes: tuple[tuple[int, bool, Inner], ...]
    history: list[dict[str, Any]]
    sketch: Sketch | None = None
    derived: int = field(init=False, default=3)


def through_a_file(value, kind, path):
    """What comes back of a value that a checkpoint holds: through JSON and .npz, not in memory alone."""
    with Checkpoint.open(path, {"of": "test"}) as checkpoint:
        checkpoint.save("value", *pack(value))
        return unpack(kind, checkpoint.load("value"))


def check_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, np.ndarray):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.tobytes() == wanted.tobytes()
    elif sp.issparse(wanted):
        for name in ("data", "indices", "indptr"):
            check_same(getattr(found, name), getattr(wanted, name))
        assert found.shape == wanted.shape
    elif isinstance(wanted, float):
        assert np.float64(found).tobytes() == np.float64(wanted).tobytes() or (np.isnan(found) and np.isnan(wanted))
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for each, other in zip(found, wanted, strict=True):
            check_same(each, other)
    elif isinstance(wanted, dict):
        check_same(list(found.items()), list(wanted.items()))
    elif hasattr(wanted, "__dataclass_fields__"):
        for each in fields(wanted):
            check_same(getattr(found, each.name), getattr(wanted, each.name))
    else:
        assert found == wanted


@settings(max_examples=30, deadline=None)
@given(ARRAYS, NUMBERS, st.integers(-(2**63), 2**63), st.lists(ARRAYS, max_size=4), st.text(max_size=5))
def test_values_come_back_bit_by_bit(tmp_path_factory, array, number, whole, pieces, text):
    X = sp.csr_array(np.eye(3)) if len(pieces) % 2 else np.asarray(array)
    inner = Inner(X, number, text or None)
    history = [{"stage": text, "iteration": whole, "inertia": number}]
    value = Outer(inner, tuple(pieces), ((whole, True, inner),), history)
    check_same(through_a_file(value, Outer, tmp_path_factory.mktemp("checkpoint") / "c"), value)


def test_sketches_come_back(tmp_path):
    directions = PCASketch.fit(np.random.default_rng(0).normal(size=(20, 5)), 2, random_state=0)
    for number, sketch in enumerate((CountSketch(8, 3), directions)):
        found = through_a_file(Outer(None, (), (), [], sketch), Outer, tmp_path / str(number)).sketch
        assert found.to_dict() == sketch.to_dict()
        for name, array in sketch.arrays().items():
            check_same(found.arrays()[name], array)


def test_states_and_many_short_arrays_come_back(tmp_path):
    folded = Folded(7, ((2, (Inner(np.ones((1, 2)), np.inf),)), (1, ())))
    check_same(through_a_file(folded, Folded[Inner], tmp_path / "c"), folded)
    pieces = [np.full(n, n, np.int32) for n in (3, 0, 5)]
    _, meta = pack(pieces)
    assert json.loads(json.dumps(meta)) == meta
    check_same(through_a_file(pieces, list[NDArray[Any]], tmp_path / "d"), pieces)
    weights = np.arange(4.0)  # one that occurs twice is held once
    arrays, _ = pack([weights.reshape(2, 2), {"again": weights}, Inner(weights, 1.0)])
    assert sum(array.nbytes for array in arrays.values()) <= 2 * weights.nbytes


@cases("value", [object(), {"a": {1, 2}}, [1, lambda: 2]])
def test_other_values_are_refused_by_name_and_place(value):
    with pytest.raises(TypeError, match=r"(object|set|function) at value.*records do not hold"):
        pack(value)
