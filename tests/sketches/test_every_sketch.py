"""No sketch is left out: each goes through the contract, is loaded by its name, and is frozen where it is hashed."""

from __future__ import annotations

import importlib
from pathlib import Path

from streamkm.sketches import SKETCHES, make_sketch, oblivious_kinds, sketch_class
from tests.contracts import SketchContract, whole_numbers
from tests.tables import cases

HERE = Path(__file__)
MODULES = [path.stem for path in sorted(HERE.parent.glob("test_*.py")) if path != HERE]


def contract_classes():
    """All classes of these modules that inherit the contract."""
    for module in MODULES:
        for each in vars(importlib.import_module(f"tests.sketches.{module}")).values():
            if isinstance(each, type) and issubclass(each, SketchContract):
                yield each


def test_every_sketch_is_under_the_contract():
    kinds = set()
    for each in contract_classes():
        try:
            sketch = each().make_sketch()
        except NotImplementedError:
            continue
        assert abs(sketch.apply(whole_numbers(0.5))).max() > 0  # or the contract's comparisons would say nothing
        if type(sketch).__module__.startswith("streamkm."):  # not one that a test registers
            kinds.add(sketch.kind)
    assert kinds == set(SKETCHES)


@cases("kind", oblivious_kinds())
def test_a_name_answers_as_the_sketch_it_makes(kind):
    sketch = make_sketch(kind, 40, 0, 40)
    assert sketch_class(kind) is type(sketch)


@cases("kind", sorted({*oblivious_kinds(), "sampling"} - {"identity"}))
def test_every_hashed_sketch_is_frozen(kind):
    """Saved models and stores rest on what a seed gives: a test of known values names the class."""
    tests = "".join((HERE.parent / f"{module}.py").read_text() for module in MODULES)
    golden = "".join(part.split("\ndef ")[0] for part in tests.split("def test_golden_values")[1:])
    assert f"{SKETCHES[kind].__name__}(" in golden
