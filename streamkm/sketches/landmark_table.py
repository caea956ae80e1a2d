"""Dense landmarks as kernels on rows take them: centered, scaled, and in the order that products read them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.matrix import aligned_empty
from streamkm.kernels.intrinsics.lanes import TILE
from streamkm.kernels.intrinsics.panels import Panels
from streamkm.kernels.sketch.kernel_values import placed_dense

# products of dense rows are made of the entries other than 0 alone if these are at most such a share (1.4 to 2 times as
# fast there, up to 5 times with fewer) and features and landmarks so many: else there is little work, or half a tile
THIN, WIDE, MANY = 0.3, 128, 2 * TILE
FAR = 0.8  # share of a mean square that is the squared mean, above which values lie far from 0


@dataclass(frozen=True, slots=True)
class LandmarkTable:
    """Landmarks, and what rows go through before they meet them.

    Far from the origin differences of float32 products would be noise, so the mean is taken out of landmarks and rows
    where a kernel allows that. Where most entries are 0 they shall still be 0 for the products: with s the mean in
    features that lie far from 0, and else 0, ``(x - mean).(y - mean)`` is ``(x - s).(y - mean) + bias``.
    """

    shift: NDArray[np.float64]  # (d,): what is taken from rows
    center: NDArray[np.float64]  # (d,): where squared norms of rows, shifted and scaled, are taken from
    # float32 or Panels, landmarks less their mean, scaled: (c, d) where differences are taken; for products panels of
    # (d, c), or where there is a bias (tiles, d, TILE)
    values: Any
    bias: NDArray[np.float32] | None  # (tiles, TILE): None: products are made of all entries
    d2norms: NDArray[np.float32]  # (c,): squared norms of the landmarks as they are in `values`

    @classmethod
    def of(cls, landmarks: NDArray[Any], scale: float, *, centered: bool, products: bool) -> LandmarkTable:
        """Lay out landmarks.

        `landmarks`: float32 or float64 (c, d), C-contiguous. `centered`: whether the mean may be taken out. `products`:
        whether rows meet them in products, not differences.
        """
        n_landmarks, n_features = landmarks.shape
        origin = np.zeros(n_features)
        mean = landmarks.mean(axis=0, dtype=np.float64) if centered else origin
        placed, d2norms = np.empty(landmarks.shape, np.float32), np.empty(n_landmarks, np.float32)
        placed_dense(landmarks, mean, scale, origin, placed, d2norms)
        if not products:
            return cls(mean, origin, placed, None, d2norms)
        d2 = np.einsum("ij,ij->j", landmarks, landmarks, dtype=np.float64)
        shift = np.where(n_landmarks * mean**2 > FAR * d2, mean, 0.0)
        small = n_features < WIDE or n_landmarks < MANY
        if small or np.count_nonzero(landmarks != shift) > THIN * landmarks.size:
            return cls(mean, origin, Panels.of(placed.T), None, d2norms)
        center = (mean - shift) * scale
        tiles = aligned_empty((-(-n_landmarks // TILE), n_features, TILE), np.float32)
        for first, tile in zip(range(0, n_landmarks, TILE), tiles, strict=True):
            tile[:, : n_landmarks - first] = placed[first : first + TILE].T
            tile[:, n_landmarks - first :] = 0
        with np.errstate(over="ignore", invalid="ignore"):  # landmarks too far away for float32 are unlike all rows
            bias = np.stack([-(center @ tile.astype(np.float64)) for tile in tiles]).astype(np.float32)
        return cls(shift, center, tiles, bias, d2norms)
