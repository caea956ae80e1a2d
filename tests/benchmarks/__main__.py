"""All benchmarks, or those named, as one table.

    python -m tests.benchmarks [NAMES...] --data FOLDER [--quick] [--json OUT.json]

NAMES are of `BENCHMARKS` or letters of rows. Data that FOLDER lacks are made there; digits need --mnist. Run it on a
machine that does nothing else: what is compared runs by turns, but nothing can be said of a machine that is shared.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import (
    bench_cluster,
    bench_dedupe,
    bench_digits,
    bench_kernel,
    bench_many,
    bench_sketches,
    bench_topics,
)
from tests.benchmarks.measure import Row, Settings, machine, table, to_json, versions

BENCHMARKS: dict[str, tuple[str, Callable[[Settings], list[Row]]]] = {
    "topics": ("efh", bench_topics.run),
    "digits": ("g", bench_digits.run),
    "sketches": ("lmno", bench_sketches.run),
    "kernel": ("q", bench_kernel.run),
    "cluster": ("u", bench_cluster.run),
    "dedupe": ("A", bench_dedupe.run),
    "many": ("yz", bench_many.run),
}


def chosen(names: list[str]) -> list[str]:
    """Benchmarks that names or letters of rows mean; all for none."""
    found = [
        name for name, (letters, _) in BENCHMARKS.items() if not names or any(n == name or n in letters for n in names)
    ]
    unknown = [n for n in names if n not in BENCHMARKS and not any(n in letters for letters, _ in BENCHMARKS.values())]
    if unknown:
        raise SystemExit(f"unknown benchmark {', '.join(unknown)}; known are {', '.join(BENCHMARKS)} and their letters")
    return found


def run(names: list[str], settings: Settings) -> list[Row]:
    """Run benchmarks one after the other, saying which."""
    rows = []
    for name in chosen(names):
        started = time.perf_counter()
        rows += BENCHMARKS[name][1](settings)
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)
    return rows


def main(argv: list[str] | None = None) -> list[Row]:
    """Run the command; the rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=", ".join(BENCHMARKS))
    parser.add_argument("--data", type=Path, help="folder of the data; needed unless --quick")
    parser.add_argument("--mnist", type=Path, help="HDF5 file of images X and digits y, to make the digits from")
    parser.add_argument("--quick", action="store_true", help="small data, one run, no verdicts")
    parser.add_argument("--runs", type=int, default=3, help="of each thing; the median counts")
    parser.add_argument("--peer-limit", type=float, default=600, help="seconds after which a peer is given up")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    args = parser.parse_args(argv)
    if args.data is None and not args.quick:
        parser.error("--data FOLDER is needed, or --quick")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(os.path.abspath(args.data or scratch))
        if args.quick:
            folder /= "quick"
        folder.mkdir(parents=True, exist_ok=True)
        settings = Settings(folder, args.quick, args.runs, args.mnist, args.peer_limit)
        rows = run(args.names, settings)
    print()
    print(table(rows))
    print()
    print(", ".join(f"{name} {value}" for name, value in {**machine(), **versions()}.items()))
    if args.json:
        args.json.write_text(to_json(rows))
    return rows


if __name__ == "__main__":
    main()
