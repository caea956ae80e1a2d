"""The same bits on every processor with fused multiply-add, and whatever BLAS NumPy has."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import threadpoolctl

from tests.bits import fits, kernels

FROZEN = {
    "product f4": "049aa7ebede03cb8",
    "nearest f4": "9ab4798af4b31696",
    "nearest sparse f4": "1bf697b45313852d",
    "product f8": "2cdc43c38082f8af",
    "nearest f8": "d5aef0c428c68c3f",
    "nearest sparse f8": "6464bd1d42996395",
    "dense f4": "a5276628f90f1313",
    "dense f8": "ab35e0935dd12b79",
    "dense u1": "d48574b7c8b70298",
    "sparse f4": "f31f090801ac8b8c",
    "sparse f8, cosine": "85bf21e65a3af058",
    "signs": "98263d9794c68031",
    "many f4": "ea0df46c853b86b0",
}
"""Of `tests.bits`, found on an AMD EPYC of the third generation, with vectors of 32 bytes."""

ROOT = Path(__file__).resolve().parents[2]
AVX2 = (
    "+64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,+sahf,+sse,+sse2,+sse3"
)
AVX2 += ",+sse4.1,+sse4.2,+ssse3,+xsave"


def has(flag):
    """Whether this processor has a feature."""
    info = Path("/proc/cpuinfo")
    return info.exists() and flag in info.read_text().split()


def bits(*names, **environment):
    """Begin to compute bits in a process of its own."""
    command = [sys.executable, "-m", "tests.bits", *names]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def found(process):
    """What such a process found."""
    out, error = process.communicate()
    assert process.returncode == 0, error
    return json.loads(out)


CORE_TYPES = [["Nehalem"], pytest.param(["Haswell", "Sandybridge", "SkylakeX"], marks=pytest.mark.slow)]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="core types are those of x86-64")
@pytest.mark.parametrize("kinds", CORE_TYPES, ids=["oldest", "newer"])
def test_bits_do_not_depend_on_blas(kinds):
    """What OpenBLAS takes on older and newer processors; the frozen bits are those of other machines."""
    kinds = [kind for kind in kinds if kind != "SkylakeX" or has("avx512f")]
    here = {library["architecture"] for library in threadpoolctl.threadpool_info() if "architecture" in library}
    processes = {kind: bits("fits", "kernels", OPENBLAS_CORETYPE=kind) for kind in kinds if here != {kind}}
    got = {kind: found(processes[kind]) if kind in processes else fits() | kernels() for kind in kinds}
    assert got == dict.fromkeys(kinds, FROZEN)


@pytest.mark.slow
@pytest.mark.skipif(not has("avx2"), reason="needs a processor with AVX2")
def test_bits_do_not_depend_on_vectors(tmp_path, reduced):
    """Compiled for processors with vectors of 32 and of 64 bytes; on a machine without the latter, of two halves."""
    names = ("kernels",) if reduced else ("kernels", "fits")
    wanted = {name: FROZEN[name] for name in FROZEN if not reduced or name.startswith(("product", "nearest"))}
    kinds = {
        "haswell": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": AVX2},
        "wide": {},
        **({"skylake-avx512": {"NUMBA_CPU_NAME": "skylake-avx512"}} if has("avx512f") else {}),
    }
    processes = {
        kind: bits(*names, *(["wide"] if kind == "wide" else []), NUMBA_CACHE_DIR=str(tmp_path / kind), **environment)
        for kind, environment in kinds.items()
    }
    got = {kind: found(process) for kind, process in processes.items()}
    assert got == dict.fromkeys(kinds, wanted)
