"""Resident memory of a fit, projected stage by stage from sizes.

Pure arithmetic; what stands for readers was measured, and `process` measures what the process holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from streamkm.cluster.centers.cells import cells_bytes
from streamkm.cluster.centers.index import FEWEST_CENTERS, held_index_bytes, index_bytes
from streamkm.cluster.centers.neighbours import held_neighbours_bytes, neighbours_bytes
from streamkm.cluster.model import Space
from streamkm.cluster.normalization import MOST_FEATURES
from streamkm.cluster.profile import profile_bytes
from streamkm.engine.reduction import FEW_RUNS, RUNS, count_levels, count_runs, run_length
from streamkm.engine.threads import STATES_AHEAD
from streamkm.kernels.intrinsics.lanes import LANES
from streamkm.sketches.subspace import subspace_bytes

ClusterOn: TypeAlias = Literal["sample", "blocks", "coreset", "spilled"]
MIB = 1 << 20
PCA_ROWS = 10_000  # of the sample, that directions are found on,
PCA_BYTES = 256 * MIB  # and what they may take in float64

READ_BYTES = 8 * MIB  # a thread that reads: kernels, buffers, decoders' threads beyond what goes with its chunk
CANDIDATES = 2.5  # row samples' worth of rows: 1.5 gathered, and one picked from them
LABEL_BYTES = 5  # of a row whose label is gathered: it, and what is being looked at
SEARCH_COPIES = 12  # of the centers
STEP_CENTERS = 3  # of many clusters, while a step gathers sums: those it began with, means of the last, those to start
PORTION_SETS, PORTION_ROW_BYTES = 1.5, 128  # of rows that starts are searched on in portions: rows, and numbers of each
SPILLED_COPIES = 3  # of a spilled block that a thread reads: the file, its arrays, rows drawn from it
SEARCH_SETS = 5  # of rows that starts are searched on: drawn, joined, shuffled, around their mean
ALL_SETS = 4  # of all rows in blocks, where starts are searched on them, or on most as clusters are split later
DRAWING_BYTES = 22 * MIB  # what each thread leaves that draws them, two at most; measured
FRAME_ROWS = 6  # of float64, while it is looked where the data lie
STEP_LABELS = 3  # labels of a row in a step of Lloyd's algorithm with many centers: the last, the new, one of a sum
LAYOUT_ROWS = 3  # of float64, while centers are laid out
IN_FLIGHT = 4  # sums of centers joined, being joined and being returned, beyond those that threads work on and ahead
TOLD_COPIES = 3  # of what a call of a worker tells the client: arriving, being taken, and the next one's
STREAM_PIECES = 2  # of a source that streams, beside those that wait for threads: one being made of another
CHECK_COPIES = 6  # of drawn rows, while it is looked what could be gained
CHECK_CENTERS = 22  # copies of the centers meanwhile, measured: means, sums, halves of all clusters twice, layouts
ROUND_COPIES = 3  # of sampled and drawn rows as floats, where clusters are looked for once more
DRAWN_SLACK = 1.25  # of rows that a call may draw; see `passes.draw`
DRAWN_ROW_BYTES = 256  # of a row, while a coreset is drawn from it and others: distances, draws, shares, orders
PICKED_ROW_BYTES = 40  # of a row that may come into the sample: its key and number, and the order of all keys
PLACED_ROW_BYTES = 16  # of a row of a coreset: its weight and its place


def reading_bytes(
    n_threads: int, read_factor: float, largest_chunk: int, *, streams: bool = False, producer_bytes: int = 0
) -> int:
    """Bytes of a pass over rows, beside what it keeps; see `RowSource` for what a source says of itself."""
    pieces = (waiting_calls(n_threads) + STREAM_PIECES) * largest_chunk if streams else 0
    return n_threads * (int(read_factor * largest_chunk) + READ_BYTES) + pieces + producer_bytes


def waiting_calls(n_threads: int) -> int:
    """Calls that have been started and whose results have not been taken yet; see `engine.base`."""
    return n_threads + max(2, n_threads // 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """Sizes that the projection is made of."""

    n_rows: int
    sample_rows: int
    n_clusters: int
    n_features: int
    n_components: int
    n_threads: int
    # of a row as read, and as sketched
    row_bytes: int
    block_row_bytes: int
    # bytes of a sampled row in its original features as floats, where it has to be converted; else 0
    sample_floats: int
    largest_chunk: int  # decoded bytes of the largest chunk
    itemsize: int  # of products with centers
    read_factor: float  # of the source
    fitted: bool  # whether the sketch is found on sampled rows
    n_chunks: int
    coreset_rows: int  # rows of a coreset, if there is to be one
    directions: int = 0  # singular vectors that are found in a pass of their own; 0: none are
    producer_bytes: int = 0  # of the source
    streams: bool = False  # whether the source only streams: pieces wait for threads
    sequential: bool = False  # of the source
    once: bool = False  # whether it can be walked once only: labels are those of the sketched rows that are kept
    labels: bool = True  # whether labels are gathered in this process
    shared_bytes: int = 0  # of the source
    drawn_rows: int = 0  # that a call draws in the pass that assigns rows
    keeps_sample: bool = False  # whether the row sample is kept through that pass
    sums_bytes: int = 0  # of sums that a pass before gathers, by which rows are prepared; 0: there is none
    # whether rows are dense where they are clustered and assigned: many centers then have an index and neighbours
    dense: bool = False
    searched_rows: int = 0  # rows that starts are searched on, where these are drawn from all that are held
    n_portions: int = 1  # of the rows that starts are searched on, one after the other
    on_cluster: bool = False  # whether workers of a Dask cluster read, and tell this process what they found
    n_occurring: int = 0  # features that occur, about, which the first pass notes; 0: any may

    @property
    def center_features(self) -> int:
        """Features of centers in the original space."""
        return self.n_occurring or self.n_features

    @property
    def many(self) -> bool:
        """Whether there are so many centers of dense rows that most are not looked at."""
        return self.dense and self.n_clusters >= FEWEST_CENTERS

    def stages(self, cluster_on: ClusterOn, space: Space, base: int, room: int = 0) -> dict[str, int]:
        """Resident bytes of each stage at its peak.

        `base`: what the process holds beside data. `room`: what spilled blocks may take in memory.
        """
        reading, waiting = self._reading(), waiting_calls(self.n_threads)
        kept = min(self.n_rows, self.sample_rows)
        sample, sketched = kept * self.row_bytes, kept * (8 + self.block_row_bytes * (not self.as_they_are))
        gathering = kept_blocks = 0
        searched = kept if cluster_on == "sample" else self.n_rows
        if cluster_on == "blocks":
            gathering = kept_blocks = self.n_rows * (8 + self.block_row_bytes)
        elif cluster_on == "spilled":
            kept_blocks = room + SPILLED_COPIES * self.n_threads * self._block_bytes()
            gathering = room + waiting * self._block_bytes()
        elif cluster_on == "coreset":
            gathering, kept_blocks = self._coreset_bytes()
            searched = min(self.coreset_rows, self.n_rows)
        fitting = 0
        if self.fitted and not self.directions:
            fitting = 2 * self.itemsize * min(kept, pca_rows(self.n_features, self.n_components)) * self.n_features
        stages = {
            "sketch": reading
            + self._told(cluster_on)
            + int(CANDIDATES * kept * (self.row_bytes + PICKED_ROW_BYTES))
            + gathering,
            "cluster": sample
            + sketched
            + self.framing()
            + self.producer_bytes * self.many  # a reader's library does not give all of it back: 31 MiB measured
            + max(fitting, self.maps(), kept_blocks + self._iterating(cluster_on, searched)),
        }
        if space == "original" and self.n_components != self.n_features:
            floats = kept * self.sample_floats if kept == self.n_rows else 0
            stages["polish"] = sample + sketched + kept_blocks + floats + self.steps(self.center_features)
        width = self.center_features if space == "original" else self.n_components
        n_states = waiting + IN_FLIGHT
        centers = 8 * self.n_clusters * width
        states = (self.states(centers) if self.many else n_states) * (centers + profile_bytes(self.n_clusters))
        rows = kept_blocks if self.once else reading
        rows += int(n_states * DRAWN_SLACK * self.drawn_rows * self.row_bytes) + sample * self.keeps_sample
        best = centers if self.drawn_rows else 0  # those of the best pass before
        stages["assign"] = rows + LABEL_BYTES * self.n_rows * self.labels + states + self.table(width) + best
        if self.many:
            stages["assign"] += max(centers + sample + self.near(width, held=True), self.near(width) - states)
        else:
            stages["assign"] += self.near(width)
        if self.drawn_rows:
            looked_at = self.drawn_rows * (self.row_bytes + CHECK_COPIES * self._double_row(space))
            # what was the sample's may not have been given back
            centers = CHECK_CENTERS * 8 * self.n_clusters * width + self.table(width)
            stages["check"] = sample + looked_at + centers + LABEL_BYTES * self.n_rows * self.labels
        if self.keeps_sample:
            n_searched = kept + self.drawn_rows + self.n_clusters  # with a mean of each cluster
            floats = n_searched * self._float_row(space)
            stages["search"] = sample + ROUND_COPIES * floats + self.search(n_searched) + self.steps(width)
            stages["search"] += LABEL_BYTES * self.n_rows * self.labels
        if self.sums_bytes:
            stages["prepare"] = reading + n_states * self.sums_bytes
        if self.directions:
            state, step, end = subspace_bytes(self.directions, self.n_features)
            stages["directions"] = sample + max(reading + n_states * state + self.n_threads * step, state + end)
        return {name: base + size for name, size in stages.items()}

    def _iterating(self, cluster_on: ClusterOn, n_rows: int) -> int:
        """Bytes of the search for centers on so many rows, beside these."""
        in_blocks = cluster_on in ("blocks", "spilled")
        searching = self.search(n_rows)
        if in_blocks and self.sample_rows < n_rows <= self.searched_rows:
            searching += ALL_SETS * n_rows * (PLACED_ROW_BYTES + self.block_row_bytes)
        if self.many:  # what was searched is given back
            return max(searching, self.steps(self.n_components, in_blocks=in_blocks))
        return searching + self.steps(self.n_components)

    def _float_row(self, space: Space) -> int:
        """Bytes of a row as floats, where it is assigned."""
        return self.block_row_bytes if space == "sketch" else max(self.row_bytes, self.sample_floats)

    def _double_row(self, space: Space) -> int:
        """The same in float64, dense rows."""
        floats = self._float_row(space)
        return floats * 8 // self.itemsize if floats >= self.itemsize * self.n_features else floats

    def _reading(self) -> int:
        """Bytes of a pass over the rows, beside what it keeps."""
        given = (self.n_threads, self.read_factor, self.largest_chunk)
        return reading_bytes(*given, streams=self.streams, producer_bytes=self.producer_bytes)

    def _told(self, cluster_on: ClusterOn) -> int:
        """Bytes of what calls of workers tell in the first pass: candidates for the sample, and parts of a coreset."""
        if not self.on_cluster:
            return 0
        told = min(self.n_rows, self.sample_rows) / max(1, self.n_chunks) * (self.row_bytes + PICKED_ROW_BYTES)
        if cluster_on == "coreset":
            told += min(self.coreset_rows, self._chunk_rows()) * (PLACED_ROW_BYTES + self.block_row_bytes)
        return int(TOLD_COPIES * run_length(self.n_chunks, RUNS) * told)

    def _chunk_rows(self) -> int:
        """Rows of a chunk, about."""
        return max(1, self.largest_chunk // self.row_bytes)

    def _block_bytes(self) -> int:
        """Of a chunk, sketched."""
        return self._chunk_rows() * (8 + self.block_row_bytes)

    def _coreset_bytes(self) -> tuple[int, int]:
        """Of a coreset while it is gathered, and when it is there.

        A part of each chunk, that threads make or that waits; a node of the tree for each doubling of the chunks, none
        larger than the coreset; two of them that are joined, beside a copy of their rows.
        """
        row = PLACED_ROW_BYTES + self.block_row_bytes
        size, chunk_rows = self.coreset_rows, self._chunk_rows()
        leaf = min(size, chunk_rows)
        n_levels = self.n_chunks.bit_length()
        nodes = sum(min(size, leaf << level) for level in range(n_levels))
        drawing = self.n_threads * chunk_rows * (DRAWN_ROW_BYTES + self.block_row_bytes) if chunk_rows > size else 0
        joined = min(2 * size, self.n_rows)
        joining = joined * (2 * row + (DRAWN_ROW_BYTES if joined > size else 0))
        waiting = waiting_calls(self.n_threads) * leaf
        return (nodes + waiting) * row + drawing + joining, min(size, self.n_rows) * (row + 8)

    def table(self, width: int) -> int:
        """Bytes of centers laid out for kernels."""
        return width * self.itemsize * -(-self.n_clusters // LANES) * LANES

    def framing(self) -> int:
        """Bytes of a look at where the data lie: of dense rows, and of sparse ones that may be moved."""
        looks = self.fitted or self.n_features <= MOST_FEATURES
        return FRAME_ROWS * 8 * self.n_features if looks else 0

    def maps(self) -> int:
        """Bytes of directions laid out for kernels, by each thread that projects rows on them."""
        padded = -(-self.n_components // LANES) * LANES
        return self.n_threads * self.itemsize * self.n_features * padded if self.fitted else 0

    def search(self, n_rows: int) -> int:
        """Bytes of split-and-merge: rows drawn from those held, halves of clusters, of two rounds, and centers."""
        if self.n_portions > 1:
            k, rows = -(-self.n_clusters // self.n_portions), -(-min(self.searched_rows, n_rows) // self.n_portions)
            found = 8 * self.n_clusters * self.n_components + 2 * n_rows  # beside labels of coarse clusters
            found += rows * int(PORTION_SETS * self.block_row_bytes + PORTION_ROW_BYTES)
            near = max(index_bytes(k, self.n_components, 1), neighbours_bytes(k, self.n_components, self.n_threads))
            return found + SEARCH_COPIES * 8 * k * self.n_components + near
        drawn = self.searched_rows if self.searched_rows < n_rows else 0
        searched = SEARCH_SETS * drawn * (PLACED_ROW_BYTES + self.block_row_bytes) + DRAWING_BYTES * min(
            2, self.n_threads
        ) * (drawn > 0)
        return SEARCH_COPIES * 8 * self.n_clusters * self.n_components + searched

    def steps(self, width: int, *, in_blocks: bool = False) -> int:
        """Bytes of a Lloyd step beside its rows: centers, sums, means, the table, and where it is laid out around."""
        centers, table = 8 * self.n_clusters * width, self.table(width) + LAYOUT_ROWS * 8 * width
        if not self.many:
            return 4 * centers + table
        sums = self.states(centers) if in_blocks else 2
        labels = (STEP_LABELS - in_blocks) * 4 * self.n_rows
        gathering = STEP_CENTERS * centers + sums * centers + self.near(width, held=True)
        return max(gathering, STEP_CENTERS * centers + self.near(width)) + table + labels

    def states(self, state_bytes: int) -> int:
        """Sums that are there at a time in a fold over chunks: being gathered, or waiting to be joined."""
        is_large = state_bytes > self.largest_chunk
        each = self.streams or (self.sequential and not is_large)
        n_runs = self.n_chunks if each else count_runs(self.n_chunks, FEW_RUNS if is_large else RUNS)
        return self.n_threads + STATES_AHEAD + count_levels(n_runs)

    def near(self, width: int, *, held: bool = False) -> int:
        """Bytes of the index of many centers: while it is made, or once it is."""
        if not self.many:
            return 0
        given = (self.n_clusters, width, self.n_threads)
        cells = cells_bytes(*given[:2])
        if held:
            return max(held_index_bytes(*given), cells, held_neighbours_bytes(*given))
        return max(index_bytes(*given), cells, neighbours_bytes(*given))

    @property
    def as_they_are(self) -> bool:
        """Whether sampled rows are clustered as they are, and not copied."""
        same = self.n_components == self.n_features and self.block_row_bytes == self.row_bytes
        return self.dense and same and not self.fitted and not self.sample_floats


def pca_rows(n_features: int, n_components: int) -> int:
    """Sampled rows that directions are found on."""
    return max(n_components, min(PCA_ROWS, PCA_BYTES // (8 * n_features)))
