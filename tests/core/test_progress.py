"""What `progress` shows: bars on a terminal, a line for each stage that is done elsewhere."""

from __future__ import annotations

import time

import numpy as np
import pytest

from streamkm import StreamKernelKMeans, StreamKMeans
from streamkm.core import progress as progress_module
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.progress import COMPILING, Progress

X = np.random.default_rng(0).normal(size=(300, 4))


@pytest.mark.parametrize("make", [StreamKMeans, StreamKernelKMeans])
def test_stages_are_told(capsys, caplog, make):
    for progress, told in (("auto", False), (False, False), (True, True), (np.True_, True)):
        kmeans = make(3, progress=progress, random_state=0).fit(X)
        kmeans.predict(X)
        said = capsys.readouterr()
        assert not said.out
        stages = [line.split(":")[0] for line in said.err.splitlines() if not line.startswith("compiling ")]
        assert stages == ([*(stage.name for stage in kmeans.stages_), "predict"] if told else [])
    for wrong in (-1, "yes", None):
        with pytest.raises(InvalidParameterError, match="progress="):
            make(3, progress=wrong).fit(X)
    with pytest.raises(TypeError, match="verbose"):
        make(3, verbose=1)
    with caplog.at_level("INFO", "streamkm"):  # what the log takes is told once
        kmeans = make(3, progress=True, random_state=0).fit(X)
    assert not capsys.readouterr().err
    logged = [message.split(":")[0] for message in caplog.messages]
    assert all(logged.count(stage.name) == 1 for stage in kmeans.stages_)


def test_bars_count_what_stages_count(capsys, monkeypatch):
    """A stage that counts nothing is no chunk, at a rate; one that ends early has all of what it took."""
    monkeypatch.setattr(progress_module, "_on_terminal", lambda: True)
    progress = Progress(show=True)
    with progress.stage("seed"):
        pass
    with progress.stage("read", 4) as stage:
        for _ in range(4):
            stage.advance()
    with progress.stage("lloyd", 100, "steps") as stage:
        stage.advance(2)
    with progress.stage("sample") as stage:  # of chunks whose number was not known
        stage.advance(3)
    told = {line.split()[0]: line for line in capsys.readouterr().err.splitlines() if line.strip()}
    assert list(told) == ["seed", "read", "lloyd", "sample"]
    assert "/" not in told["seed"]
    for name, count in {"read": "4/4", "lloyd": "2/2", "sample": "3/3"}.items():
        assert f" {count} " in told[name]


def test_a_long_stage_says_how_far_it_is_where_there_is_no_bar(capsys, caplog, monkeypatch):
    monkeypatch.setattr(progress_module, "TOLD_EVERY_S", 0.05)
    with Progress("auto").stage("quiet") as stage:  # nobody reads what it would say
        time.sleep(0.12)
    assert not capsys.readouterr().err
    with caplog.at_level("INFO", "streamkm"):
        with Progress("auto").stage("lloyd", 300, "steps") as stage:
            stage.advance(12)
            time.sleep(0.18)
        with Progress("auto").stage("seed"):
            time.sleep(0.12)
    told = [message for message in caplog.messages if message.endswith(" so far")]
    assert sum(message.startswith("lloyd: 12/300 ") for message in told) >= 2
    assert all("steps/s, 0 s so far" in message for message in told if message.startswith("lloyd"))
    assert "seed: 0 s so far" in told
    time.sleep(0.1)
    assert [message for message in caplog.messages if message.endswith(" so far")] == told


def test_no_stage_counts_what_is_compiled():
    progress = Progress(False)
    with progress.stage("seed"):
        COMPILING.seconds += 5
    with progress.stage("lloyd"):
        time.sleep(0.02)
    assert progress.stages[0].seconds == 0
    assert 0.02 <= progress.stages[1].seconds < 5
