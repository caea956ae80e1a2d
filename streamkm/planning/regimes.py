"""What k-means may run on for a request, best first, and why: the sample, a coreset or all sketched rows.

Memory is looked at elsewhere: `choice` takes the first that fits. Reads no rows.
"""

from __future__ import annotations

import numpy as np

from streamkm.passes.sizes import ClusterOn
from streamkm.planning.request import SERVING_PER_CLUSTER, FitRequest

WHOLE = "on all rows: the row sample has room for them"
POLISHED = (
    "on a sample of rows; the centers are then refined in the original space, and using all rows would change them "
    "little; coreset=None clusters all sketched rows"
)
ON_ALL = "on all sketched rows, seeding too: they are at most ten times as many as would be sampled"
ALONG = "on all rows, along directions that are found on a few rows read ahead"
FEW_ON_WORKERS = "on a sensitivity coreset of the sketched rows: all of them would not fit in the workers' memory"
MOST_PROJECTED = 10  # times the sample: more rows take longer to cluster than to read


def regimes(request: FitRequest, sample_rows: int, *, on_cluster: bool = False) -> dict[ClusterOn, str]:
    """What k-means may run on, best first, and why, where memory has room for a sample of so many rows.

    `on_cluster`: whether workers of a Dask cluster hold sketched rows.
    """
    found = _regimes(request, sample_rows)
    if on_cluster:
        found.pop("spilled", None)  # workers hold the rows, and nothing of them is written here
        if "blocks" in found and "coreset" in found:
            found["coreset"] = FEW_ON_WORKERS
        return found
    if request.source.estimated_rows is None and found.pop("blocks", None) is not None:
        # whether memory holds them is not known
        found = {"spilled": found.pop("spilled"), **found}
    return found


def serves(request: FitRequest, sample_rows: int) -> bool:
    """Whether centers may be found on a sample of so many rows alone."""
    return sample_rows >= request.serving_sample


def clusters_all(request: FitRequest, sample_rows: int) -> bool:
    """Whether all rows are clustered, and not the sample, where memory holds them sketched.

    Wide dense ones are, along directions found on a few rows read ahead, and wide sparse ones. That takes no pass
    more, and time in proportion to that of a pass.
    """
    source = request.source
    if request.parameters.coreset != "auto" or request.once:
        return False
    if request.found:
        along = not request.sketch_answers.needs_polishing and not request.streamed and not source.streams
        n_rows = source.n_rows if along else None
    else:
        n_rows = source.estimated_rows if request.polishes and source.is_sparse else None
    return n_rows is not None and sample_rows < n_rows <= MOST_PROJECTED * request.wanted_sample


def _sampled(request: FitRequest, sample_rows: int, spilled: str) -> dict[ClusterOn, str]:
    """The row sample, where it serves or was you chose."""
    found = request.parameters.coreset != "uniform" and not request.streamed
    why_sample = "on the row sample" + (", which its directions are found on" if found else "")
    if request.parameters.coreset == "uniform" or serves(request, sample_rows):
        return {"sample": why_sample}
    why = f"on all sketched rows: memory has no room for {SERVING_PER_CLUSTER} sampled rows a cluster"
    return {"blocks": why, "spilled": why + spilled}


def _regimes(request: FitRequest, sample_rows: int) -> dict[ClusterOn, str]:
    """The same, of rows whose number is known."""
    spilled = "; what memory does not hold of them is written to disk"
    if request.once:
        why = "on all sketched rows, whose labels are the result: the data can be walked once only"
        return {"blocks": why, "spilled": why + spilled}
    if request.parameters.coreset == "uniform" or (request.found and request.parameters.coreset == "auto"):
        return _sampled(request, sample_rows, spilled)
    if request.parameters.coreset is None:
        why = "on all sketched rows, as you chose"
        return {"blocks": why, "spilled": why + spilled}
    if request.parameters.coreset != "auto":
        return {"coreset": f"on a {request.parameters.coreset} coreset of the sketched rows, as you chose"}
    if request.polishes:
        # a sketch of more rows would only find starts for polishing on the sample: the sample finds them as well
        whole = (request.source.estimated_rows or np.inf) <= sample_rows
        return {"sample": WHOLE if whole else POLISHED}
    as_they_are = request.sketch_answers.is_identity
    kept = "rows, which are kept as they are" if as_they_are else "sketched rows: labels are the sketch's"
    return {
        "blocks": f"on all {kept}",
        "coreset": "on a sensitivity coreset of the sketched rows: all of them would not fit in memory",
        "spilled": f"on all {kept}; a coreset would not fit in memory{spilled}",
    }
