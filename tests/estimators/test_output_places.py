"""Places where results cannot be written are refused before anything is read, and nothing is made there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from streamkm import StreamKMeans
from streamkm.cli.main import main
from streamkm.core.exceptions import OutputError
from streamkm.core.progress import Progress

URL = "s3://user:secret@bucket/results"
NEEDED = r"^s3://\*\*\*@bucket/results.* is a URL, and results are written to local paths only; give a path"


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """Stages that began, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names, stage = [], Progress.stage
    monkeypatch.setattr(Progress, "stage", lambda self, name, *rest: names.append(name) or stage(self, name, *rest))
    return names


@pytest.fixture
def X():
    return np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)


def kmeans(**settings):
    return StreamKMeans(3, random_state=0, executor=2, progress=False, **settings)


@pytest.mark.parametrize("place", [f"{URL}.zarr", f"{URL}.csv", f"{URL}.parquet", Path(f"{URL}.zarr")])
def test_labels_at_a_url(begun, X, tmp_path, place):
    with pytest.raises(OutputError, match=NEEDED) as refused:
        kmeans().fit(X, labels_to=place)
    assert begun == []
    assert "secret" not in str(refused.value)
    fitted = kmeans().fit(X)
    begun.clear()
    with pytest.raises(OutputError, match=NEEDED):
        fitted.predict_to(X, place)
    assert begun == []
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_and_a_model_at_a_url(begun, X, tmp_path):
    with pytest.raises(OutputError, match=NEEDED):
        kmeans().fit(X, checkpoint=URL)
    assert begun == []
    with pytest.raises(OutputError, match=NEEDED):
        kmeans().fit(X).save(f"{URL}.npz")
    assert not list(tmp_path.iterdir())


def test_results_of_the_command_line_at_a_url(begun, X, tmp_path):
    np.save(tmp_path / "x.npy", X)
    failed = CliRunner().invoke(main, ["fit", "x.npy", "-k", "3", "-o", URL])
    assert failed.exit_code != 0
    assert "is a URL, and results are written to local paths only" in failed.output + str(failed.exception)
    assert begun == []
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet"])
def test_a_table_in_a_folder_that_is_not_there(begun, X, tmp_path, name):
    with pytest.raises(OutputError, match=rf"missing/{name} cannot be written: there is no directory missing; make it"):
        kmeans().fit(X, labels_to=f"missing/{name}")
    assert begun == []
    assert not list(tmp_path.iterdir())
