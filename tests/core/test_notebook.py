"""Progress in notebooks: a real kernel, asked as a notebook asks it."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("ipykernel")
manager = pytest.importorskip("jupyter_client.manager")

CODE = """
import numpy as np
from streamkm import StreamKMeans
np.save("X.npy", np.random.default_rng(0).normal(size=(400, 3)))
kmeans = StreamKMeans(2, random_state=0, chunk_bytes=1000).fit("X.npy")
kmeans.summary()
"""
ENDS = {
    "kmeans.plan_": "text/html",
    "sweep('X.npy', range(2, 5), random_state=0)": "text/html",
    "kmeans.plot()": "image/png",
}


def test_stages_are_shown_below_the_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    kernel = manager.KernelManager(kernel_name="python3")
    kernel.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.start_kernel(cwd=str(tmp_path))
    client, seen = kernel.blocking_client(), []
    try:
        client.start_channels()
        client.wait_for_ready(timeout=60)
        reply = client.execute_interactive(CODE, timeout=120, output_hook=seen.append)
        ends = {}
        for code in ENDS:
            got = []
            client.execute_interactive(f"from streamkm import sweep\n{code}", timeout=120, output_hook=got.append)
            (ends[code],) = [each["content"]["data"] for each in got if each["msg_type"] == "execute_result"]
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok"
    shown = [each["content"]["data"] for each in seen if each["msg_type"] in ("display_data", "update_display_data")]
    made = [each for each in seen if each["msg_type"] == "display_data"]
    stages = {data["text/plain"].split()[0] for data in shown}
    assert {"sketch", "lloyd", "assign"} <= stages
    assert len(made) == len({each["content"]["transient"]["display_id"] for each in made})
    last = [data for data in shown if data["text/plain"].startswith("assign")][-1]
    assert "<progress value=" in last["text/html"]
    (result,) = [each["content"]["data"] for each in seen if each["msg_type"] == "execute_result"]
    assert result["text/html"].startswith("<table>")
    assert result["text/plain"].split()[:3] == ["cluster", "size", "share"]
    seed = [data for data in shown if data["text/plain"].startswith("seed")][-1]
    assert "chunks" not in seed["text/plain"]  # it counts none
    assert 'value="1" max="1"' in seed["text/html"]
    for code, kind in ENDS.items():  # prints well, and no figure needs pyplot
        assert kind in ends[code], code
        assert "(source=" not in ends[code]["text/plain"], code
    plan = ends["kmeans.plan_"]
    assert '<th style="text-align:left">passes</th>' in plan["text/html"]
    assert plan["text/plain"].splitlines()[0].split() == ["data", "X.npy"]
    assert not any(each["msg_type"] == "stream" for each in seen)
