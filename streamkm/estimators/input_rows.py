"""The rows that users give to an estimator: opened, validated, their features compared with those of the fit."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array
from sklearn.utils.validation import validate_data

from streamkm.core.exceptions import InvalidInputError, StreamkmWarning
from streamkm.core.matrix import MASKED_ROWS, check_unmasked, is_sparse, with_nan
from streamkm.estimators.validation import Weights, check_weights, is_in_memory
from streamkm.passes.reader import Invalid
from streamkm.sources import open_source
from streamkm.sources.base import RowSource
from streamkm.sources.chosen_columns import ChosenColumns
from streamkm.sources.documents.hashed import HashedText, TfIdfRows
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
from streamkm.sources.open import store_of

_LONGEST = 40  # characters of a value that are shown


def _reason(X: Any, name: str) -> str | None:
    """What is wrong with X; None where it is something else than what its values are and how they lie."""
    if is_frame(X):
        columns = ((np.asarray(X[column]), f"column {column!r} of the {name}") for column in X.columns)
        return next((told for values, what in columns if (told := _of_values(values, what, in_frame=True))), None)
    try:
        values = X if sp.issparse(X) else np.asarray(X)
    except ValueError:
        return _ragged(X)
    if values.dtype.names:
        made = "numpy.lib.recfunctions.structured_to_unstructured(X)"
        return f"{name} holds records ({values.dtype}); needed: rows of features. Pass {made}"
    if values.ndim == 2 or values.dtype.kind == "c":
        return _of_values(values, name)
    if values.ndim == 0:
        return f"{name} is one value; needed: rows of features, of shape (n, d)"
    remedy = "X.reshape(len(X), -1) makes each sample one row"
    if values.ndim == 1:
        remedy = "X.reshape(1, -1) if it is one row, X.reshape(-1, 1) if its values are rows of one feature"
    return f"{name} has shape {values.shape}; needed: rows of features, (n, d). Reshape your data: {remedy}"


def _of_values(values: Any, what: str, *, in_frame: bool = False) -> str | None:
    """The first value of a matrix, or of a column, that is no number as Python reads numbers."""
    kind = values.dtype.kind
    if kind == "c":
        return f"Complex data not supported: {what} holds {values.dtype}; pass real and imaginary parts as features"
    if in_frame and kind in "Mm":
        return (
            f"{what} has type {values.dtype}; features must be numbers. Drop or convert that column, or read days: "
            'open_source(X, dates="days")'
        )
    for at, value in enumerate(values.ravel().tolist() if kind in "OUS" else []):
        try:
            float(np.nan if value is None else value)  # as NumPy has it
        except (TypeError, ValueError) as error:
            text, problem = repr(value), str(error).split(":")[0]
            shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
            shown, needed = f"the text {shown}" if isinstance(value, str) else shown, "features must be numbers"
            if in_frame:
                return (
                    f"{what} contains {shown} in row {at:,}; {needed} ({problem}). Drop that column, or encode it: "
                    'open_source(X, categories="onehot")'
                )
            row, column = divmod(at, values.shape[1])
            return (
                f"row {row:,}, column {column:,} of the {what} contains {shown}; {needed} ({problem}). Drop or encode "
                "that column"
            )
    return None


def _ragged(X: Any) -> str | None:
    """Which of some rows has another length than the first."""
    try:
        lengths = [len(row) for row in X]
    except TypeError:
        return "a list holds rows and single values; needed: rows of one length"
    row = next((row for row, length in enumerate(lengths) if length != lengths[0]), None)
    if row is None:
        return None
    return f"row {row:,} has {lengths[row]:,} values, and row 0 has {lengths[0]:,}; needed: rows of one length"


def read_invalid(estimator: Any) -> Invalid:
    """Treatment of invalid rows that are prepared: filling has left no NaN but what later steps make."""
    return "raise" if estimator.invalid == "mean" else estimator.invalid


def open_rows(estimator: Any, X: Any, *, reset: bool | None, ids: bool = False) -> RowSource:
    """Open X; `reset` keeps its features' names in the estimator, False compares them with those, None does neither.

    Later tables are opened by what was said of the table of the fit. `ids`: whether their rows are to be named.
    """
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
        check_names_once(X, name)
    if estimator.invalid == "raise":
        check_unmasked(X, name or "array", MASKED_ROWS)
    try:
        if reset is None:
            made = check_array(X, dtype="numeric", **checks)
        else:
            made = validate_data(estimator, X, reset=reset, dtype="numeric", **checks)
        source = open_source(made) if name is None or is_sparse(made) else open_array(made, name=name)
    except (ValueError, TypeError) as error:  # said in one line, with the place, in place of scikit-learn's words
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
        raise InvalidInputError(
            f"{source.name}: documents are not weighted by the frequencies of the fit, which the model does not keep; "
            "pass tfidf= those of the fit to open_documents"
        )
    return TfIdfRows(rows, estimator.tfidf_)


def _options_of_fit(estimator: Any, X: Any, *, ids: bool) -> dict[str, Any]:
    """Options that open a later table as that of the fit; none where there is no need of any."""
    known = vars(estimator).get("feature_names_in_")
    fitted_on = vars(estimator).get("fitted_on_", {})
    options = table_options(fitted_on.get("made_with"), fitted_on.get("id_column"))
    if known is not None and column_names(without_index(X, known)) == tuple(known) and "dates" not in options:
        return {}
    return options_for(options, X, ids=ids) if options else {}


def _with_known_names(estimator: Any, source: RowSource, *, reset: bool, named: bool) -> RowSource:
    """Keep the names of a source's columns; or compare them with those that are kept, and give these in their order.

    `named`: whether columns may come in another order.
    """
    names: Any = source.feature_names
    known = vars(estimator).get("feature_names_in_")
    if reset:
        if known is not None:
            del estimator.feature_names_in_
        if names is not None:
            estimator.feature_names_in_ = np.array(names, object)
    elif names is not None and known is None:
        warnings.warn(
            f"{source.name} has feature names, but {type(estimator).__name__} was fitted without feature names: "
            "the order of columns cannot be checked",
            StreamkmWarning,
            stacklevel=4,
        )
    elif names is not None:
        # a frame or AnnData object must have the columns of the fit in their order, as scikit-learn has it
        by_name = (not source.streams or isinstance(source, IterableSource)) and not source.computed and named
        order = (order_of if by_name else check_same_columns)(names, tuple(known), source.name, "the fit")
        if order is not None and not source.streams:
            return ChosenColumns(source, order.tolist())
        source.feature_names = tuple(known)  # by which an iterable reads each of its chunks
    return source


def described(source: RowSource) -> dict[str, Any]:
    """What a model says of the rows that it was fitted on, as JSON values."""
    return {
        "name": source.name,
        "files": list(map(str, source.files)),
        "stored_bytes": source.n_bytes,
        "dtype": str(source.dtype),
        "sparse": source.is_sparse,
        **({"made_with": dict(source.made_with)} if source.made_with else {}),
        **({"id_column": source.id_column} if source.id_column else {}),
    }


def open_weighted(
    estimator: Any, X: Any, sample_weight: Any, *, reset: bool | None, ids: bool = False
) -> tuple[RowSource, Weights]:
    """Open X, and the weights of its rows; those of a sketch store where none are given."""
    source = open_rows(estimator, X, reset=reset, ids=ids)
    stored = store_of(source)
    if stored is not None and stored.info.weighted and sample_weight is None:
        sample_weight = stored.weights()
    weights = check_weights(sample_weight)
    weights.check_rows(source.n_rows, source.name)
    return source, weights
