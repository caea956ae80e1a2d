"""Rows a and b: svmlight text to CSR, one thread against scikit-learn, two threads against one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks import data
from tests.benchmarks.bench_svmlight import same_values
from tests.benchmarks.measure import Row, Settings, middle, paired, ratio_of, run_child

FASTER, SCALED = 20, 1.8
CHUNK_BYTES = 16 << 20
HARD_ROWS = 2000


def run(settings: Settings) -> list[Row]:
    """Rows a and b."""
    path = data.topics(settings, kind="svmlight")
    ours, theirs = paired(
        lambda run: run_child("parse", data=path, n_threads=1),
        lambda run: run_child("parse_sklearn", data=path),
        settings,
    )
    ratio = ratio_of(ours, theirs)
    with tempfile.TemporaryDirectory() as folder:
        same = same_values(path, CHUNK_BYTES)[0] and same_values(_hard_numbers(Path(folder)), CHUNK_BYTES)[0]
    rate, their_rate = (path.stat().st_size / middle(runs, "seconds") / 1e6 for runs in (ours, theirs))
    two, one = paired(
        lambda run: run_child("parse", data=path, n_threads=2),
        lambda run: ours[0] if settings.quick else run_child("parse", data=path, n_threads=1),
        settings,
    )
    scaled = ratio_of(two, one)
    said = "equal bits" if same else "OTHER VALUES"
    return [
        Row("a", f"{path.name} to CSR, one thread", "scikit-learn load_svmlight_file", f"{ratio:.1f} x", said, "",
            f">= {FASTER} x, equal bits", None if settings.quick else ratio >= FASTER and same,
            f"quoted: the reading, chunk by chunk as passes read, kernels loaded; {rate:.0f} to {their_rate:.0f} MB/s; "
            "values compared on this file and on one of long mantissas and far exponents",
            {"ours": ours, "theirs": theirs}),
        Row("b", f"{path.name} to CSR, two threads", "one thread", f"{scaled:.2f} x", "", "", f">= {SCALED} x",
            None if settings.quick else scaled >= SCALED,
            f"{path.stat().st_size / middle(two, 'seconds') / 1e6:.0f} MB/s", {"ours": two, "theirs": one}),
    ]  # fmt: skip


def _hard_numbers(folder: Path) -> Path:
    """A file of values that are hard to round: up to 25 digits, exponents to both ends of float64."""
    rng = np.random.default_rng(0)
    path = folder / "hard.svm"
    with open(path, "w", encoding="ascii") as file:
        for row in range(HARD_ROWS):
            digits = "".join(map(str, rng.integers(0, 10, rng.integers(1, 26))))
            bits = rng.integers(1, 0x7FE0_0000_0000_0000, dtype=np.int64)
            values = (
                f"{rng.integers(1, 10)}.{digits}e{rng.integers(-320, 300)}",
                f"0.{'0' * int(rng.integers(0, 30))}{digits}",
                repr(float(bits.view(np.float64))),  # shortest text of any double
                f"{float(np.float32(rng.standard_normal())):.9g}",
                f"{1 + rng.integers(1 << 52) / (1 << 52):.52f}",
            )
            file.write(f"{row % 3}{''.join(f' {j}:{value}' for j, value in enumerate(values, 1))}\n")
    return path
