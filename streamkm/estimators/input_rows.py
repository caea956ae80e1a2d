"""Rows that users give: opening, validation, comparison with those of the fit; and the checkpoint of a fit."""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from streamkm.cluster.rows import NO_WEIGHTS
from streamkm.core.exceptions import ClusterError, InvalidInputError, StreamkmWarning
from streamkm.core.matrix import MASKED_ROWS, check_unmasked, is_sparse, with_nan
from streamkm.core.memory import given_process_memory, is_given, with_process_memory
from streamkm.engine.checkpoint import PROCESS, Checkpoint, CheckpointWriter, load_record, saved_stages
from streamkm.estimators.validation import OF_THIS_RUN, Weights, check_weights, digest, given_start, is_in_memory, plain
from streamkm.passes.reader import Invalid
from streamkm.planning.plan import Plan
from streamkm.preparation import Preparation
from streamkm.sketches.options import OPTIONS, full_options
from streamkm.sources import open_source
from streamkm.sources.chosen_columns import ChosenColumns
from streamkm.sources.documents.hashed import HashedText, TfIdfRows
from streamkm.sources.fingerprints import fingerprint
from streamkm.sources.fitted_tables import options_for, table_options
from streamkm.sources.frames import (
    check_names_once,
    check_same_columns,
    column_names,
    is_frame,
    is_read_by_column,
    order_of,
    without_index,
)
from streamkm.sources.memory.arrays import open_array
from streamkm.sources.memory.iterables import IterableSource
from streamkm.sources.row_source import RowSource

_ENCODE = 'a frame X as open_source(X, categories="onehot")'


def _reason(X: Any, name: str) -> str | None:
    """The first value that Python does not read as a number, and its place; None if there is none."""
    X = X if is_frame(X) or sp.issparse(X) else np.asarray(X)
    columns = X.columns if is_frame(X) else range(X.shape[1] if X.ndim == 2 and X.dtype.kind in "OUS" else 0)
    for column in columns:
        values = np.asarray(X[column] if is_frame(X) else X[:, column])
        place = f"column {column!r} of the {name}"
        if values.dtype.kind in "Mm":
            remedy = 'Drop or convert that column, or read days: open_source(X, dates="days")'
            return f"{place} has type {values.dtype}; features must be numbers. {remedy}"
        for row, value in enumerate(values.astype(object) if values.dtype.kind in "OUS" else ()):
            try:
                float(np.nan if value is None else value)  # as NumPy has it
            except (TypeError, ValueError) as error:
                shown = ("the text " if isinstance(value, str) else "") + reprlib.repr(value)
                needed = f"features must be numbers ({str(error).split(':')[0]})"
                return f"{place} contains {shown} in row {row:,}; {needed}. Drop or encode that column: {_ENCODE}"
    return None


def preparation_for(estimator: Any, source: RowSource) -> Preparation | None:
    """The steps that rows of a source go through, to be found, with filling first; None if there are no steps."""
    made = Preparation.of(estimator.preprocess, source.feature_names, source.n_features, source.name)
    made = made.after_fill() if estimator.invalid == "mean" else made
    return made if made.steps else None


def read_invalid(estimator: Any) -> Invalid:
    """Treatment of invalid rows that are prepared: after filling, only later steps make NaN."""
    return "raise" if estimator.invalid == "mean" else estimator.invalid


def open_rows(estimator: Any, X: Any, *, reset: bool | None, ids: bool = False) -> RowSource:
    """Open X, with ids of rows for `ids`; `reset`: True keeps feature names, False compares them, None does neither."""
    if estimator.invalid != "raise":
        X = with_nan(X)
    options = _options_of_fit(estimator, X, ids=ids) if reset is False else {}
    known = vars(estimator).get("feature_names_in_") if reset is False else None
    X = open_source(X, **options) if options else without_index(X, known)
    if reset is False and isinstance(X, HashedText | TfIdfRows):
        X = _weighted_as_fit(estimator, X)
    if not is_in_memory(X) or (is_frame(X) and is_read_by_column(X)):
        named = bool(options) or not (is_frame(X) or hasattr(type(X), "var_names"))  # of AnnData
        source = open_source(X)
        return source if reset is None else _with_known_names(estimator, source, reset=reset, named=named)
    checks: dict[str, Any] = {"accept_sparse": "csr", "accept_large_sparse": True, "ensure_all_finite": False}
    name, names = "data frame" if is_frame(X) else None, column_names(X)
    if name is not None:
        check_names_once(X.column_names if hasattr(X, "column_names") else X.columns, name)
    if estimator.invalid == "raise":
        check_unmasked(X, name or "array", MASKED_ROWS)
    try:
        if reset is None:
            made = check_array(X, dtype="numeric", **checks)
        else:
            made = validate_data(estimator, X, reset=reset, dtype="numeric", **checks)
        source = open_source(made) if name is None or is_sparse(made) else open_array(made, name=name)
    except (ValueError, TypeError) as error:  # scikit-learn says which value, and not where
        reason = _reason(X, name or "array")
        if reason is None:
            raise
        raise (TypeError if isinstance(error, TypeError) else InvalidInputError)(reason) from None
    if names is not None:
        source.feature_names = names  # scikit-learn has made an array of the frame
    return source


def _weighted_as_fit(estimator: Any, source: HashedText | TfIdfRows) -> RowSource:
    """Weight later documents by the document frequencies of the fit, or leave them unweighted as the fit did."""
    made = vars(estimator).get("fitted_on_", {}).get("made_with", {})
    weights, given = made.get("tfidf"), None if source.tfidf is None else source.tfidf.digest()
    if weights == given or not {"documents", "tfidf"} & made.keys():
        return source
    rows = source.source if isinstance(source, TfIdfRows) else source
    if weights is None:
        return rows
    if estimator.tfidf_ is None:
        wrong = f"{source.name}: documents are not weighted by the frequencies of the fit, which the model lacks"
        raise InvalidInputError(f"{wrong}; pass tfidf= those of the fit to open_documents")
    return TfIdfRows(rows, estimator.tfidf_)


