"""Rows of pixels as small pictures for a page: PNG inside of HTML, by Pillow, which comes with matplotlib."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError
from streamkm.reports.report import has_matplotlib

_MOST_ROWS = 2  # pictures of each kind beside that of the center


def check_image_shape(shape: Any, n_features: int) -> tuple[int, ...]:
    """A shape that rows have as pictures: height and width, and 3 for colours.

    Raises InvalidParameterError: for anything else, or another number of pixels than features.
    """
    given = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else ()
    whole = all(isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0 for size in given)
    if not whole or len(given) not in (2, 3) or given[2:] not in ((), (3,)):
        raise InvalidParameterError(f"image_shape={shape!r}; needed: (height, width) or (height, width, 3)")
    if int(np.prod(given)) != n_features:
        raise InvalidParameterError(
            f"pictures of {' x '.join(map(str, given))} have {int(np.prod(given)):,} values, and rows have "
            f"{n_features:,} features; give another image_shape"
        )
    return tuple(map(int, given))


def with_pictures(
    clusters: Sequence[Mapping[str, Any]],
    centers: NDArray[np.float64],
    shape: tuple[int, ...],
    rows: Mapping[int, NDArray[Any]],
) -> list[dict[str, Any]]:
    """Clusters of a report with ``pictures``: their centers, and typical and far rows where they are given.

    Without matplotlib, whose library for images it takes, there are none.

    `clusters`: as `streamkm.estimators.fit_summary.summarize` has them. `centers`: float64 (k, d). `shape`: of
    `check_image_shape`. `rows`: mapping of int to ndarray (d,), example rows, by number.
    """
    if not has_matplotlib():
        return [dict(cluster) for cluster in clusters]
    span = (float(centers.min()), float(centers.max()))
    told = []
    for cluster in clusters:
        label = cluster["cluster"]
        pictures = [(f"center of cluster {label}", picture(centers[label], shape, span))]
        for name in ("typical", "outlying"):
            shown = [each["row"] for each in cluster[name] if each["row"] in rows][:_MOST_ROWS]
            pictures += [(f"{name} row {row}", picture(rows[row], shape, span)) for row in shown]
        told.append({**cluster, "pictures": pictures})
    return told


def picture(values: NDArray[Any], shape: tuple[int, ...], span: tuple[float, float]) -> str:
    """A row of pixels as the address of an image, for HTML.

    `values`: ndarray (d,). `shape`: (height, width), where large values are dark, or (height, width, 3), where they are
    bright. `span`: (float, float), values that are shown lightest and darkest; those beyond are cut off.
    """
    from PIL import Image

    low, high = span
    scaled = np.clip((np.asarray(values, np.float64) - low) / ((high - low) or 1.0), 0, 1).reshape(shape)
    pixels = np.rint(255 * (scaled if len(shape) == 3 else 1 - scaled)).astype(np.uint8)
    with io.BytesIO() as buffer:
        Image.fromarray(pixels).save(buffer, "png")
        return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
