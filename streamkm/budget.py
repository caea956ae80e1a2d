"""What a run will do, decided before the first read: sketch, sizes, passes, bytes.

Pure functions of the source's description and the parameters. May import sources and below; reads no rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from streamkm.errors import InvalidInputError, InvalidParameterError, MemoryLimitError
from streamkm.model import Space
from streamkm.sources.base import ChunkedSource, RowSource

MIB = 1 << 20
SMALLEST_CHUNK_BYTES, LARGEST_CHUNK_BYTES = MIB, 16 * MIB
CHUNKS_WANTED = 16  # of a small source, so that several workers share it
DENSE_IDENTITY = 512  # dense rows up to this width are clustered as they are
SPARSE_COMPONENTS = 2048  # costs no memory for sparse rows; a table of k centers still fits in the second-level cache
DENSE_COMPONENTS = 256
PCA_COMPONENTS, PCA_FEW_CLUSTERS = 64, 128  # twice as many directions for more clusters than that
SAMPLE_ROWS_PER_CLUSTER = 1000  # centers of s sampled rows cost k / s of the objective: 0.1 percent
SMALLEST_SAMPLE_ROWS = 50_000
SAMPLE_BYTES = 256 * MIB
UNKNOWN_ROW_BYTES = 1024
CENTERS_SHARE = 4  # centers in the original space may take a CENTERS_SHARE-th of the available memory
CENTER_COPIES = 6  # centers, table, sums of two runs in flight, their total, means


@dataclass(frozen=True, slots=True)
class Plan:
    """What a fit will do.

    Attributes
    ----------
    source : str
    n_rows : int or None
        Exact, or about; None if only reading can tell.
    n_features : int or None
    stored_bytes : int or None
        Read in one pass.
    passes : int
    counts_first : bool
        Whether one of them comes first and only counts rows, so that weights find theirs.
    chunk_bytes : int
        Decoded bytes of a chunk, about.
    n_chunks : int or None
    sketch : str
        "identity", "countsketch" or "pca".
    n_components : int
    why_sketch : str
    clusters_on : str
        "sample": k-means runs on the row sample; "blocks": on all sketched rows, which are kept.
    sample_rows : int
    assign_space : str or None
        "original" or "sketch"; None: decided when the number of features is known.
    memory : dict of str to int
        Projected bytes of each part at its peak, for the parts that grow with the data.
    available_bytes : int
    """

    source: str
    n_rows: int | None
    n_features: int | None
    stored_bytes: int | None
    passes: int
    counts_first: bool
    chunk_bytes: int
    n_chunks: int | None
    sketch: str
    n_components: int
    why_sketch: str
    clusters_on: Literal["sample", "blocks"]
    sample_rows: int
    assign_space: Space | None
    memory: dict[str, int]
    available_bytes: int

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        total = None if self.stored_bytes is None else self.stored_bytes * self.passes
        memory = ", ".join(f"{name} {_human(size)}" for name, size in self.memory.items())
        return [
            ("data", self.source),
            ("rows", "known after the first pass" if self.n_rows is None else f"about {self.n_rows:,}"),
            ("features", "known after the first pass" if self.n_features is None else f"{self.n_features:,}"),
            ("chunks", f"{'unknown number' if self.n_chunks is None else self.n_chunks} of {_human(self.chunk_bytes)}"),
            ("sketch", f"{self.sketch}, {self.n_components:,} components: {self.why_sketch}"),
            ("row sample", f"up to {self.sample_rows:,} rows"),
            ("clustering", "on all sketched rows" if self.clusters_on == "blocks" else "on the row sample"),
            ("assignment", f"in the {self.assign_space or 'original'} space"),
            ("passes", str(self.passes)),
            (
                "bytes read",
                "unknown" if total is None else f"{_human(total)} ({self.passes} x {_human(total // self.passes)})",
            ),
            (
                "memory",
                f"{memory}; {_human(sum(self.memory.values()))} in all of {_human(self.available_bytes)} available",
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


def plan_fit(
    source: RowSource,
    *,
    n_clusters: int,
    sketch: str,
    n_components: int | str,
    refine: int,
    assign_space: Space | Literal["auto"],
    chunk_bytes: int | str,
    weighted: bool = False,
) -> Plan:
    """Decide how a fit will go, from what is known without reading.

    Raises
    ------
    InvalidInputError
        If the source cannot be walked as often as needed.
    InvalidParameterError
        If a parameter does not fit the data.
    MemoryLimitError
        If the projected memory exceeds what is available.
    """
    n_rows, row_bytes = source.estimated_rows, decoded_row_bytes(source)
    decoded = None if n_rows is None else n_rows * row_bytes
    size = chunk_size(decoded) if chunk_bytes == "auto" else int(chunk_bytes)
    kind, components, why = choose_sketch(source, sketch, n_components, n_clusters)
    sample_rows = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * n_clusters)
    sample_rows = max(n_clusters, min(sample_rows, SAMPLE_BYTES // max(1, row_bytes)))
    available = available_memory()
    space = None if assign_space == "auto" else assign_space
    if space is None and source.n_features is not None:
        space = choose_space(source.n_features, n_clusters, available)
    # a sketch of all rows would only find starts for polishing on the sample: the sample finds them as well
    clusters_on: Literal["sample", "blocks"] = "sample"
    if kind == "identity" or (assign_space == "sketch" and kind != "pca"):
        clusters_on = "blocks"
    memory = {"chunks": 4 * size}
    if n_rows is not None:
        held_rows = n_rows if clusters_on == "blocks" else min(n_rows, sample_rows)
        memory["blocks"] = held_rows * (8 + block_row_bytes(source, row_bytes, components))
        memory["row sample"] = 2 * min(n_rows, sample_rows) * row_bytes
        memory["labels"] = 4 * n_rows
    width = components if space == "sketch" else source.n_features or components
    memory["centers"] = CENTER_COPIES * 8 * n_clusters * width
    # a source that only streams is counted as it comes; a chunk of text does not know its first row's number
    counts_first = weighted and source.n_rows is None and isinstance(source, ChunkedSource)
    plan = Plan(
        source.name,
        n_rows,
        source.n_features,
        source.n_bytes,
        2 + refine + counts_first,
        counts_first,
        size,
        len(source.chunks(size)) if isinstance(source, ChunkedSource) else None,
        kind,
        components,
        why,
        clusters_on,
        sample_rows,
        space,
        memory,
        available,
    )
    if not source.replayable:
        raise InvalidInputError(
            f"{source.name} can be walked once only and a fit needs {plan.passes} passes; "
            "pass a list of chunks, or a function that returns a fresh iterator"
        )
    if sum(memory.values()) > available:
        raise MemoryLimitError(
            f"the fit needs about {_human(sum(memory.values()))} ({plan.lines()[-1][1]}); "
            "use fewer n_components, or cluster a part of the rows"
        )
    return plan


def chunk_size(decoded_bytes: int | None) -> int:
    """Decoded bytes of a chunk for a source of so many decoded bytes: the same whatever the machine."""
    if decoded_bytes is None:
        return LARGEST_CHUNK_BYTES // 2
    return int(min(LARGEST_CHUNK_BYTES, max(SMALLEST_CHUNK_BYTES, decoded_bytes // CHUNKS_WANTED)))


def decoded_row_bytes(source: RowSource) -> int:
    """Bytes of a row in memory, about."""
    if not source.is_sparse and source.n_features is not None:
        return max(1, source.n_features * source.dtype.itemsize)
    if isinstance(source, ChunkedSource) and source.estimated_rows:
        decoded = sum(chunk.n_bytes for chunk in source.chunks(LARGEST_CHUNK_BYTES))
        return max(1, decoded // source.estimated_rows)
    return UNKNOWN_ROW_BYTES


def block_row_bytes(source: RowSource, row_bytes: int, n_components: int) -> int:
    """Bytes of a row once sketched, about."""
    if source.is_sparse:
        return min(8 * row_bytes // (4 + source.dtype.itemsize), 4 * n_components)
    itemsize = 4 if np.can_cast(source.dtype, np.float32) else 8
    return itemsize * n_components


def choose_sketch(source: RowSource, sketch: str, n_components: int | str, n_clusters: int) -> tuple[str, int, str]:
    """Kind, m, and the reason in words."""
    d, why = source.n_features, "as asked for"
    if sketch == "auto":
        sketch, why = _auto_sketch(source, n_components)
    if sketch == "identity":
        if d is None:
            raise InvalidParameterError(
                f'sketch="identity" needs the number of features beforehand, which {source.name} does not tell; '
                "pass n_features with the data, or use another sketch"
            )
        if why == "as asked for" and n_components not in ("auto", d):
            raise InvalidParameterError(f'n_components={n_components} with sketch="identity"; needed: "auto" or {d}')
        return sketch, d, why
    if sketch == "pca" and source.is_sparse:
        raise InvalidParameterError(f'sketch="pca" takes dense rows; {source.name} is sparse: use "countsketch"')
    if n_components != "auto":
        return sketch, int(n_components), why
    if sketch == "pca":
        return sketch, PCA_COMPONENTS if n_clusters <= PCA_FEW_CLUSTERS else 2 * PCA_COMPONENTS, why
    return sketch, SPARSE_COMPONENTS if source.is_sparse else DENSE_COMPONENTS, why


def _auto_sketch(source: RowSource, n_components: int | str) -> tuple[str, str]:
    """Kind and reason where the choice is ours."""
    d = source.n_features
    usual = SPARSE_COMPONENTS if source.is_sparse else DENSE_IDENTITY
    enough = usual if n_components == "auto" else int(n_components)
    if d is not None and d <= enough:
        return "identity", f"{'sparse' if source.is_sparse else 'dense'} rows of up to {enough:,} features need none"
    if source.is_sparse:
        return "countsketch", "sparse rows stay sparse, so that many components cost nothing"
    return "pca", "wide dense rows are clustered by the principal directions of the row sample"


def choose_space(n_features: int, n_clusters: int, available_bytes: int) -> Space:
    """Where rows are assigned: in the original space wherever the centers fit."""
    centers_bytes = CENTER_COPIES * 8 * n_clusters * n_features
    return "original" if centers_bytes * CENTERS_SHARE <= available_bytes else "sketch"


def available_memory() -> int:
    """Bytes that this process can still take: the machine's, or what a container leaves."""
    import psutil

    available = int(psutil.virtual_memory().available)
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            with open(limit_file) as limit, open(usage_file) as usage:
                text = limit.read().strip()
                if text != "max":
                    available = min(available, int(text) - int(usage.read()))
        except OSError:
            continue  # no such control group: the machine's memory counts
    return max(0, available)


def _human(n_bytes: int) -> str:
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
