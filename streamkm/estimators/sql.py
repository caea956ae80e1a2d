"""A fitted model as one SELECT that labels the rows of a table in a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Model
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.estimators.labelling import current_model
from streamkm.estimators.validation import check_value, one_of
from streamkm.preparation import Preparation
from streamkm.preparation.preparation import FILL, FOUND, TOTAL
from streamkm.preparation.scaling import Scaling, Table, lengthened

LONGEST, LEAST_TERM = 1_000_000, 60  # characters of a statement, and about those of a number of a center
_LARGEST = "1.7976931348623157e+308"
_LOG1P = "CASE WHEN {0} > -1 THEN LN(1 + {0}) END"  # -1 and less are no use
_CELL = "CAST(CASE"  # how features of categories begin


@dataclass(frozen=True, slots=True)
class Dialect:
    """Names, texts and types as a database writes them."""

    number: str
    text: str
    quote: str
    escapes: Mapping[int, str] | None  # of characters; None: quotes are doubled

    def quoted(self, text: str, quote: str = "'") -> str:
        """A text in quotes."""
        return quote + (text.translate(self.escapes) if self.escapes else text.replace(quote, 2 * quote)) + quote

    def name(self, name: str) -> str:
        """A quoted identifier."""
        return self.quoted(name, self.quote)


DIALECTS = {
    "duckdb": Dialect("DOUBLE", "VARCHAR", '"', None),
    "postgres": Dialect("DOUBLE PRECISION", "TEXT", '"', None),
    "bigquery": Dialect(
        "FLOAT64", "STRING", "`", str.maketrans({"'": r"\'", "`": r"\`", "\\": r"\\", "\n": r"\n", "\r": r"\r"})
    ),
}


def label_query(estimator: Any, dialect: str, table: str, columns: Any, id_column: str | None) -> str:
    """Write the statement; see `DescribedKMeans.to_sql`."""
    check_value("dialect", dialect, one_of(DIALECTS))
    model, known = current_model(estimator), DIALECTS[dialect]
    centers, made = model.wide_centers(), getattr(estimator, "fitted_on_", {}).get("made_with", {})
    table_made = made.get("table", {})
    reasons = {
        "rows are assigned in a sketch": model.space != "original",
        "its features are hashed words": "documents" in made,
        "its features are days of dates": "dates" in table_made,
        "its categories are hashed": "n_features" in table_made,
        f"its statement is longer than {LONGEST:,} characters": centers.size * LEAST_TERM > LONGEST,
    }
    reason = next((each for each, holds in reasons.items() if holds), None)
    if reason is not None:
        raise InvalidInputError(f"to_sql cannot write this model: {reason}; use predict_to")
    features, inputs = _features(estimator, known, columns, model.n_features)
    id_column = getattr(estimator, "fitted_on_", {}).get("id_column") if id_column is None else id_column
    query = _Query(known, features, inputs if id_column is None else [id_column], table, model.preparation)
    if model.preparation is not None:
        _add_steps(query, model.preparation, model.n_features)
    if model.metric == "cosine":
        query.add_unit(range(model.n_features))
    return query.labelled(model, centers)


class _Query:
    """Common table expressions that follow each other; features are f0, f1, ..."""

    def __init__(
        self, dialect: Dialect, features: list[str], kept: list[str], table: str, preparation: Preparation | None
    ) -> None:
        """Take features of a table as numbers: NULL if missing or not finite, or filled with means."""
        self._n_features, self._cluster = len(features), dialect.name("cluster")
        self._kept = {f"k{number}": dialect.name(name) for number, name in enumerate(kept)}
        kept_columns = (f"{name} AS {alias}" for alias, name in self._kept.items())
        source = ".".join(map(dialect.name, table.split(".")))
        self._parts = [_select([*kept_columns, *_named(features)], source)]
        fill = None if preparation is None else preparation.fill
        endless = ", ".join(f"CAST('{sign}Infinity' AS {dialect.number})" for sign in ("", "-"))

        def finite(number: int, feature: str) -> str:
            rest = ""
            if fill is not None and not features[number].startswith(_CELL):  # nothing fills an unknown category
                rest = f" WHEN {feature} IN ({endless}) THEN NULL ELSE {_number(fill.means[number])}"
            return f"CASE WHEN {feature} BETWEEN -{_LARGEST} AND {_LARGEST} THEN {feature}{rest} END"

        self.add(finite)

    def add(self, made: Callable[[int, str], str], more: Sequence[str] = ()) -> None:
        """Add a step by its expression of each feature; `more`: further columns."""
        features = [made(number, f"f{number}") for number in range(self._n_features)]
        self._step([*self._kept, *_named(features), *more])

    def _step(self, columns: Sequence[str]) -> None:
        self._parts.append(_select(columns, f"s{len(self._parts) - 1}"))

    def add_on(self, numbers: Sequence[int], made: str) -> None:
        """Add a step of chosen features: {0} stands for each."""
        chosen = set(numbers)
        self.add(lambda n, feature: made.format(feature) if n in chosen else feature)

    def add_unit(self, numbers: Sequence[int]) -> None:
        """Scale chosen features to length 1 together."""
        self.add(lambda _, feature: feature, [f"SQRT({_sum([f'f{n} * f{n}' for n in numbers])}) AS norm"])
        self.add_on(numbers, "CASE WHEN norm > 0 THEN {0} / norm ELSE {0} END")

    def add_total(self, numbers: Sequence[int]) -> None:
        """Scale chosen features so that they add up; negative totals give NULL."""
        listed, factor = [f"f{n}" for n in numbers], f"({_number(TOTAL)} / total)"
        self.add(lambda _, feature: feature, [f"{_sum(listed)} AS total", f"{_least(listed)} AS lowest"])
        self.add_on(numbers, f"CASE WHEN lowest < 0 THEN NULL WHEN total = 0 THEN {{0}} ELSE {{0}} * {factor} END")

    def labelled(self, model: Model, centers: NDArray[np.float64]) -> str:
        """The whole statement: the lowest of the nearest centers; NULL where a feature is NULL."""
        d2 = [_sum([_square(f"f{j}", value) for j, value in enumerate(center)]) for center in centers]
        if model.prices is not None:
            d2 = [f"{each} + {_number(price)}" for each, price in zip(d2, model.prices, strict=True)]
        self._step([*self._kept, *(f"{each} AS d{c}" for c, each in enumerate(d2))])
        cases = " ".join(f"WHEN d{c} THEN {label}" for c, label in enumerate(model.names(np.arange(len(centers)))))
        label = f"CASE {_least([f'd{c}' for c in range(len(centers))])} {cases} END"
        columns = [f"{alias} AS {name}" for alias, name in self._kept.items()]
        parts = ",\n".join(f"s{number} AS ({part})" for number, part in enumerate(self._parts))
        last = _select([*columns, f"{label} AS {self._cluster}"], f"s{len(self._parts) - 1}")
        return f"WITH {parts}\n{last}"


def _add_steps(query: _Query, preparation: Preparation, n_features: int) -> None:
    """Add the steps of a preparation; missing values were filled when rows were taken."""
    scalings = iter(preparation.scalings)
    for number, step in enumerate(preparation.steps):
        columns = preparation.columns_of(number)
        chosen = range(n_features) if columns is None else sorted(columns)
        if step in FOUND and step != FILL:
            scaling = next(scalings)
            if isinstance(scaling, Table):
                query.add(_clipped(scaling))
                query.add_on(np.flatnonzero(scaling.logarithms).tolist(), _LOG1P)
            query.add(_scaled(scaling, n_features))
        elif step == "log1p":
            query.add_on(chosen, _LOG1P)
        elif step == "total":
            query.add_total(chosen)
        elif step == "unit":
            query.add_unit(chosen)


def _clipped(table: Table) -> Callable[[int, str], str]:
    """Expression of a feature within the bounds of a table; NULL stays NULL."""
    case = "CASE WHEN {0} < {1} THEN {1} WHEN {0} > {2} THEN {2} ELSE {0} END"
    return lambda number, feature: case.format(feature, _number(table.low[number]), _number(table.high[number]))


def _scaled(scaling: Scaling, n_features: int) -> Callable[[int, str], str]:
    """Expression of a feature with its shift and factor."""
    factor = lengthened(scaling.factor, n_features, 1.0)
    shift = scaling.shift if len(scaling.shift) else np.zeros(n_features)
    return lambda number, feature: f"({feature} - {_number(shift[number])}) * {_number(factor[number])}"


def _features(estimator: Any, dialect: Dialect, columns: Any, n_features: int) -> tuple[list[str], list[str]]:
    """Expressions of the features, and their columns."""
    table = getattr(estimator, "fitted_on_", {}).get("made_with", {}).get("table", {})
    categories = table.get("categories", {})
    inputs = list(table.get("columns", vars(estimator).get("feature_names_in_", ())))
    renamed = inputs if columns is None else list(columns)
    if not renamed or (inputs and len(renamed) != len(inputs)):
        needed = f"{len(inputs):,} names, for {', '.join(inputs[:5])}" if inputs else "names of the columns, in order"
        raise InvalidParameterError(f"columns={columns!r}; needed: {needed}")
    found: list[str] = []
    for column, known in zip(renamed, inputs or renamed, strict=True):
        quoted = dialect.name(column)
        if known not in categories:
            found.append(f"CAST({quoted} AS {dialect.number})")
            continue
        text, values = f"CAST({quoted} AS {dialect.text})", list(map(dialect.quoted, categories[known]))
        rest = "ELSE 0e0"
        if table.get("categories_unseen") != "ignore":  # once a column: one NULL is enough
            rest = f"WHEN {quoted} IS NULL OR {text} IN ({', '.join(values)}) THEN 0e0"
        rests = [rest, *["ELSE 0e0"] * (len(values) - 1)]
        found += [
            f"{_CELL} WHEN {text} = {value} THEN 1e0 {each} END AS {dialect.number})"
            for value, each in zip(values, rests, strict=True)
        ]
    if len(found) != n_features:
        needed = f"{n_features:,}, as the model has; columns of vectors have no SQL"
        raise InvalidInputError(f"columns make {len(found):,} features; needed: {needed}")
    return found, renamed


def _select(columns: Sequence[str], source: str) -> str:
    return f"SELECT {', '.join(columns)} FROM {source}"


def _named(features: Sequence[str]) -> list[str]:
    return [text if text == f"f{n}" else f"{text} AS f{n}" for n, text in enumerate(features)]


def _number(value: float) -> str:
    """All digits of a float64, as a floating literal in every dialect."""
    text = repr(float(value))
    return f"({text})" if "e" in text else f"({text}e0)"


def _square(feature: str, center: float) -> str:
    difference = f"({feature} - {_number(center)})" if center else feature
    return f"{difference} * {difference}"


def _least(names: Sequence[str]) -> str:
    return f"LEAST({', '.join(names)})"


def _sum(terms: Sequence[str]) -> str:
    """A sum in brackets as deep as the logarithm of its terms, because databases bound the depth."""
    if len(terms) <= 8:
        return f"({' + '.join(terms)})"
    middle = len(terms) // 2
    return f"({_sum(terms[:middle])} + {_sum(terms[middle:])})"
