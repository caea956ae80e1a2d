"""One measured thing in an interpreter of its own; see `measure.run_child`.

    python -m tests.benchmarks.child '{"method": "fit", "data": "x.npz", "k": 50, "seed": 0}'

The last line of stdout is the result as JSON. Times end before the quality of the result is looked at.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.quality import objective


def fit(
    data: Path, k: int, seed: int = 0, out: str | None = None, repeats: int = 0, **parameters: Any
) -> dict[str, Any]:
    """Streamkm: the first fit of this process, and as many later ones as `repeats`.

    The clock starts at the CSR in memory for .npz, at the path for files, and ends at the labels (on disk with `out`).
    """
    from streamkm import StreamKMeans

    X: Any = data
    if data.suffix == ".npz":
        import scipy.sparse as sp

        X = sp.load_npz(data)

    def once() -> tuple[float, Any]:
        started = time.perf_counter()
        fitted = StreamKMeans(k, random_state=seed, progress=False, **parameters).fit(X)
        if out:
            np.save(out, fitted.labels_)
        return time.perf_counter() - started, fitted

    seconds, fitted = once()
    whole = _whole()
    later = [once()[0] for _ in range(repeats)]
    return {
        "seconds": seconds,
        "whole": whole,
        "later": float(np.median(later)) if later else None,
        "objective": objective(data, fitted.labels_),
        "stages": {stage.name: stage.seconds for stage in fitted.stages_},
        "sketch": fitted.plan_.sketch,
        "n_components": fitted.n_components_,
    }


def seeds(data: Path, k: int, count: int) -> dict[str, Any]:
    """Streamkm: the objective of one fit for each seed, in one process."""
    import scipy.sparse as sp

    from streamkm import StreamKMeans

    X = sp.load_npz(data)
    fits = [StreamKMeans(k, random_state=seed, progress=False).fit(X) for seed in range(count)]
    return {"objectives": [objective(data, fitted.labels_) for fitted in fits]}


def peer(name: str, data: Path, **arguments: Any) -> dict[str, Any]:
    """A peer; a package that is not there is said, not raised."""
    from tests.benchmarks.peers import PEERS

    try:
        seconds, labels = PEERS[name](data, **arguments)
    except ImportError as error:
        return {"missing": str(error)}
    whole = _whole()
    return {"seconds": seconds, "whole": whole, "objective": objective(data, labels)}


def call(function: str, **arguments: Any) -> Any:
    """A function of another module of this package, as ``module:name``, with its arguments."""
    module, name = function.split(":")
    return getattr(importlib.import_module(f"tests.benchmarks.{module}"), name)(**arguments)


def _whole() -> float:
    """Seconds since this process was spawned."""
    return time.time() - float(os.environ.get("BENCHMARK_SPAWNED", "nan"))


METHODS = {method.__name__: method for method in (fit, seeds, peer, call)}


def main() -> None:
    request = json.loads(sys.argv[1])
    method = METHODS[request.pop("method")]
    if "data" in request:
        request["data"] = Path(request["data"])
    result = method(**request)
    print()
    print(json.dumps(result, default=float))


if __name__ == "__main__":
    main()
