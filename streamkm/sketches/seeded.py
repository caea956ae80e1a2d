"""Sketches that a size and a seed make, and the number of features for some; what all of them share."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

from streamkm.core.exceptions import InvalidParameterError
from streamkm.sketches.base import SketchAnswers
from streamkm.sketches.options import SketchOptions
from streamkm.sketches.validation import check_seed


class SeededSketch(SketchAnswers):
    """A sketch whose seed may be left to the estimator that it is given to."""

    __slots__ = ()

    kind: ClassVar[str]
    seed: int | None

    @classmethod
    def for_error(cls, eps: float, delta: float = 0.1) -> SketchOptions:
        """Give the options of a sketch of this kind with as many components as a theorem asks for.

        `eps`: relative error of the objective of every clustering, in (0, 1). `delta`: share of the seeds for which the
        error may be larger, in (0, 1). Returns SketchOptions: for `StreamKMeans(sketch=...)`, which knows the number of
        clusters and checks both numbers.
        """
        return SketchOptions(cls.kind, eps=eps, delta=delta)

    @property
    def is_made(self) -> bool:
        """Whether nothing is left to the estimator."""
        return self.seed is not None

    def made(self, seed: int, n_features: int | None) -> Self:  # noqa: ARG002
        """Give the sketch with this seed, unless it has one."""
        return replace(self, seed=seed) if self.seed is None else self  # type: ignore[type-var]

    def _check_seed(self) -> None:
        if self.seed is not None:
            check_seed(self.seed)

    @property
    def _seed(self) -> int:
        """The seed, for what cannot do without."""
        return self._known("seed", self.seed)

    def _known(self, name: str, value: int | None) -> int:
        """A number that was not left to the estimator; otherwise an error."""
        if value is None:
            raise InvalidParameterError(
                f"{self!r} has no {name}; pass {name}=..., or give it to StreamKMeans(sketch=...), which sets {name}"
            )
        return value
