"""The sketch that changes nothing: for data whose features are few enough already, and for sketch stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from streamkm.errors import InvalidInputError
from streamkm.sketches.base import Matrix, as_float


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
        if not hasattr(X, "indptr"):
            return as_float(X)
        import scipy.sparse as sp

        return sp.csr_array((as_float(X.data), X.indices, X.indptr), shape=(X.shape[0], self.n_components))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "n_components": self.n_components}
