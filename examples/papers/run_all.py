"""All studies of the five papers, one after the other: CSVs of the papers' figures beside ours, and pictures.

    python examples/papers/run_all.py DATA --out OUT [--quick]

A study that has ended is noted in OUT/done.csv with the processor time that it took, and is left out when the command
is given again: a run that was stopped goes on. `--quick` runs take fewer rows, sizes and seeds and are noted as such; a
whole run makes them anew. All studies together take 40 to 60 minutes of processor time. Each has a bound, with room
for a busy machine, at which it is ended; the others go on, and the command fails at the end. Two more
scripts are run by themselves: `quality_for_cost.py`, of no paper, and `mnist8m_kernel_kmeans.py`, whose data are made
first.
"""

import argparse
import resource
import subprocess
import sys
from pathlib import Path

import common

BOUNDS = {  # processor seconds
    "randomized_dimensionality_reduction": 320,
    "feature_hashing": 260,
    "landmarks_and_rank": 480,
    "landmarks_and_width": 410,
    "randomized_sketches": 1050,
    "nystroem_kernel_kmeans": 750,
    "sparse_embedded": 850,
    "deep_features": 760,  # of any one of its processes, each of which it bounds lower itself
}
DONE = "done.csv"


def processor_seconds():
    """Of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(script, bound, given):
    """(exit status, processor seconds) of one study."""
    before = processor_seconds()
    command = [sys.executable, str(Path(__file__).with_name(f"{script}.py")), str(given.data), "--out", str(given.out)]

    def limit():
        resource.setrlimit(resource.RLIMIT_CPU, (bound, bound))

    command += ["--quick"] if given.quick else []
    status = subprocess.run(command, check=False, preexec_fn=limit).returncode
    return status, processor_seconds() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of data sets; those that are missing are left out")
    parser.add_argument("--out", type=Path, required=True, help="folder for CSV and PNG")
    parser.add_argument("--quick", action="store_true", help="few rows, sizes and seeds")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kind, path = ("quick" if given.quick else "whole"), given.out / DONE
    done = {row["study"]: row for row in common.read_table(path)} if path.exists() else {}
    failed = []
    for script, bound in BOUNDS.items():
        if done.get(script, {}).get("run") == kind:
            print(f"== {script}: there already", flush=True)
            continue
        print(f"== {script}", flush=True)
        status, seconds = run(script, bound, given)
        if status:
            failed.append(script)
            print(f"{script} ended with status {status} after {seconds:.0f} of {bound} processor seconds")
            continue
        done[script] = {"study": script, "run": kind, "processor_seconds": f"{seconds:.0f}"}
        common.write_table(path, list(done.values()), say=False)
    for row in done.values():
        print(f"{row['study']} ({row['run']}): {row['processor_seconds']} s of processor time")
    total = sum(int(row["processor_seconds"]) for row in done.values())
    print(f"== {total} s of processor time")
    if failed:
        sys.exit(f"not ended: {', '.join(failed)}; the same command runs them again")


if __name__ == "__main__":
    main()
