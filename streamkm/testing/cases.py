"""Values named in what fails, for checks that go through many cases. Knows neither readers nor sketches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted(**named: Any) -> Iterator[None]:
    """Name values in what fails within."""
    try:
        yield
    except BaseException as error:
        error.add_note(", ".join(f"{name}={value!r}" for name, value in named.items()))
        raise
