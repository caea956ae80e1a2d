"""Rows of pixels as small pictures for a page: PNG inside of HTML, without a library for images."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.core.exceptions import InvalidParameterError

_MARK = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOURS = 0, 2  # kinds of PNG, of one and of three values a pixel
_MOST_ROWS = 2  # pictures of each kind beside that of the center


def check_image_shape(shape: Any, n_features: int) -> tuple[int, ...]:
    """A shape that rows have as pictures: height and width, and 3 for colours.

    Raises
    ------
    InvalidParameterError
        For anything else, or another number of pixels than features.
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

    Parameters
    ----------
    clusters : sequence of mappings
        As `streamkm.estimators.fit_summary.summarize` has them.
    centers : float64 (k, d)
    shape : tuple of int
        Of `check_image_shape`.
    rows : mapping of int to ndarray (d,)
        Example rows, by number.
    """
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

    Parameters
    ----------
    values : ndarray (d,)
    shape : tuple of int
        (height, width), where large values are dark, or (height, width, 3), where they are bright.
    span : (float, float)
        Values that are shown lightest and darkest; those beyond are cut off.
    """
    low, high = span
    scaled = np.clip((np.asarray(values, np.float64) - low) / ((high - low) or 1.0), 0, 1).reshape(shape)
    pixels = np.rint(255 * (scaled if len(shape) == 3 else 1 - scaled)).astype(np.uint8)
    height, width = shape[:2]
    lines = np.zeros((height, 1 + pixels[0].size), np.uint8)  # each begins with the number of its filter: none
    lines[:, 1:] = pixels.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOURS if len(shape) == 3 else _GREY, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    coded = _MARK + b"".join(_part(*part) for part in parts)
    return f"data:image/png;base64,{base64.b64encode(coded).decode('ascii')}"


def _part(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
