"""Whether a fit on a cluster divides its search for many centers among cells, and how many these are.

The decision is made once, for the plan that users read and for the fit. Reads no rows.
"""

from __future__ import annotations

from dataclasses import replace

from streamkm.cluster.seeding.divided import FEWEST_CLUSTERS, n_cells_of
from streamkm.planning.plan import Plan
from streamkm.planning.plan_parts import SEARCH
from streamkm.planning.schedule import Iterations


def divided(plan: Plan, asked: Iterations) -> Plan:
    """The same plan with a search among cells, where that saves bytes and workers have room for it."""
    workers, model = plan.workers, plan.memory_model
    if workers is None or model is None or not model.rows.dense or plan.cluster_on != "blocks":
        return plan
    held_bytes = model.rows.n_rows * model.rows.block_row_bytes
    if not divides(asked, plan.n_components, workers.n_workers, held_bytes):
        return plan
    n_cells = n_cells_of(asked.n_clusters)
    others = {name: size for name, size in workers.memory.items() if name != SEARCH}
    memory = others | {"cells": workers.cell_bytes(model, n_cells)}
    if memory["cells"] > workers.limit_bytes:
        return plan
    clustering = replace(plan.clustering, n_cells=n_cells, epochs=None)
    return replace(plan, clustering=clustering, workers=replace(workers, memory=memory))


def divides(asked: Iterations, n_components: int, n_workers: int, held_bytes: int) -> bool:
    """Whether a search is divided among cells: a table of centers for each worker is more than all held rows.

    So many bytes would travel in every step; rows in cells travel once. Who asks for starts or exact steps gets them.
    """
    if asked.n_clusters < FEWEST_CLUSTERS or not asked.searches or asked.n_init != "auto" or asked.tol == 0:
        return False
    return 8 * asked.n_clusters * n_components * n_workers > held_bytes
