"""What the sketches that a seed decides about demand of their parameters and rows."""

from __future__ import annotations

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import Matrix


def check_components(n_components: int, limit: int) -> None:
    """Refuse a number of components outside 1..limit.

    Raises InvalidParameterError.
    """
    if not 1 <= n_components <= limit:
        raise InvalidParameterError(f"n_components={n_components}; needed: 1 to {limit:,}")


def check_seed(seed: int) -> None:
    """Refuse a seed outside 0..2^64-1.

    Raises InvalidParameterError.
    """
    if not 0 <= seed < 1 << 64:
        raise InvalidParameterError(f"seed={seed}; needed: 0 to 2^64 - 1")


def check_width(X: Matrix, n_features: int) -> None:
    """Refuse rows wider than a sketch was made for; narrower ones lack their last features.

    Raises InvalidInputError.
    """
    if X.shape[1] > n_features:
        raise InvalidInputError(f"rows with {X.shape[1]} features; needed: at most {n_features}")