def _options_of_fit(estimator: Any, X: Any, *, ids: bool) -> dict[str, Any]:
    """Options that open a later table as that of the fit, if it needs any."""
    known = vars(estimator).get("feature_names_in_", ())
    fitted_on = vars(estimator).get("fitted_on_", {})
    options = table_options(fitted_on.get("made_with"), fitted_on.get("id_column"))
    if is_frame(X) and "dates" not in options and column_names(without_index(X, known)) == tuple(known):
        return {}
    return options_for(options, X, ids=ids) if options else {}


def _with_known_names(estimator: Any, source: RowSource, *, reset: bool, named: bool) -> RowSource:
    """Keep a source's names of columns, or compare them with those kept; `named`: they may come in another order."""
    names: Any = source.feature_names
    known = vars(estimator).get("feature_names_in_")
    if reset:
        vars(estimator).pop("feature_names_in_", None)
        if names is not None:
            estimator.feature_names_in_ = np.array(names, object)
    elif names is not None and known is None:
        text = f"{source.name} has feature names, but {type(estimator).__name__} was fitted without feature names"
        warnings.warn(f"{text}: the order of columns cannot be checked", StreamkmWarning, stacklevel=4)
    elif names is not None:
        # a frame or AnnData object must have the columns of the fit in their order, as scikit-learn has it
        by_name = (not source.access.streams or isinstance(source, IterableSource)) and not source.computed and named
        order = (order_of if by_name else check_same_columns)(names, tuple(known), source.name, "the fit")
        if order is not None and not source.access.streams:
            return ChosenColumns(source, order.tolist())
        source.feature_names = tuple(known)  # by which an iterable reads each of its chunks
    return source


def described(source: RowSource) -> dict[str, Any]:
    """JSON values in a model that describe the rows of its fit."""
    return {
        "name": source.name,
        "files": list(map(str, source.origin.files)),
        "stored_bytes": source.n_bytes,
        "dtype": str(source.dtype),
        "sparse": source.is_sparse,
        **({"made_with": dict(source.origin.made_with)} if source.origin.made_with else {}),
        **({"id_column": source.origin.id_column} if source.origin.id_column else {}),
    }


def open_weighted(
    estimator: Any, X: Any, sample_weight: Any, *, reset: bool | None, ids: bool = False
) -> tuple[RowSource, Weights]:
    """Open X, and the weights of its rows."""
    source = open_rows(estimator, X, reset=reset, ids=ids)
    weights = check_weights(sample_weight)
    weights.check_rows(source.n_rows, source.name)
    return source, weights


def limit_of_run(estimator: Any, directory: Any) -> Any:
    """The estimator's `memory_limit`; for a continued run, with the memory of the process that began it."""
    limit = estimator.memory_limit
    if directory is None or not is_given(limit) or given_process_memory(limit) is not None:
        return limit
    is_begun = isinstance(directory, Checkpoint) or saved_stages(directory)
    begun = load_record(Path(directory), PROCESS) if is_begun else None
    return limit if begun is None else with_process_memory(limit, int(begun[1]["bytes"]))


@contextmanager
def checkpoint_writer(
    estimator: Any,
    source: RowSource,
    checkpoint: str | os.PathLike[str] | Checkpoint | None,
    plan: Plan | None,
    weights: NDArray[np.float64] = NO_WEIGHTS,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[CheckpointWriter]:
    """Begin or continue the checkpoint of a fit, or of an update, which has no `plan`; remove its directory at the end.

    See `Checkpoint.open`.
    """
    if checkpoint is None or isinstance(checkpoint, Checkpoint):
        yield CheckpointWriter(checkpoint)
        return
    # a fit is the same for equal source files, parameters, `more` settings, and sizes that were chosen by them
    apart = (*OF_THIS_RUN, "progress", "memory_limit")
    given = {name: value for name, value in estimator.get_params().items() if name not in apart}
    init = given_start(given["init"])
    given["init"] = digest(init) if isinstance(init, np.ndarray) else init
    settings = {name: plain(full_options(name, value) if name in OPTIONS else value) for name, value in given.items()}
    chosen = ("chunk_bytes", "sketch", "n_components", "cluster_on", "sample_rows", "assign_space")
    settings |= {} if plan is None else {f"chosen {name}": getattr(plan, name) for name in chosen}
    seed = int(estimator.random_state) if isinstance(estimator.random_state, Integral) else None
    settings |= {"random_state": seed, "weights": digest(weights), **more}
    identity, restart = {"source": fingerprint(source), "settings": settings}, not saved_stages(checkpoint)
    with Checkpoint.open(checkpoint, identity, restart=restart) as saved:
        if plan is not None and is_given(estimator.memory_limit) and saved.load(PROCESS) is None:
            saved.save(PROCESS, {}, {"bytes": plan.process_memory})
        try:
            yield CheckpointWriter(saved)
        except BaseException as error:
            if not saved_stages(checkpoint):
                saved.discard()
            elif isinstance(error, ClusterError):
                raise ClusterError(
                    f"{error}; what was done is kept in {os.fspath(checkpoint)}: the same fit with this checkpoint, or "
                    f"streamkm fit --resume, goes on from there, on another cluster or on none, to the same result"
                ) from error
            raise
        saved.complete()
