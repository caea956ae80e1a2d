"""Summaries, figures, reports and SQL of a fitted estimator; only typical rows are read for them, if asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from streamkm.core.exceptions import InvalidInputError
from streamkm.estimators.base_estimator import BaseKMeans
from streamkm.estimators.input_rows import open_rows
from streamkm.estimators.labelling import current_model, known_labels, known_means
from streamkm.estimators.model_files import cluster_summary, result_facts, summarize
from streamkm.estimators.sql import label_query
from streamkm.estimators.validation import check_value, integer
from streamkm.fitting.kmeans import DEVIATION_ROWS
from streamkm.metrics.cluster_details import Wording, between_deviations, describe_clusters, steadied
from streamkm.metrics.cluster_summary import ClusterSummary, Missing
from streamkm.passes.excerpts import row_ids, rows_as_text
from streamkm.preparation import Preparation
from streamkm.reports.maps import ClusterMap, cluster_map
from streamkm.reports.report import (
    cautions,
    check_matplotlib,
    check_page_place,
    counter_cautions,
    names_of,
    report_page,
    write_page,
)

_NEXT_STEPS = """\
kmeans.predict(more)      # labels of other rows
kmeans.summary(rows=X)    # with typical rows of X
kmeans.save("model.npz")  # {}.load
"""
_LABELS = "kmeans.labels_            # of these rows\n"


def feature_namer(estimator: Any) -> Callable[[int], str]:
    """A function from the number of a feature to its word or name, else to x and the number."""
    words, names = getattr(estimator, "feature_words_", None), getattr(estimator, "feature_names_in_", None)
    first = ((vars(estimator).get("fitted_on_") or {}).get("made_with") or {}).get("first_index", 0)

    def name_of(number: int) -> str:
        known = f"x{number + first}" if names is None else str(names[number])
        return str((words and words.name(number)) or known)

    return name_of


def in_units(preparation: Preparation | None, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Prepared values in the units of the data, if the preparation has an inverse; else unchanged."""
    return preparation.undone(values) if preparation is not None and preparation.is_invertible else values


