"""Results take their places whole: what was there before comes back if they cannot."""

from __future__ import annotations

import pytest

from streamkm.core.atomic_io import check_new_directory, replace_file, replace_tree
from streamkm.core.exceptions import OutputError
from tests.children import tree


def test_a_directory_is_replaced_or_nothing_is_changed(tmp_path):
    for target in (tmp_path / "new", tmp_path / "out"):
        with pytest.raises(OutputError):
            replace_tree(tmp_path / "missing", target, tmp_path / "aside")
        target.mkdir()
        (target / "made").write_text(target.name)
        with pytest.raises(OutputError):
            replace_tree(tmp_path / "missing", target, tmp_path / "aside")
    assert tree(tmp_path) == {"new/made": b"new", "out/made": b"out"}
    replace_tree(tmp_path / "new", tmp_path / "out", tmp_path / "aside")
    assert tree(tmp_path) == {"out/made": b"new", "aside/made": b"out"}


def test_a_file_is_replaced_only_where_that_is_said_also_one_that_comes_meanwhile(tmp_path):
    path = tmp_path / "x"

    def write(file):
        path.write_text("mine")
        file.write(b"new")

    for _ in range(2):  # the first time it comes meanwhile
        with pytest.raises(OutputError, match="x exists; pass overwrite to replace it"):
            replace_file(path, write, overwrite=False)
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
