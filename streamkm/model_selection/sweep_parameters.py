"""What a sweep is asked for, checked before anything is read: numbers of clusters, sizes of samples, rows and steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, get_args

from streamkm.cluster.seeding.search_set import search_rows
from streamkm.core.exceptions import InvalidParameterError
from streamkm.passes.reader import OnInvalid
from streamkm.planning.memory_budget import SAMPLE_BYTES
from streamkm.planning.request import SAMPLE_ROWS_PER_CLUSTER, SMALLEST_SAMPLE_ROWS
from streamkm.planning.sample_plan import SweepSizes
from streamkm.preparation import Preparation, check_preprocess
from streamkm.sources.base import RowSource
from streamkm.sources.chunking import decoded_row_bytes

JUDGED_PER_CLUSTER, FEWEST_JUDGED, MOST_JUDGED = 20, 2000, 5000  # rows that silhouettes are taken of


def clusters_of(text: str) -> list[int]:
    """Numbers of clusters that a text names: ``50``, ``2,5,10``, ``2:200`` (200 among them) or ``10:200:10``.

    Raises
    ------
    InvalidParameterError
        For anything else, or no number.
    """
    found: list[int] = []
    for part in text.split(","):
        bounds = [bound.strip() for bound in part.split(":")]
        if len(bounds) > 3 or not all(bound.isdecimal() for bound in bounds) or bounds[2:] == ["0"]:
            raise InvalidParameterError(f"clusters {part.strip()!r}; needed: a number (50) or a range (2:200:1)")
        first, last, step = (*map(int, bounds), *(int(bounds[0]), 1)[len(bounds) - 1 :])
        if last < first:
            raise InvalidParameterError(
                f"the range {part.strip()!r} is empty; needed: a number (50) or a range (2:200:1)"
            )
        found.extend(range(first, last + 1, step))
    return wanted_clusters(found)


def check_preparation(preprocess: Any, on_invalid: Any, on_missing: Any) -> None:
    """Refuse unknown steps and choices. Raises InvalidParameterError."""
    check_choice("on_invalid", on_invalid, get_args(OnInvalid))
    check_choice("on_missing", on_missing, ("raise", "skip", "mean"))
    check_preprocess(preprocess)


def swept_preparation(
    preprocess: Sequence[str] | Mapping[str, Any] | None, on_missing: str, source: RowSource
) -> Preparation:
    """The checked steps that the rows of a source go through; filling comes first.

    Raises
    ------
    InvalidInputError
        A step names a column that the source does not have.
    """
    preparation = Preparation.of(preprocess, source.feature_names, source.n_features, source.name)
    return preparation.after_fill() if on_missing == "mean" else preparation


def wanted_clusters(n_clusters: int | Iterable[int]) -> list[int]:
    """Every k once, ascending."""
    given = list(n_clusters) if isinstance(n_clusters, Iterable) else [n_clusters]
    for k in given:
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise InvalidParameterError(f"n_clusters holds {k!r}; needed: integers from 1")
    if not given:
        raise InvalidParameterError("n_clusters is empty; needed: at least one integer from 1")
    return sorted({int(k) for k in given})


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise InvalidParameterError(f"{name}={value!r}; needed: one of {', '.join(map(repr, choices))}")


def check_seeds(seeds: Any) -> None:
    """Refuse what is no positive integer."""
    if isinstance(seeds, bool) or not isinstance(seeds, Integral) or seeds < 1:
        raise InvalidParameterError(f"seeds={seeds!r}; needed: an integer from 1")


def check_count(name: str, value: Any) -> Any:
    """Refuse what is neither a positive integer nor "auto"."""
    if value != "auto" and (isinstance(value, bool) or not isinstance(value, Integral) or value < 1):
        raise InvalidParameterError(f'{name}={value!r}; needed: an integer from 1 or "auto"')
    return value


def sweep_sizes(source: RowSource, wanted: list[int], seeds: Any, sample_rows: Any) -> SweepSizes:
    """Sizes of a sweep; it keeps as many rows as a fit of the most clusters polishes its centers on."""
    check_count("sample_rows", sample_rows)
    clustered = search_rows(wanted[-1]) if sample_rows == "auto" else int(sample_rows)
    if clustered < wanted[-1]:
        raise InvalidParameterError(f"sample_rows={clustered:,} for up to {wanted[-1]:,} clusters; needed: as many")
    kept = max(SMALLEST_SAMPLE_ROWS, SAMPLE_ROWS_PER_CLUSTER * wanted[-1])
    check_seeds(seeds)
    return SweepSizes(
        clustered_rows=clustered,
        sampled_rows=max(clustered, min(kept, SAMPLE_BYTES // max(1, decoded_row_bytes(source)))),
        judged_rows=min(clustered, MOST_JUDGED, max(FEWEST_JUDGED, JUDGED_PER_CLUSTER * wanted[-1])),
        n_clusters=wanted[-1],
        n_clusterings=int(seeds) * len(wanted),
    )
