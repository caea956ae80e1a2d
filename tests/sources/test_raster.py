"""Rasters: pixels as rows, pixels without data, labels in the shape of the raster, for every kind of array."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr

from streamkm import StreamKMeans, open_raster
from streamkm.core.exceptions import InvalidInputError, InvalidParameterError
from tests.contracts import Opened, SourceContract

BANDS, LINES, COLUMNS = 3, 13, 7
KINDS = ("array", "fortran", "memmap", "zarr", "dask", "xarray", "xarray of dask", "one band")
NODATA = -99


def bands(dtype="i2"):
    """Two kinds of pixels, some without data in one band or in all."""
    rng = np.random.default_rng(0)
    found = rng.integers(0, 5, (BANDS, LINES, COLUMNS)) + 100 * (np.arange(COLUMNS) > 3)
    found[1, 2, 3] = found[:, 0, :2] = NODATA
    return found.astype(dtype)


def is_empty(values):
    return (values == NODATA).any(axis=0)


def rows(values, dtype="f4"):
    """Naive: a pixel after the other."""
    found = []
    for y in range(values.shape[1]):
        for x in range(values.shape[2]):
            pixel = values[:, y, x].astype(dtype)
            found.append(np.full_like(pixel, np.nan) if (values[:, y, x] == NODATA).any() else pixel)
    return np.array(found)


def stored(kind, values, folder):
    if kind == "fortran":
        return np.asfortranarray(values)
    if kind == "memmap":
        np.save(folder / "x.npy", values)
        return np.load(folder / "x.npy", mmap_mode="r")
    if kind == "zarr":
        return zarr.create_array(folder / "x.zarr", data=values, chunks=(2, 4, 3))
    if kind == "dask":
        return da.from_array(values, chunks=(2, 4, 3))
    if kind.startswith("xarray"):
        xr = pytest.importorskip("xarray")
        held = da.from_array(values, chunks=(2, 4, 3)) if kind.endswith("dask") else values
        coords = {"band": ["red", "green", "blue"], "y": np.arange(LINES) * 30.0}
        return xr.DataArray(held, dims=("band", "y", "x"), coords=coords)
    return values[0] if kind == "one band" else values


class TestRasters(SourceContract):
    @pytest.fixture(params=KINDS)
    def opened(self, request, tmp_path):
        values = bands()
        wanted = rows(values[:1] if request.param == "one band" else values)
        return Opened(open_raster(stored(request.param, values, tmp_path), nodata=NODATA), wanted)


class TestWithoutHoles(SourceContract):
    @pytest.fixture(params=["u1", "f8"])
    def opened(self, request):
        values = np.abs(bands()).astype(request.param)
        return Opened(open_raster(values), rows(values, request.param))


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_labels_have_the_shape_of_the_raster(tmp_path, kind):
    values = bands()
    array = stored(kind, values, tmp_path)
    raster = open_raster(array, nodata=NODATA)
    kmeans = StreamKMeans(2, on_invalid="skip", random_state=0, progress=False).fit(raster)
    shaped = raster.shape_labels(kmeans.labels_)
    found = np.asarray(shaped)
    np.testing.assert_array_equal(found == -1, is_empty(values))
    right = np.broadcast_to(np.arange(COLUMNS) > 3, (LINES, COLUMNS))[~is_empty(values)]
    assert len({*zip(found[~is_empty(values)].tolist(), right.tolist(), strict=True)}) == 2
    np.testing.assert_array_equal(raster.shape_labels(kmeans.predict(raster)), found)
    if kind == "dask":
        assert shaped.chunks == array.chunks[1:]
    if kind.startswith("xarray"):
        assert shaped.dims == ("y", "x")
        assert shaped.y.values[1] == 30
        assert tuple(kmeans.feature_names_in_) == ("red", "green", "blue")
        assert shaped.chunks == (array.chunks[1:] if kind.endswith("dask") else None)


def test_masked_pixels_and_nan_have_no_data():
    values = bands("f8")
    masked = np.ma.masked_equal(values, NODATA)
    np.testing.assert_array_equal(next(open_raster(masked).stream(1 << 20)).X, rows(values, "f8"))
    values[values == NODATA] = np.nan
    np.testing.assert_array_equal(next(open_raster(values).stream(1 << 20)).X, rows(bands(), "f8"))
    integers = np.ma.masked_equal(bands(), NODATA)
    assert open_raster(integers).dtype == np.float32
    np.testing.assert_array_equal(next(open_raster(integers).stream(1 << 20)).X, rows(bands()))


def test_a_value_for_each_band_and_values_that_no_band_holds():
    values = np.array([[[1, 2]], [[2, 1]]], np.uint8)
    X = next(open_raster(values, nodata=[1, 9]).stream(1 << 20)).X
    np.testing.assert_array_equal(X, [[np.nan, np.nan], [2, 1]])
    np.testing.assert_array_equal(next(open_raster(values, nodata=-9999).stream(1 << 20)).X, [[1, 2], [2, 1]])


def test_a_value_that_single_precision_rounds():
    values = np.array([[[0.1, 2]], [[2, 1]]], np.float32)
    np.testing.assert_array_equal(next(open_raster(values, nodata=0.1).stream(1 << 20)).X, [[np.nan, np.nan], [2, 1]])


def test_refusals():
    with pytest.raises(InvalidInputError, match=r"shape \(5,\); needed: \(bands, y, x\)"):
        open_raster(np.zeros(5))
    for path in ("bands.npy", Path("bands.tif")):
        with pytest.raises(InvalidInputError, match=rf"of type {type(path).__name__}; .* Open a file first"):
            open_raster(path)
    with pytest.raises(InvalidInputError, match=r"\(0, 2, 2\)"):
        open_raster(np.zeros((0, 2, 2)))
    with pytest.raises(InvalidParameterError, match="one for each of the 3 bands"):
        open_raster(bands(), nodata=[1, 2])
    raster = open_raster(bands(), nodata=NODATA)
    with pytest.raises(InvalidInputError, match=r"pixel \[0, 0\] of the raster; pass on_invalid=\"skip\""):
        StreamKMeans(2, progress=False).fit(raster)
    with pytest.raises(InvalidInputError, match=r"13 x 7 pixels needs \(91,\)"):
        raster.shape_labels(np.zeros(5))
    with pytest.raises(InvalidInputError, match="open_raster"):
        StreamKMeans(2, progress=False).fit(bands())
    with pytest.raises(InvalidInputError, match="open_raster"):
        StreamKMeans(2, progress=False).fit(da.from_array(bands()))


def test_on_a_cluster_as_on_threads(client):
    raster = open_raster(bands(), nodata=NODATA)
    fits = [
        StreamKMeans(2, on_invalid="skip", random_state=0, progress=False, executor=executor).fit(raster)
        for executor in (1, client)
    ]
    np.testing.assert_array_equal(fits[0].labels_, fits[1].labels_)
    np.testing.assert_array_equal(fits[0].cluster_centers_, fits[1].cluster_centers_)
