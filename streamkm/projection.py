"""Resident memory of a fit, projected stage by stage from sizes.

Pure arithmetic; what stands for the libraries and for readers was measured. May import model and below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from streamkm.kernels.lanes import LANES
from streamkm.model import Space
from streamkm.sketches.subspace import subspace_bytes

Regime: TypeAlias = Literal["sample", "blocks", "coreset", "spilled"]
MIB = 1 << 20
PCA_ROWS = 10_000  # of the sample, that directions are found on,
PCA_BYTES = 256 * MIB  # and what they may take in float64

LIBRARY_BYTES = 310 * MIB  # Python, NumPy, SciPy, scikit-learn, compiled kernels; what a fresh process holds
LOADING_BYTES = 14 * MIB  # of these, what is not loaded when a fit begins: kernels' code; measured, 6 to 14 MiB
READ_BYTES = 12 * MIB  # a thread that reads: buffers and decoders' threads beyond what goes with its chunk
CANDIDATES = 2.5  # row samples' worth of rows: 1.5 gathered, and one picked from them
SEARCH_COPIES = 12  # of the centers
IN_FLIGHT = 4  # sums of centers joined, being joined and being returned, beyond those that threads work on and ahead


@dataclass(frozen=True, slots=True)
class Needs:
    """Sizes that the projection is made of.

    Attributes
    ----------
    n_rows, sample_rows, n_clusters, n_features, n_components, n_threads : int
    row_bytes, block_row_bytes : int
        Of a row as read, and as sketched.
    sample_floats : int
        Bytes of a sampled row in its original features as floats, where it has to be converted; else 0.
    largest_chunk : int
        Decoded bytes of the largest chunk.
    itemsize : int
        Of products with centers.
    read_factor : float
        Of the source.
    fitted : bool
        Whether the sketch is found on sampled rows.
    n_chunks : int
    coreset_rows : int
        Rows of a coreset, if there is to be one.
    directions : int
        Singular vectors that are found in a pass of their own; 0: none are.
    made_bytes : int
        Of the source.
    """

    n_rows: int
    sample_rows: int
    n_clusters: int
    n_features: int
    n_components: int
    n_threads: int
    row_bytes: int
    block_row_bytes: int
    sample_floats: int
    largest_chunk: int
    itemsize: int
    read_factor: float
    fitted: bool
    n_chunks: int
    coreset_rows: int
    directions: int = 0
    made_bytes: int = 0

    def stages(self, regime: Regime, space: Space, base: int) -> dict[str, int]:
        """Resident bytes of each stage at its peak."""
        reading = self.n_threads * (int(self.read_factor * self.largest_chunk) + READ_BYTES) + self.made_bytes
        kept = min(self.n_rows, self.sample_rows)
        sample, sketched = kept * self.row_bytes, kept * (8 + self.block_row_bytes)
        blocks = self.n_rows * (8 + self.block_row_bytes) if regime == "blocks" else 0
        if regime == "coreset":  # a node of the tree for each doubling of the chunks, two more that are joined
            nodes = min(self.n_chunks, self.n_chunks.bit_length() + self.n_threads + 2)
            blocks = nodes * self.coreset_rows * (16 + self.block_row_bytes)
        fitting = 0
        if self.fitted and not self.directions:
            fitting = 16 * min(kept, pca_rows(self.n_features, self.n_components)) * self.n_features
        stages = {
            "sketch": reading + int(CANDIDATES * sample) + blocks,
            "cluster": sample + sketched + max(fitting, blocks + self.search() + self.steps(self.n_components)),
        }
        if space == "original" and self.n_components != self.n_features:
            floats = kept * self.sample_floats if kept == self.n_rows else 0
            stages["polish"] = sample + sketched + blocks + floats + self.steps(self.n_features)
        width = self.n_features if space == "original" else self.n_components
        n_states = self.n_threads + max(2, self.n_threads // 2) + IN_FLIGHT
        states = n_states * 8 * self.n_clusters * width
        stages["assign"] = blocks + reading + 5 * self.n_rows + states + self.table(width)
        if self.directions:
            state, step, end = subspace_bytes(self.directions, self.n_features)
            stages["directions"] = sample + max(reading + n_states * state + self.n_threads * step, state + end)
        return {name: base + size for name, size in stages.items()}

    def table(self, width: int) -> int:
        """Bytes of centers laid out for kernels."""
        return width * self.itemsize * -(-self.n_clusters // LANES) * LANES

    def search(self) -> int:
        """Bytes of split-and-merge: halves of all clusters, of this round and the last, and centers."""
        return SEARCH_COPIES * 8 * self.n_clusters * self.n_components

    def steps(self, width: int) -> int:
        """Bytes of a Lloyd step beside its rows: centers, sums, means, and the table."""
        return 4 * 8 * self.n_clusters * width + self.table(width)


def pca_rows(n_features: int, n_components: int) -> int:
    """Sampled rows that directions are found on."""
    return max(n_components, min(PCA_ROWS, PCA_BYTES // (8 * n_features)))
