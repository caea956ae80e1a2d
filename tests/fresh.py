"""Programs whose memory is measured: each in a process as it is when streamkm has just been imported.

A server imports streamkm and forks. A forked process shares the server's own pages but maps the files of libraries
anew; the pages of these that the server had in memory are read once more, and memory is then that of a process which
has imported streamkm itself.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

SERVE = """
import ctypes, json, os, sys, traceback
import numpy as np
import streamkm.estimators.kernel_kmeans, streamkm.estimators.kmeans
from streamkm.core.progress import COMPILING
for name in sys.argv[1:]:
    __import__(name)

def pages_of_files():
    "Start of each mapped file, its bytes, and offsets of those pages that are in memory."
    found = []
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb") as pagemap:
        for line in maps:
            place, access, *_, path = (line.split() + [""])[:6]
            start, stop = (int(end, 16) for end in place.split("-"))
            if path.startswith("/") and access[0] == "r":
                pagemap.seek(start // 4096 * 8)
                entries = np.frombuffer(pagemap.read((stop - start) // 4096 * 8), np.uint64)
                found.append((start, stop - start, 4096 * np.flatnonzero(entries >> 63)))
    return found

in_memory = pages_of_files()
COMPILED = 100
for line in sys.stdin:
    code, arguments, environment, out = json.loads(line)
    child = os.fork()
    if child == 0:
        code_of_exit = 1
        try:
            os.environ.update(environment)
            for start, size, offsets in in_memory:
                np.frombuffer((ctypes.c_uint8 * size).from_address(start), np.uint8)[offsets].max(initial=0)
            sys.argv = ["-c", *arguments]
            sys.stdout = open(out, "w")
            exec(compile(code, "<fresh>", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            code_of_exit = 0 if not COMPILING.done else COMPILED
        except BaseException:
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
        os._exit(code_of_exit)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
COMPILED = "100\n"
"""What the server says where a program ended well and had compiled kernels."""


@cache
def _server(imported: tuple[str, ...]) -> subprocess.Popen[str]:
    subprocess.run([sys.executable, "-c", "import scipy.stats"], check=True)  # compiling its bytecode takes memory, too
    started = subprocess.Popen(
        [sys.executable, "-c", SERVE, *imported],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(started.communicate)
    return started


def run_fresh(
    code: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    imported: tuple[str, ...] = (),
) -> Any:
    """What the text of a program prints, of JSON; `environment` is added to it, `imported` are modules by name."""
    return _run(code, arguments, environment, imported)[0]


def run_compiled(
    code: str,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    imported: tuple[str, ...] = (),
) -> Any:
    """As `run_fresh`, once more where kernels were compiled: LLVM takes more memory than what is measured."""
    printed, compiled = _run(code, arguments, environment, imported)
    return run_fresh(code, arguments, environment, imported=imported) if compiled else printed


def _run(
    code: str, arguments: Sequence[str], environment: Mapping[str, str] | None, imported: tuple[str, ...]
) -> tuple[Any, bool]:
    """What a program prints, and whether kernels were compiled."""
    server = _server(imported)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        server.stdin.write(json.dumps([code, list(arguments), environment or {}, str(out)]) + "\n")
        server.stdin.flush()
        ended = server.stdout.readline()
        assert ended in ("0\n", COMPILED), f"{ended}{out.read_text() if out.exists() else ''}"
        return json.loads(out.read_text()), ended == COMPILED
