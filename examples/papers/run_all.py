"""All five papers, one after the other: a CSV of the paper's figures beside ours for each, and a picture.

    python examples/papers/run_all.py DATA --out OUT [--quick]

OUT gets `liu2017.csv`, `senuma2011.csv`, `boutsidis2015.csv`, `yin2022.csv` and `wang2019.csv`, what they are made of,
and the pictures. Five minutes with `--quick`, on fewer rows, sizes and seeds; half an hour whole. The last lines say
how much processor time each script took, which another load of the machine hardly changes. Two more scripts are run by
themselves: `quality_for_cost.py`, of no paper, and `mnist8m_kernel_kmeans.py`, whose data are made first.
"""

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = (
    "randomized_dimensionality_reduction",
    "feature_hashing",
    "randomized_sketches",
    "nystroem_kernel_kmeans",
    "sparse_embedded",
)


def processor_seconds():
    """Of all scripts that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of data sets; those that are missing are left out")
    parser.add_argument("--out", type=Path, required=True, help="folder for CSV and PNG")
    parser.add_argument("--quick", action="store_true", help="few rows, sizes and seeds")
    given = parser.parse_args()
    started, took = time.monotonic(), {}
    for script in SCRIPTS:
        before = processor_seconds()
        path = Path(__file__).with_name(f"{script}.py")
        command = [sys.executable, str(path), str(given.data), "--out", str(given.out)]
        print(f"== {script}", flush=True)
        subprocess.run([*command, "--quick"] if given.quick else command, check=True)
        took[script] = processor_seconds() - before
    for script, seconds in took.items():
        print(f"{script}: {seconds:.0f} s of processor time")
    print(f"== done in {time.monotonic() - started:.0f} s, {sum(took.values()):.0f} s of processor time")


if __name__ == "__main__":
    main()
