"""Results take their places whole: what was there before comes back if they cannot."""

from __future__ import annotations

import pytest

from streamkm.core.atomic_io import check_new_directory, replace_file, replace_tree
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


def test_a_file_is_replaced_only_where_that_is_said_also_one_that_comes_meanwhile(tmp_path):
    path = tmp_path / "x"

    def write(file):
        path.write_text("mine")
        file.write(b"new")

    with pytest.raises(OutputError, match="x exists; pass overwrite to replace it"):
        replace_file(path, write, overwrite=False)
    with pytest.raises(OutputError, match="x exists; pass overwrite to replace it"):
        replace_file(path, lambda file: file.write(b"new"), overwrite=False)
    assert path.read_text() == "mine"
    replace_file(path, write)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_of_other_files_is_refused_whatever_is_said(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-1").write_text("")
    check_new_directory(tmp_path / "out", "part-[0-9]", overwrite=True)
    with pytest.raises(OutputError, match="out exists; pass overwrite"):
        check_new_directory(tmp_path / "out", "part-[0-9]", overwrite=False)
    (tmp_path / "out" / "part-1.bak").write_text("mine")
    with pytest.raises(OutputError, match=r"out exists and holds other files \(part-1.bak\)"):
        check_new_directory(tmp_path / "out", "part-[0-9]", overwrite=True)
