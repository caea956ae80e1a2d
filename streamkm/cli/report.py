"""The report of a results directory.

Everything in a report comes from the files in the directory, so it can be made again.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamkm.cli.results import MODEL, REPORT, SUMMARY, VIEW, labels_name, write_texts
from streamkm.core.display import displayed
from streamkm.core.exceptions import InvalidParameterError, SourceError
from streamkm.reports.maps import ClusterMap
from streamkm.reports.report import report_page

_LOADING = {
    ".npy": 'np.load("{}")',
    ".zarr": 'zarr.open_array("{}")[:]',
    ".csv": 'pd.read_csv("{}")',
    ".parquet": 'pd.read_parquet("{}")',
}
_MODULES = {".npy": "numpy as np", ".zarr": "zarr", ".csv": "pandas as pd", ".parquet": "pandas as pd"}


def write_report(directory: str | os.PathLike[str], image_shape: Sequence[int] | None = None) -> Path:
    """Make report.html from the summary and the map in a results directory.

    Without matplotlib the report has no figures, which is logged.

    Parameters
    ----------
    directory : path
        As `streamkm.cli.results.write_results` leaves it.
    image_shape : (height, width) or (height, width, 3), optional
        Of rows of pixels: the centers of the model are shown as pictures.

    Returns
    -------
    Path
        Of the report.

    Raises
    ------
    SourceError
        The directory holds no such results, or damaged ones.
    InvalidParameterError
        An `image_shape` that rows do not have.
    OutputError
        The report cannot be written.
    """
    folder = Path(directory)
    write_texts(folder, {REPORT: _page(folder, folder, image_shape)}, [REPORT], overwrite=True)
    return folder / REPORT


def results_page(folder: Path, shown: Path, image_shape: Sequence[int] | None) -> None:
    """Write the report of results into their folder, which the report calls `shown`; see `write_report`."""
    (folder / REPORT).write_text(_page(folder, shown, image_shape), "utf-8")


def _page(folder: Path, shown: Path, image_shape: Sequence[int] | None) -> str:
    try:
        summary: dict[str, Any] = json.loads((folder / SUMMARY).read_text("utf-8"))
        summary["stages"] = [stage for stage in summary["stages"] if stage["name"] != "report"]  # drawn after these
        summary["seconds"] = sum(stage["seconds"] for stage in summary["stages"])
        with open(folder / VIEW, "rb") as file, np.load(file, allow_pickle=False) as stored:
            flags = (bool(stored["of_rows"]), bool(stored["by_neighbours"]))
            places = ClusterMap(stored["points"], stored["labels"], *flags)
        if image_shape is not None:
            from streamkm.estimators.fit_summary import shown_clusters
            from streamkm.estimators.kmeans import StreamKMeans

            model = StreamKMeans.load(folder / MODEL)
            summary["clusters"] = shown_clusters(model, summary["clusters"] or [], None, image_shape)
        return displayed(report_page(summary, places, _next_steps(shown, labels_name(folder), summary["result"])))
    except InvalidParameterError:
        raise
    except (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise SourceError(f"{folder} has no complete results of streamkm fit ({error}); run the fit again") from error


def _next_steps(folder: Path, name: str, result: Mapping[str, Any]) -> str:
    """Commands and lines of Python that take up the results in a directory, whose labels have a name."""
    labels, suffix = folder / name, Path(name).suffix
    kind, last = ("StreamKernelKMeans", "predict(X)") if "trace_residual" in result else ("StreamKMeans", "summary()")
    return (
        f"# label more rows of this kind\nstreamkm assign {folder / MODEL} MORE_DATA -o more-{name}\n\n"
        f"# in Python\nimport {_MODULES[suffix]}\nfrom streamkm import {kind}\n"
        f"labels = {_LOADING[suffix].format(labels)}\n"
        f'kmeans = {kind}.load("{folder / MODEL}")\nprint(kmeans.{last})'
    )
