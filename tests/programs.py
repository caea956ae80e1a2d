"""Programs in processes of their own that start at once: forked from one that has imported what they need.

A program that is started anew takes two seconds of a processor to import what this package needs. Where starting is not
what is tested, programs are started here.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dask


def forking() -> Any:
    """What starts processes from one without threads that has imported what tests run; not what this one holds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.loaded"])
    return context


def become(arguments: Sequence[str], folder: str, environment: Mapping[str, str], out: str, errors: str) -> None:
    """Run a program as ``python *arguments`` does, in this process, which leads a session of its own."""
    os.setsid()
    for number, path in ((1, out), (2, errors)):
        with open(path, "ab") as file:
            os.dup2(file.fileno(), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    dask.config.refresh()
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).parent))
        runpy.run_path(arguments[0], run_name="__main__")


class Program:
    """A program that runs, with what `subprocess.Popen` has of that name; `arguments` follow ``python``."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: str | Path,
        environment: Mapping[str, str],
        out: str | Path,
        errors: str | Path,
    ):
        given = (list(arguments), str(folder), dict(environment), str(out), str(errors))
        self._process = forking().Process(target=become, args=given)
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


def run_program(
    arguments: Sequence[str], *, folder: str | Path = ".", environment: Mapping[str, str] | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, or until `timeout` seconds have passed; see `Program`."""
    with tempfile.TemporaryDirectory() as said:
        out, errors = Path(said, "out"), Path(said, "errors")
        program = Program(arguments, Path(folder).resolve(), environment or os.environ, out, errors)
        try:
            code = program.wait(timeout)
        finally:
            program.kill()
        return subprocess.CompletedProcess(list(arguments), code, out.read_text(), errors.read_text())
