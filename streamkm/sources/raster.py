"""Rasters: images of several bands, whose pixels are rows. Reads some lines of pixels at a time.

Only what arrays offer is used, so that neither Zarr, Dask nor xarray is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from streamkm.core.matrix import working_dtype
from streamkm.sources.base import ChunkedSource, Rows, RowSource, SentRows, row_places
from streamkm.sources.chunks import Chunk
from streamkm.sources.dense import cut_rows
from streamkm.sources.stored import decoded_dtype


def open_raster(array: Any, *, nodata: float | Sequence[float] | None = None) -> RasterSource:
    """Open the pixels of a raster as rows, and its bands as features.

    Parameters
    ----------
    array : array-like of shape (bands, y, x) or (y, x)
        A NumPy array, masked or not, a memory map, a Zarr or Dask array, a DataArray of xarray: what is cut along y and
        made a NumPy array. Real numbers.
    nodata : float, or one for each band, optional
        The value of pixels without data.

    Returns
    -------
    RasterSource
        Of rows (y * x, bands), line after line. A pixel is a row of NaN if any of its bands has no data: `nodata`,
        masked, or NaN. Estimators with ``on_invalid="skip"`` give such rows the label -1. The dtype is that of the
        array, or the float type that holds its values where NaN may be needed.

    Raises
    ------
    InvalidInputError
        Not an array, not two or three lengths, no pixels or no bands, or no real numbers.
    InvalidParameterError
        Not as many values of `nodata` as bands.

    Examples
    --------
    >>> import numpy as np
    >>> from streamkm import StreamKMeans, open_raster
    >>> bands = np.array([[[1, 1, 9], [-99, 8, 9]], [[2, 2, 7], [2, 7, 7]]])  # 2 bands, 2 x 3 pixels
    >>> raster = open_raster(bands, nodata=-99)
    >>> kmeans = StreamKMeans(2, on_invalid="skip", random_state=0).fit(raster)
    >>> bool((raster.shape_labels(kmeans.labels_) == -1)[1, 0])
    True
    """
    return RasterSource(array, nodata)


class RasterSource(ChunkedSource):
    """Pixels of a raster as rows; made by `open_raster`.

    Attributes
    ----------
    shape : (int, int)
        Lines and columns of pixels.
    """

    is_sparse = False
    in_process = True  # arrays that are opened lie in this process
    read_factor = 4.0  # bands as read, rows, masks

    def __init__(self, array: Any, nodata: float | Sequence[float] | None = None) -> None:
        self.name = "raster"
        if not hasattr(array, "shape"):
            raise InvalidInputError(
                f"a raster is of type {type(array).__name__}; needed: an array of (bands, y, x). Open a file first, as "
                'in np.load(path, mmap_mode="r") or zarr.open_array(path), or make nested lists an array'
            )
        lengths = tuple(map(int, array.shape))
        if len(lengths) not in (2, 3) or 0 in lengths:
            raise InvalidInputError(f"a raster of shape {lengths}; needed: (bands, y, x) or (y, x), none of them 0")
        stored = decoded_dtype(np.dtype(array.dtype), self.name)
        self._array = array
        self.shape = (lengths[-2], lengths[-1])
        self.n_rows: int = lengths[-2] * lengths[-1]
        self.n_features: int = lengths[0] if len(lengths) == 3 else 1
        self._nodata = self._values_of(nodata)
        has_holes = nodata is not None or isinstance(array, np.ma.MaskedArray)
        self.dtype = working_dtype(stored) if has_holes else stored
        here = isinstance(array, np.ndarray) and not isinstance(array, np.memmap)
        self.n_bytes = array.nbytes if isinstance(array, np.ndarray) else None
        self.resident_bytes = array.nbytes if here else 0
        self.decodes = not isinstance(array, np.ndarray)
        self.feature_names = _band_names(array) if len(lengths) == 3 else None

    def chunks(self, target_bytes: int) -> Sequence[Chunk]:
        """Cut between lines of pixels, at those of storage chunks; see `ChunkedSource.chunks`."""
        line_bytes = self.shape[1] * self.n_features * self.dtype.itemsize
        return cut_rows(self.shape[0], line_bytes, self._chunk_lines(), target_bytes).stretched(self.shape[1])

    def read(self, chunk: Chunk) -> Rows:
        """Read some lines; see `ChunkedSource.read`."""
        lines = slice(chunk.start // self.shape[1], chunk.stop // self.shape[1])
        part = self._array[lines] if len(self._array.shape) == 2 else self._array[:, lines]
        values = part if isinstance(part, np.ma.MaskedArray) else np.asarray(part)
        bands = values.reshape(self.n_features, -1)
        X = np.ascontiguousarray(np.ma.getdata(bands).T, self.dtype)
        empty = np.ma.getmaskarray(bands).any(axis=0)
        if self._nodata is not None:
            empty |= (np.ma.getdata(bands) == self._nodata[:, None]).any(axis=0)
        if X.dtype.kind == "f":
            X[empty | np.isnan(X).any(axis=1)] = np.nan
        return Rows(X, row_places(chunk.start, chunk.stop))

    def describe(self, place: int) -> str:
        """Say where a pixel is; see `RowSource.describe`."""
        return _pixel(self.shape[1], place)

    def stand_in(self) -> RowSource:
        """Give what calls on a cluster need; see `RowSource.stand_in`."""
        return SentRows(self, partial(_pixel, self.shape[1]))

    def details(self) -> dict[str, str]:
        """Say what the raster is; see `RowSource.details`."""
        lines, columns = self.shape
        return {"format": f"{type(self._array).__name__}, {self.n_features:,} bands of {lines:,} x {columns:,} pixels"}

    def shape_labels(self, labels: ArrayLike) -> Any:
        """Give labels of all pixels the shape of the raster.

        Parameters
        ----------
        labels : array-like (y * x,)
            ``labels_`` of a fit of this raster, or what `predict` gives.

        Returns
        -------
        int array (y, x)
            A Dask array in the blocks of the raster if that is one; a DataArray with its coordinates if it is one of
            xarray; else a NumPy array.

        Raises
        ------
        InvalidInputError
            Not a label for each pixel.
        """
        found: NDArray[Any] = np.asarray(labels)
        if found.shape != (self.n_rows,):
            raise InvalidInputError(
                f"labels have shape {found.shape}; a raster of {self.shape[0]:,} x {self.shape[1]:,} pixels needs "
                f"({self.n_rows:,},)"
            )
        found = found.reshape(self.shape)
        array = self._array
        if hasattr(array, "dims") and hasattr(array, "isel"):
            one_band = array.isel({array.dims[0]: 0}, drop=True) if array.ndim == 3 else array
            blocks = None if array.chunks is None else array.chunks[-2:]
            shaped = one_band.copy(data=found)
            return shaped if blocks is None else shaped.chunk(dict(zip(array.dims[-2:], blocks, strict=True)))
        if hasattr(array, "__dask_graph__"):
            from streamkm.sources.dask.arrays import array_in_blocks

            return array_in_blocks(found, array.chunks[-2:])
        return found

    def _values_of(self, nodata: float | Sequence[float] | None) -> NDArray[Any] | None:
        """The value of pixels without data for each band."""
        if nodata is None:
            return None
        values = np.atleast_1d(np.asarray(nodata))
        if values.ndim != 1 or len(values) not in (1, self.n_features) or values.dtype.kind not in "biuf":
            raise InvalidParameterError(
                f"nodata={nodata!r}; needed: one number, or one for each of the {self.n_features:,} bands"
            )
        if np.dtype(self._array.dtype).kind == "f":  # as the bands hold it: 0.1 is another number in single precision
            values = values.astype(self._array.dtype)
        return np.broadcast_to(values, (self.n_features,))

    def _chunk_lines(self) -> int:
        """Lines of pixels in a storage chunk, or a block; 1 where there are none."""
        chunks = getattr(self._array, "shards", None) or getattr(self._array, "chunks", None)
        lines = 1 if chunks is None else chunks[-2]
        return int(lines[0] if isinstance(lines, tuple) else lines)


def _pixel(width: int, place: int) -> str:
    line, column = divmod(place, width)
    return f"pixel [{line:,}, {column:,}] of the raster"


def _band_names(array: Any) -> tuple[str, ...] | None:
    """Names of bands, where a DataArray has some."""
    if not hasattr(array, "dims") or array.dims[0] not in getattr(array, "indexes", {}):
        return None
    names = list(array.indexes[array.dims[0]])
    return tuple(names) if all(isinstance(name, str) for name in names) else None
