"""Results take their places whole: what was there before comes back if they cannot."""

from __future__ import annotations

import pytest

from streamkm.core.atomic_io import replace_tree
from streamkm.core.exceptions import OutputError


@pytest.mark.parametrize("replaced", [True, False])
def test_a_directory_that_cannot_be_put_in_place_changes_nothing(tmp_path, replaced):
    target = tmp_path / "out"
    if replaced:
        target.mkdir()
        (target / "old").write_text("kept")
    with pytest.raises(OutputError):
        replace_tree(tmp_path / "missing", target, tmp_path / "aside")
    assert [path.name for path in tmp_path.iterdir()] == ["out"] * replaced
    assert not replaced or (target / "old").read_text() == "kept"


def test_a_directory_is_replaced(tmp_path):
    for name in ("new", "out"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "made").write_text(name)
    replace_tree(tmp_path / "new", tmp_path / "out", tmp_path / "aside")
    assert (tmp_path / "out" / "made").read_text() == "new"
    assert (tmp_path / "aside" / "made").read_text() == "out"
