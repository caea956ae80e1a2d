"""The sketch that changes nothing: for data whose features are few enough already, and for sketch stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, as_working
from streamkm.sketches.base import SketchAnswers


@dataclass(frozen=True, slots=True)
class IdentitySketch(SketchAnswers):
    """``apply(X) == X``, as floats."""

    n_components: int  # m = d
    kind: ClassVar[str] = "identity"
    passes_to_fit: ClassVar[int] = 0
    is_identity: ClassVar[bool] = True
    needs_polishing: ClassVar[bool] = False

    def apply(self, X: Matrix) -> Matrix:
        if X.shape[1] > self.n_components:
            raise InvalidInputError(f"rows with {X.shape[1]} features; needed: {self.n_components}")
        if isinstance(X, np.ndarray):
            return as_working(X)
        return sp.csr_array((as_working(X.data), X.indices, X.indptr), shape=(X.shape[0], self.n_components))

    @classmethod
    def leaves_zeros(cls, n_components: int) -> bool:  # noqa: ARG003
        return True

    def fits_features(self, n_features: int) -> bool:
        return self.n_components == n_features

    def is_one_copy(self, *, sparse: bool) -> bool:
        return not sparse

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_components": self.n_components}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}