class DescribedKMeans(BaseKMeans):
    """Adds `summary`, `plot`, `report` and `original_centers` to an estimator of clusters."""

    preparation_: Preparation | None = None

    @property
    def missing_(self) -> Missing | None:
        """Missing values of the rows of the fit, for ``invalid="mean"``; None for others."""
        fill = None if self.preparation_ is None else self.preparation_.fill
        return None if fill is None else Missing.of(fill.missing, feature_namer(self))

    def original_centers(self) -> NDArray[np.float64]:
        """Give `cluster_centers_` in the units of the data, as float64 ndarray (k, d), by the inverse of `preprocess`.

        The inverse of "log1p" gives geometric means of 1 + x, less 1, which are below the means.

        Raises
        ------
        InvalidInputError
            For centers of a sketch, and for "total" and "unit", which have no inverse.
        """
        check_is_fitted(self, "model_")
        preparation = self.preparation_
        if self.assign_space_ != "original" or not (preparation is None or preparation.is_invertible):
            raise InvalidInputError(
                "original_centers() is for centers of features, and for steps that have an inverse: standardize, "
                "robust and log1p. Other means by cluster are those of the rows with each label of labels_"
            )
        return in_units(preparation, current_model(self).wide_centers().copy())

    def to_sql(
        self,
        dialect: Literal["duckdb", "postgres", "bigquery"] = "duckdb",
        *,
        table: str,
        columns: Sequence[str] | None = None,
        id_column: str | None = None,
    ) -> str:
        """Write one SELECT that labels the rows of a table in a database, as `predict` labels them.

        Parameters
        ----------
        dialect : {"duckdb", "postgres", "bigquery"}, default="duckdb"
            How names, texts and types are written.
        table : str
            Its name; dots stand between schema and table.
        columns : list of str, optional
            Names in the table of the columns of the fit, in its order; by default the same.
        id_column : str, optional
            The column beside the labels; by default that of the fit, else all columns that are read.

        Returns
        -------
        str
            A statement with the preparation, the categories and the centers of the model. ``cluster`` is NULL where
            `predict` gives -1 or an error: for missing values that are not filled, infinity, and unknown categories.

        Raises
        ------
        InvalidInputError, InvalidParameterError
            For rows assigned in a sketch, hashed features, dates, columns of vectors, more than a million characters,
            another dialect, and another number of columns than those of the fit.

        Notes
        -----
        The statement computes in float64. Rows on a border between two clusters, to the rounding of their type, may get
        the other label. Exact ties go to the lower number.
        """
        check_is_fitted(self, "model_")
        return label_query(self, dialect, table, columns, id_column)

    def summary(self, n_traits: int | None = None, *, rows: Any = None) -> ClusterSummary:
        """Say what is in each cluster: sizes, distances, the nearest other one, and the features that set it apart.

        Sizes, means and distances are exact, of all rows, gathered in the last pass; nothing is read for them. A loaded
        model has its centers in place of the means, except for spherical ones, which keep their means. For kernel
        k-means, distances are those of the kernel's features, which are not told themselves.

        Parameters
        ----------
        n_traits : int, optional
            Features for each cluster: those whose mean in it lies farthest from that of all rows, in standard
            deviations (for sparse rows in `steadied` ones). By default 3; 8 where known words name the
            features, and then the clusters. Means are in the units of the data, as by `original_centers`, if all steps
            have an inverse; distances are always those of prepared rows.
        rows : as for `fit`, optional
            The fitted data, read once more to show typical and outlying rows: their ids if there is an id column, the
            first words of documents, the values of other rows.

        Returns
        -------
        ClusterSummary
            The largest cluster first. Prints as a table; ``to_pandas()`` and ``to_dicts()`` give it for use.

        Raises
        ------
        NotFittedError, InvalidInputError
            Before `fit`; if clusters have no features of their own: of rows assigned in the sketch, and of streams.
        """
        check_is_fitted(self, "model_")
        words, deviations = getattr(self, "feature_words_", None), getattr(self, "feature_deviations_", None)
        exact, preparation, columns = known_means(self), self.model_.preparation, self.model_.columns
        means = self.model_.centers if exact is None else exact
        if hasattr(self, "kernel"):  # whose features are its own, and tell nothing
            deviations, n_traits, words = np.zeros(means.shape[1]), 0, None
        n_traits = (8 if words else 3) if n_traits is None else n_traits
        check_value("n_traits", n_traits, integer(0))
        if deviations is None:
            raise InvalidInputError(
                "summary() needs means of the original features, which a fit leaves: not IncrementalKMeans, nor labels "
                'of the sketch (SketchOptions(assign_space="original") asks for those of the original features)'
            )
        name, sparse = feature_namer(self), self.fitted_on_["sparse"]
        if len(deviations) > DEVIATION_ROWS and sparse:
            deviations = steadied(deviations)
        if not sparse:  # the sample may lack rare rows, which exact means show
            deviations = np.maximum(deviations, between_deviations(means, self.counts_))
        undone, invertible = None, preparation is None or preparation.is_invertible
        if preparation is not None and invertible:
            of_all = np.vstack([means, self.counts_ @ means / self.counts_.sum()])
            undone = preparation.undone(of_all if columns is None else columns.wide(of_all))
        told = Wording(name, n_traits, words.features if words else None, undone)
        if columns is not None:
            told, deviations = told.narrowed(columns), columns.narrow(deviations[None])[0]
            deviations[-1] = 0.0  # what rows have elsewhere is no feature
        summary = describe_clusters(means, self.counts_, deviations, told, profile=getattr(self, "profile_", None))
        found = [*cautions(summary.rows, result_facts(self))]
        if preparation is not None and preparation.table is not None:
            found += preparation.table.told(name)
        sample = vars(self).get("sketch_sample_")
        if isinstance(sample, np.ndarray) and self.sketch_.is_identity and invertible:
            found += counter_cautions(in_units(preparation, sample.astype(np.float64)), self.n_samples_, name)
        summary = replace(summary, missing=self.missing_, cautions=tuple(found))
        if rows is None:
            return summary
        source = open_rows(self, rows, reset=None)
        shown, names = summary.example_rows(), getattr(self, "feature_names_in_", None)
        return summary.with_examples(row_ids(source, shown), rows_as_text(source, shown, names))

    def plot(self) -> Any:
        """Draw a map of the clusters and their sizes. Needs matplotlib.

        Sampled rows that lie side by side on the map are alike. It shows the means of more than 90 clusters, and those
        of streams and loaded models, which have no sample of rows.

        Returns
        -------
        matplotlib.figure.Figure
            Notebooks show it; ``figure.savefig("clusters.png")`` writes it.

        Raises
        ------
        NotFittedError, MissingDependencyError
            Before `fit`; without matplotlib.
        """
        check_is_fitted(self, ["model_", "counts_"])
        check_matplotlib()
        from streamkm.reports.figures import plot_clusters

        facts = summarize(self)
        return plot_clusters(self._places(), self.counts_, names_of(facts), facts["result"]["ids"])

    def report(self, path: str | os.PathLike[str], *, rows: Any = None) -> None:
        """Write a report, one HTML file that needs no other: what was found, how good it is, and what is in clusters.

        Figures need matplotlib. Streams and loaded models report what they know.

        Parameters
        ----------
        path : path
            A report that is there is replaced by the complete new one, nothing else is.
        rows : as for `fit`, optional
            The fitted data, read once more for the ids of typical rows.

        Raises
        ------
        NotFittedError
        DiskFullError, OutputError
            Something else is there, or it cannot be written; what was there is as it was.
        """
        check_is_fitted(self, ["model_", "counts_"])
        check_page_place(path)
        facts = summarize(self, cluster_summary(self, rows))
        steps = ("" if known_labels(self) is None else _LABELS) + _NEXT_STEPS.format(type(self).__name__)
        write_page(path, report_page(facts, self._places(), steps))

    def _places(self) -> ClusterMap:
        """The map of sampled rows, or of the centers if there are none."""
        if "sketch_sample_" in vars(self):
            return cluster_map(self.sketch_sample_, self.sample_labels_, self.counts_)
        centers = current_model(self).centers
        return replace(cluster_map(centers, np.arange(len(centers), dtype=np.int32), self.counts_), of_rows=False)
