"""Text and string features as rows: `open_documents`, and document frequencies counted in a pass of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.memory import is_given, memory_limit_bytes, resident_bytes, trim_heap
from streamkm.core.progress import Progress, Stage
from streamkm.engine import local_threads, open_executor, under_limit
from streamkm.passes.pass_context import PassContext
from streamkm.passes.prepare import COUNTING_COPIES, CountFeatures
from streamkm.passes.reader import RowReader
from streamkm.planning.memory_budget import MemoryBudget, accepted, reading_of, with_line_limit
from streamkm.sources.chunks import default_chunk_bytes
from streamkm.sources.documents.hashed import TfIdfRows
from streamkm.sources.documents.open_texts import open_texts
from streamkm.sources.row_source import RowSource
from streamkm.text import FeatureHashing, TfIdf
from streamkm.text.tfidf import Frequencies

PARTS = 2  # of the room that a limit leaves: for these rows, and for a long line that no plan knows of
FEWEST_BYTES = 1 << 18  # of rows that are made of documents at a time
COUNTED_BYTES = 56 << 20  # by which counting lets the process grow: 34 to 43 MiB measured, and 16 bytes a feature


def open_documents(
    X: Any,
    *,
    field: str | int | Sequence[str | int] | None = None,
    hashing: FeatureHashing | None = None,
    tfidf: bool | TfIdf = True,
    sublinear_tf: bool = False,
    executor: Any = "auto",
    memory_limit: Any = "auto",
    **options: Any,
) -> RowSource:
    """Open documents as sparse rows, for every method that takes rows: ``StreamKMeans(20).fit(open_documents(...))``.

    Parameters
    ----------
    X : path or object
        - a path or glob, or a list of `pathlib.Path`: lines of text, JSON lines, CSV, all plain or compressed (gzip,
          bzip2, xz, zstd), or Parquet
        - a folder: each file in it and below it is a document, named by its path in the folder; files whose names begin
          with . or _ are left out
        - a sequence of documents in memory (a list of str is that, not a list of paths), an array or series of them
        - an iterable of documents, or a callable that returns an iterator of documents
        - a Dask bag or series of documents, whose partitions are computed one after the other, in each pass
    field : str, int, or a sequence of these
        The field of JSON lines, or the column of CSV (also by number) or Parquet, with the document. Texts of several
        fields are joined; counts become features ``field=value``.
    hashing : FeatureHashing, optional
        The map from documents to rows, and the type of a document: text, list of tokens, or mapping. The default is
        ``FeatureHashing()``; with `sublinear_tf` it is ``FeatureHashing(norm=None)``, which leaves counts as they are.
    tfidf : bool or TfIdf, default=True
        True: `open_documents` counts document frequencies in one pass and weights rows by them. A `TfIdf`: the
        frequencies of earlier documents, from `fit_idf` or from the attribute `tfidf` of their source.
    sublinear_tf : bool, default=False
        Replace a count c by ``1 + log c``, for long documents. With ``tfidf=True``.
    executor : "auto", int or Dask client
        The threads or the cluster that count frequencies.
    memory_limit : "auto", int, float or str
        Memory of this process while it counts frequencies, as for an estimator.
    **options
        Those that are None count as not given.

        format : {"auto", "lines", "files", "jsonl", "csv", "parquet"}
            Format of paths. "auto": by the suffix; lines of text for an unknown suffix. "files": each file is a
            document of plain text, as in a folder.
        id_column : str
            JSON lines, CSV, Parquet: the field or column that names documents, in summaries and tables of labels.
        decode_error : {"strict", "ignore", "replace"}
            Treatment of bytes that are not UTF-8.
        delimiter : str
            CSV; a comma, or a tab for .tsv.
        header : bool
            CSV: whether the first record of every file names its columns; True unless given.

    Returns
    -------
    RowSource
        Of csr_array rows (documents, ``hashing.n_features``), as `hashing` makes them, or weighted, with an attribute
        `tfidf`.

    Raises
    ------
    InvalidParameterError
        An option is unknown or does not apply to X, or a `field` is missing or does not apply.
    InvalidInputError
        No documents; malformed text, with file, line and byte.
    SourceError
        A file cannot be read; SourceNotFoundError where it does not exist.
    MissingDependencyError
        Parquet without pyarrow.

    Notes
    -----
    O(characters) a pass, most of it scikit-learn's tokenizing in Python. A fit of tf-idf rows reads the data three
    times: here, to sketch, and to assign.

    Examples
    --------
    >>> from streamkm import open_documents
    >>> source = open_documents(["red fish", "blue fish", "red sea"])
    >>> [rows.X.shape for rows in source.stream(1 << 20)]
    [(3, 1048576)]
    """
    if sublinear_tf and tfidf is not True:
        raise InvalidParameterError("sublinear_tf needs tfidf=True; weights that are given have their own")
    hashing = hashing or FeatureHashing(norm=None if sublinear_tf else "l2")
    given = {name: value for name, value in options.items() if value is not None}
    source = open_texts(X, field, hashing, given)
    if tfidf is True:
        return count_and_weight(source, executor=executor, memory_limit=memory_limit, sublinear_tf=sublinear_tf)
    return source if tfidf is False else TfIdfRows(source, tfidf)


def count_and_weight(
    source: RowSource, *, executor: Any = "auto", memory_limit: Any = "auto", **weights: Any
) -> TfIdfRows:
    """Rows weighted by their own document frequencies, with the pass that counted them; see `fit_idf`."""
    held, start = resident_bytes(), TfIdf(CountFeatures().start(), **weights)
    TfIdfRows(source, start)  # refuses rows that cannot be weighted
    if not source.access.replayable:
        raise InvalidInputError(
            f"{source.name} can be read only once, and document frequencies take a pass of their own; pass a list or a "
            f"callable that returns a fresh iterator, or tfidf=False"
        )
    frequencies, stage = _counted(source, executor, memory_limit)
    rows = TfIdfRows(source, replace(start, frequencies=frequencies))
    # plans before and after are the same, so a refusal names a sufficient limit
    rows.access = replace(rows.access, unloaded_bytes=max(0, held + COUNTED_BYTES - resident_bytes()))
    rows.origin = replace(rows.origin, stages_before=(*source.origin.stages_before, stage))
    return rows


def fit_idf(source: RowSource, *, executor: Any = "auto", memory_limit: Any = "auto", **weights: Any) -> TfIdf:
    """Count in how many rows each feature occurs: one pass over all rows.

    Parameters
    ----------
    source : RowSource
        Of sparse rows that can be read again, such as ``open_documents(X, tfidf=False)`` or svmlight text.
    executor : "auto", int or Dask client
    memory_limit : "auto", int, float or str
        Of this process, as for an estimator: documents are taken in smaller pieces near it.
    **weights
        `smooth_idf`, `sublinear_tf`, `norm`, as of `TfIdf`.

    Returns
    -------
    TfIdf
        The same whatever the chunks and workers.

    Raises
    ------
    InvalidInputError
        Dense rows, NaN or infinity, no rows, or a source that can be read only once.
    InvalidParameterError
        ``sublinear_tf`` for rows that hashing scales to a norm.
    """
    return count_and_weight(source, executor=executor, memory_limit=memory_limit, **weights).tfidf


def _counted(source: RowSource, executor: Any, memory_limit: Any) -> tuple[Frequencies, Stage]:
    """Counts of features, and the pass that they take."""
    target_bytes = default_chunk_bytes(source)

    def planned(below: Any) -> tuple[int, int]:
        budget = MemoryBudget.of(below, source)
        room = budget.limit_bytes - max(resident_bytes(), budget.base_bytes)
        piece_bytes = min(target_bytes, max(FEWEST_BYTES, room // PARTS // COUNTING_COPIES))
        reading = reading_of(source.access, 1, piece_bytes).peak(CountFeatures.memory(piece_bytes))
        return piece_bytes, budget.base_bytes + reading

    if is_given(memory_limit):  # frequencies do not depend on the pieces
        target_bytes, peak = accepted(planned, memory_limit)
        source = with_line_limit(source, memory_limit, peak, target_bytes, local_threads(executor))
    reader = RowReader(source, target_bytes, "euclidean", "raise")
    n_chunks = len(source.chunks(target_bytes)) or None
    with under_limit(memory_limit), open_executor(executor) as workers, Progress().stage("idf", n_chunks) as stage:
        trim_heap(memory_limit_bytes(memory_limit))
        counted = PassContext(executor=workers, reader=reader).run(CountFeatures(), stage)
        stage.rows, stage.read_bytes = counted.n_rows, source.n_bytes or 0
    return counted, stage
