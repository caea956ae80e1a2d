"""The sketch that changes nothing: for data whose features are few enough already, and for sketch stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidInputError
from streamkm.core.matrix import Matrix, as_working


@dataclass(frozen=True, slots=True)
class IdentitySketch:
    """``apply(X) == X``, as floats.

    Attributes
    ----------
    n_components : int
        m = d.
    """

    n_components: int
    kind: ClassVar[str] = "identity"
    passes_to_fit: ClassVar[int] = 0

    def apply(self, X: Matrix) -> Matrix:
        if X.shape[1] > self.n_components:
            raise InvalidInputError(f"rows with {X.shape[1]} features; needed: {self.n_components}")
        if isinstance(X, np.ndarray):
            return as_working(X)
        return sp.csr_array((as_working(X.data), X.indices, X.indptr), shape=(X.shape[0], self.n_components))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_components": self.n_components}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {}
