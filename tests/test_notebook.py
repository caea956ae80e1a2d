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
    assert not any(each["msg_type"] == "stream" for each in seen)
