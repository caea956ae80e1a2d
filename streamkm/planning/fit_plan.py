"""The decisions about a fit before the first read: sketch, sizes, cluster_on, passes, bytes.

Pure functions of the source's description, the parameters and the memory that may be taken. Reads no rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkm.cluster.centers.index import FEWEST_CENTERS
from streamkm.cluster.columns import FEWEST_FEATURES, MOST_COUNTED, MOST_OCCUR
from streamkm.cluster.model import Space
from streamkm.cluster.sampling.coreset import default_size
from streamkm.cluster.seeding.draws import draw_rows
from streamkm.cluster.seeding.search_set import search_rows
from streamkm.core.exceptions import InvalidInputError
from streamkm.engine.memory import MIB
from streamkm.passes.sizes import ClusterOn, RowSizes, Sizes
from streamkm.planning.cached_rows import with_cached_rows
from streamkm.planning.choice import Choice, choose
from streamkm.planning.memory import MemoryModel
from streamkm.planning.memory_budget import FEWEST_DRAWN, MemoryBudget, checked, reading_of, smaller_sizes
from streamkm.planning.plan import Plan
from streamkm.planning.row_bytes import block_row_bytes, float_row_bytes
from streamkm.planning.sketch_choice import choose_sketch, wanted_nnz
from streamkm.sketches import SketchAnswers, SketchOptions
from streamkm.sketches.registry import DATA_DEPENDENT, FIT_BY_PASS, n_directions, sketch_class
from streamkm.sketches.subspace import subspace_passes
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes

SAMPLE_ROWS_PER_CLUSTER = 1000  # centers of s sampled rows cost k / s of the objective: 0.1 percent
SMALLEST_SAMPLE_ROWS = 50_000
SERVING_PER_CLUSTER = 200  # with fewer, the sample alone costs more than half a percent: all rows are sketched
WHOLE = "on all rows: the row sample has room for them"
POLISHED = (
    "on a sample of rows; the centers are then refined in the original space, and using all rows would change them "
    "little; coreset=None clusters all sketched rows"
)
ON_ALL = "on all sketched rows, seeding too: they are at most ten times as many as would be sampled"
ALONG = "on all rows, along directions that are found on a few rows read ahead"
MOST_PROJECTED = 10  # times the sample: more rows take longer to cluster than to read
FEWEST_SEARCHED, FEWEST_SEARCHED_PER_CLUSTER = 10_000, 32  # rows that starts are searched on, whatever the memory
# what the sample is not made smaller than for want of memory: so many rows, or bytes where rows are wide
FEWEST_SAMPLED, FEWEST_PER_CLUSTER, SMALLEST_SAMPLE_BYTES = 1000, 20, 8 * MIB
MOST_ROUNDS = 2  # of looking further, where `refine` is "auto"


def plan_fit(
    source: RowSource,
    *,
    n_clusters: int,
    sketch: SketchOptions,
    refine: int | str,
    coreset: str | None,
    chunk_bytes: int | str,
    memory_limit: Any,
    n_threads: int,
    weighted: bool = False,
    gathers_labels: bool = True,
    caches_rows: bool = False,
    refuses: bool = True,
    on_cluster: bool = False,
) -> Plan:
    """Decide how a fit will go, without reading rows.

    Parameters
    ----------
    memory_limit : "auto", int, float or str
        See `core.memory.memory_limit_bytes`.
    n_threads : int
        Threads of this process that may read; as many do as have room beside what is planned for one.
    gathers_labels : bool
        Whether this process holds the labels of all rows.
    caches_rows : bool
        Whether rows that take long to read may stay in memory for the passes after the first, where there is room:
        threads of this process read them.
    refuses : bool
        Whether what does not fit is refused; it is not where other machines are planned.
    on_cluster : bool
        Whether workers of a Dask cluster read, and this process is their client.

    Raises
    ------
    InvalidInputError
        If the source cannot be walked as often as needed.
    InvalidParameterError
        If a parameter does not fit the data.
    MemoryLimitError
        If the projected memory exceeds the limit.
    """
    row_bytes = decoded_row_bytes(source)
    kind, components, why = choose_sketch(source, sketch, n_clusters)
    budget = MemoryBudget.of(memory_limit, source, on_cluster=on_cluster)
    asked = _Asked(
        source=source,
        n_clusters=n_clusters,
        options=sketch,
        kind=kind,
        n_components=components,
        nnz_per_feature=wanted_nnz(kind, sketch, n_clusters),
        refine=refine,
        coreset=coreset,
        row_bytes=row_bytes,
    )
    if asked.once:
        asked.check_once()
    first = Sizes(
        chunk_bytes=budget.chunk_bytes(source, chunk_bytes, row_bytes),
        sample_rows=max(asked.fewest_sampled, min(asked.wanted_sample, budget.most_sampled(row_bytes))),
        drawn_rows=asked.drawn_rows,
        keeps_sample=refine == "auto" and not asked.once,
        searched_rows=asked.searched_rows,
        fewest_searched=min(asked.searched_rows, max(FEWEST_SEARCHED, FEWEST_SEARCHED_PER_CLUSTER * n_clusters)),
    )
    memory_model = asked.memory_model(first, gathers_labels=gathers_labels, on_cluster=on_cluster)
    regimes = asked.regimes(first.sample_rows)
    ladder = list(smaller_sizes(first, chunk_bytes, asked.fewest_sampled))
    serving = [sizes for sizes in ladder if asked.serves(sizes.sample_rows)]
    choice, all_rows = None, bool(serving) and asked.clusters_all(first.sample_rows)
    if all_rows:
        choice = choose(source, memory_model, {"blocks": ""}, asked.spaces[:1], serving, budget, n_threads)
        all_rows = choice.fits(budget)
    if choice is None or not all_rows:
        sizes = serving if serving and "sample" in regimes else ladder  # a smaller sample would cost quality
        choice = choose(source, memory_model, regimes, asked.spaces, sizes, budget, n_threads)
    ahead = all_rows and asked.found
    # a source that only streams is counted as it comes; a chunk of text does not know its first row's number
    counts_first = weighted and source.n_rows is None and not source.streams
    why_regime = (ALONG if ahead else ON_ALL) if all_rows else regimes[choice.cluster_on]
    plan = _plan(asked, choice, budget, why, why_regime, counts_first=counts_first, reads_ahead=ahead)
    if caches_rows:
        plan = with_cached_rows(plan, source, budget)
    if not refuses:
        return plan
    return checked(
        plan, "or use fewer n_components or fewer n_clusters", choice.memory_model.reading.largest_chunk, budget
    )


def _plan(
    asked: _Asked,
    choice: Choice,
    budget: MemoryBudget,
    why_sketch: str,
    why_regime: str,
    *,
    counts_first: bool,
    reads_ahead: bool,
) -> Plan:
    """The plan of a choice."""
    source, memory_model, cluster_on = asked.source, choice.memory_model, choice.cluster_on
    n_rows, several = source.estimated_rows, len(asked.spaces) > 1
    steps = () if source.prepared_by is None else source.prepared_by.finding
    before = tuple(stage.name for stage in source.stages_before)
    passes = (
        2
        + asked.refinements
        + counts_first
        + asked.fit_passes
        + (asked.found and cluster_on != "sample" and not reads_ahead)
    )
    return Plan(
        source=source.name,
        n_rows=n_rows,
        knows_rows=source.n_rows is not None,
        n_features=source.n_features,
        stored_bytes=source.n_bytes,
        passes=len(before) + len(steps) + (1 if asked.once else passes),
        counts_first=counts_first,
        chunk_bytes=choice.sizes.chunk_bytes,
        n_chunks=choice.n_chunks,
        sketch=asked.kind,
        nnz_per_feature=asked.nnz_per_feature,
        n_components=asked.n_components,
        why_sketch=why_sketch,
        cluster_on=cluster_on,
        why_regime=why_regime,
        coreset="lightweight" if asked.coreset == "lightweight" else "sensitivity",
        sample_rows=memory_model.chosen.sample_rows,
        assign_space=choice.space if source.n_features is not None or not several else None,
        memory=choice.memory(budget.base_bytes),
        limit_bytes=budget.limit_bytes,
        base_bytes=budget.base_bytes,
        process_memory=budget.process_memory,
        memory_model=memory_model,
        n_threads=memory_model.reading.n_threads,
        fit_passes=asked.fit_passes,
        block_room=choice.room if cluster_on == "spilled" else None,
        chooses_space=several,
        more_passes=MOST_ROUNDS if asked.refine == "auto" and not asked.once else 0,
        drawn_rows=memory_model.chosen.drawn_rows,
        keeps_sample=memory_model.chosen.keeps_sample,
        few_sampled=memory_model.chosen.sample_rows < min(asked.wanted_sample, n_rows or asked.wanted_sample),
        reads_ahead=reads_ahead,
        finding_steps=steps,
        passes_before=before,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The request for a plan, before memory limits any choice."""

    source: RowSource
    n_clusters: int
    options: SketchOptions
    kind: str  # of the sketch
    n_components: int
    nnz_per_feature: int | None
    refine: int | str
    coreset: str | None
    row_bytes: int  # of a row as read, about

    @property
    def once(self) -> bool:
        """Whether rows can be walked once only."""
        return not self.source.replayable

    @property
    def sketch_answers(self) -> SketchAnswers | type[SketchAnswers]:
        """Who answers for the sketch: itself if it is made already, else its class."""
        return sketch_class(self.kind) if isinstance(self.options.sketch, str) else self.options.sketch

    @property
    def found(self) -> bool:
        """Whether the sketch is found on rows."""
        return self.kind in DATA_DEPENDENT and isinstance(self.options.sketch, str)

    @property
    def streamed(self) -> bool:
        """Whether it is found on all rows, in passes of its own."""
        return self.found and self.options.fit_on == "all" and self.kind in FIT_BY_PASS

    @property
    def fit_passes(self) -> int:
        """Passes that find the sketch."""
        return subspace_passes(self._n_features) if self.streamed else 0

    @property
    def refinements(self) -> int:
        """Passes that `refine` asks for, whatever is found."""
        return self.refine if isinstance(self.refine, int) else 0

    @property
    def wanted_sample(self) -> int:
        """Rows of the sample, where memory has room for them."""
        return max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * self.n_clusters)

    @property
    def _serving_sample(self) -> int:
        """Rows of a sample that centers may be found on alone."""
        wanted = min(self.wanted_sample, SERVING_PER_CLUSTER * self.n_clusters)
        return min(wanted, self.source.estimated_rows or wanted)

    @property
    def fewest_sampled(self) -> int:
        """Rows of the sample, whatever the limit."""
        few = max(FEWEST_SAMPLED, FEWEST_PER_CLUSTER * self.n_clusters)
        return max(self.n_clusters, min(few, self.wanted_sample, SMALLEST_SAMPLE_BYTES // self.row_bytes))

    @property
    def searched_rows(self) -> int:
        """Rows that starts are searched on, where memory has room for them."""
        return search_rows(self.n_clusters, many=not self.source.is_sparse and self.n_clusters >= FEWEST_CENTERS)

    @property
    def drawn_rows(self) -> int:
        """Rows that the last pass draws by their share of the objective."""
        drawn = draw_rows(self.n_clusters, self.row_bytes)
        return 0 if self.once or drawn < FEWEST_DRAWN else drawn

    @property
    def spaces(self) -> tuple[Space, ...]:
        """Where rows may be assigned, best first."""
        as_they_are = self.sketch_answers.is_identity
        if self.once or (as_they_are and self.options.assign_space == "auto"):
            return ("original",) if as_they_are else ("sketch",)
        return ("original", "sketch") if self.options.assign_space == "auto" else (self.options.assign_space,)

    @property
    def _n_features(self) -> int:
        return self.source.estimated_features or self.n_components

    @property
    def _n_occurring(self) -> int:
        """Features that occur: those that the source expects, and at most as many as entries; 0: any may."""
        source, sketch = self.source, self.sketch_answers
        if not source.is_sparse or sketch.is_identity or sketch.is_projection:
            return 0
        n_entries = (source.estimated_rows or 0) * self.row_bytes // (4 + source.dtype.itemsize)
        n_occurring = n_entries if source.estimated_occurring is None else min(n_entries, source.estimated_occurring)
        counted = FEWEST_FEATURES <= self._n_features <= MOST_COUNTED
        return n_occurring if counted and n_occurring <= MOST_OCCUR * self._n_features else 0

    def check_once(self) -> None:
        """Refuse parameters that need more than one pass."""
        refused = {
            f"refine={self.refine}": self.refinements > 0,
            'assign_space="original"': self.options.assign_space == "original" and not self.sketch_answers.is_identity,
            f'sketch="{self.kind}"': self.found,
        }
        for parameter, wanted in refused.items():
            if wanted:
                raise InvalidInputError(
                    f"{self.source.name} can be walked once only, and {parameter} needs another pass; "
                    "pass a list of chunks, or a function that returns a fresh iterator"
                )

    def memory_model(self, first: Sizes, *, gathers_labels: bool, on_cluster: bool) -> MemoryModel:
        """What the projection of memory is made of, but for the sizes that are still to be chosen."""
        source, kind, n_components = self.source, self.kind, self.n_components
        block = block_row_bytes(source, self.row_bytes, self.options.sketch, kind, n_components, self.nnz_per_feature)
        rows = RowSizes(
            n_rows=source.estimated_rows or first.sample_rows,
            n_features=self._n_features,
            n_components=n_components,
            row_bytes=self.row_bytes,
            block_row_bytes=block,
            sample_floats=float_row_bytes(source, self.row_bytes),
            itemsize=4 if source.is_sparse or np.can_cast(source.dtype, np.float32) else 8,
            dense=not source.is_sparse,
            n_occurring=self._n_occurring,
        )
        return MemoryModel(
            n_clusters=self.n_clusters,
            rows=rows,
            reading=reading_of(source, 1, 0, n_chunks=0, on_cluster=on_cluster),
            chosen=first,
            coreset_rows=default_size(self.n_clusters),
            fitted=self.found,
            directions=n_directions(kind, n_components, self.n_clusters) if self.streamed else 0,
            sums_bytes=source.sums_bytes,
            once=self.once,
            labels=gathers_labels,
        )

    def regimes(self, sample_rows: int) -> dict[ClusterOn, str]:
        """What k-means may run on, best first, and why, where memory has room for a sample of so many rows."""
        regimes = self._regimes(sample_rows)
        if self.source.estimated_rows is None and regimes.pop("blocks", None) is not None:
            # whether memory holds them is not known
            regimes = {"spilled": regimes.pop("spilled"), **regimes}
        return regimes

    def serves(self, sample_rows: int) -> bool:
        """Whether centers may be found on a sample of so many rows alone."""
        return sample_rows >= self._serving_sample

    def clusters_all(self, sample_rows: int) -> bool:
        """Whether all rows are clustered, and not the sample, where memory holds them sketched.

        Wide dense ones are, along directions found on a few rows read ahead, and wide sparse ones. That takes no pass
        more, and time in proportion to that of a pass.
        """
        source = self.source
        if self.coreset != "auto" or self.once:
            return False
        if self.found:
            along = not self.sketch_answers.needs_polishing and not self.streamed and not source.streams
            n_rows = source.n_rows if along else None
        else:
            n_rows = source.estimated_rows if self._is_polished and source.is_sparse else None
        return n_rows is not None and sample_rows < n_rows <= MOST_PROJECTED * self.wanted_sample

    @property
    def _is_polished(self) -> bool:
        """Whether centers are found in a sketch, and polished on the sample in the original space."""
        return not self.sketch_answers.is_identity and self.options.assign_space != "sketch"

    def _sampled(self, sample_rows: int, spilled: str) -> dict[ClusterOn, str]:
        """The row sample, where it serves or was asked for."""
        found = self.coreset != "uniform" and not self.streamed
        why_sample = "on the row sample" + (", which its directions are found on" if found else "")
        if self.coreset == "uniform" or self.serves(sample_rows):
            return {"sample": why_sample}
        why = f"on all sketched rows: memory has no room for {SERVING_PER_CLUSTER} sampled rows a cluster"
        return {"blocks": why, "spilled": why + spilled}

    def _regimes(self, sample_rows: int) -> dict[ClusterOn, str]:
        """The same, of rows whose number is known."""
        spilled = "; what memory does not hold of them is written to disk"
        if self.once:
            why = "on all sketched rows, whose labels are the result: the data can be walked once only"
            return {"blocks": why, "spilled": why + spilled}
        if self.coreset == "uniform" or (self.found and self.coreset == "auto"):
            return self._sampled(sample_rows, spilled)
        if self.coreset is None:
            why = "on all sketched rows, as asked for"
            return {"blocks": why, "spilled": why + spilled}
        if self.coreset != "auto":
            return {"coreset": f"on a {self.coreset} coreset of the sketched rows, as asked for"}
        if self._is_polished:
            # a sketch of more rows would only find starts for polishing on the sample: the sample finds them as well
            whole = (self.source.estimated_rows or np.inf) <= sample_rows
            return {"sample": WHOLE if whole else POLISHED}
        as_they_are = self.sketch_answers.is_identity
        kept = "rows, which are kept as they are" if as_they_are else "sketched rows: labels are the sketch's"
        return {
            "blocks": f"on all {kept}",
            "coreset": "on a sensitivity coreset of the sketched rows: all of them would not fit in memory",
            "spilled": f"on all {kept}; a coreset would not fit in memory{spilled}",
        }
