"""What a sweep found: a table, the elbow of its curve, and labels and centers of every clustering.

Writes nothing but tables.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamkm.cluster.model import Space
from streamkm.cluster.polish import POLISH_STEPS, POLISH_TOL, polish
from streamkm.cluster.rows import add_rows
from streamkm.core.atomic_io import check_new, replace_file
from streamkm.core.exceptions import InvalidParameterError
from streamkm.core.text_table import Lines
from streamkm.engine import local_executor, open_executor
from streamkm.model_selection.swept_rows import SweptRows
from streamkm.reports.report import check_matplotlib, write_page
from streamkm.reports.sweep import sweep_page, sweep_svg
from streamkm.sketches import Sketch


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One clustering of a sweep.

    Attributes
    ----------
    n_clusters : int
        k, as asked for.
    seed : int
        Number of the run, from 0.
    n_found : int
        Clusters found; fewer than k if the rows are too much alike.
    inertia : float
        Sum of squared distances of the clustered rows to the means of their clusters.
    inertia_per_row : float
    silhouette, calinski_harabasz, davies_bouldin : float
        NaN where they have no meaning, as for one cluster.
    stability : float
        Mean adjusted Rand index between the labels of all pairs of seeds, the same for all seeds of a k; NaN for a
        single seed.
    silhouette_error : float
        Standard error of the silhouette, which is taken of sampled rows.
    seconds : float
        Wall time of this clustering, and of its scores.
    """

    n_clusters: int
    seed: int
    n_found: int
    inertia: float
    inertia_per_row: float
    silhouette: float
    calinski_harabasz: float
    davies_bouldin: float
    stability: float
    silhouette_error: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SweepResult(Lines):
    """What a sweep found.

    Attributes
    ----------
    rows : tuple of SweepRow
        By k, then by seed.
    space : "original" or "sketch"
        Where `rows` are scored; the sketch only where the centers would take too much memory.
    n_samples : int
        Valid rows of the data, n.
    n_sampled : int
        Rows that were clustered and scored. Equal to `n_samples` where all were.
    n_judged : int
        Rows among them that silhouettes are taken of, within themselves.
    sample_rows : int64 (n_sampled,)
        Their numbers in the data.
    sketch : Sketch
    """

    rows: tuple[SweepRow, ...]
    space: Space
    n_samples: int
    n_sampled: int
    n_judged: int
    sample_rows: NDArray[np.int64]
    sketch: Sketch
    _labels: dict[int, NDArray[Any]] = field(repr=False)
    _swept: SweptRows = field(repr=False)
    _given: dict[str, Any] = field(repr=False)

    @property
    def n_clusters(self) -> tuple[int, ...]:
        """Every k, ascending."""
        return tuple(self._labels)

    @property
    def best(self) -> int | None:
        """The elbow: the k at which the curve of the lowest inertia of each k lies farthest below its chord.

        Both axes scaled to [0, 1]. None for fewer than three k, or where the curve does not fall.

        References
        ----------
        Satopaa, Albrecht, Irwin and Raghavan, "Finding a kneedle in a haystack", ICDCS workshops (2011), section 3,
        for a finished convex decreasing curve and without its threshold.
        """
        lowest = [min(row.inertia for row in self.rows if row.n_clusters == k) for k in self.n_clusters]
        at = elbow(self.n_clusters, lowest)
        return None if at is None else self.n_clusters[at]

    def best_by(self, score: str) -> int:
        """The k with the best value of a score, seeds averaged; the lowest of equals, and the highest for stability.

        Parameters
        ----------
        score : "silhouette", "calinski_harabasz", "davies_bouldin" or "stability"

        Raises
        ------
        InvalidParameterError
            For another name, or where the score has no value for any k.
        """
        if score not in _SCORES:
            raise InvalidParameterError(f"score={score!r}; needed: one of {', '.join(map(repr, _SCORES))}")
        means = np.array(list(self._means(score).values()))
        values = np.where(np.isnan(means), -np.inf, -means if score == "davies_bouldin" else means)
        if not np.isfinite(values).any():
            raise InvalidParameterError(f"{score} has no value for any k of this sweep; use more seeds, or k from 2")
        best = np.flatnonzero(values == values.max())
        return self.n_clusters[int(best[-1 if score == "stability" else 0])]

    def votes(self) -> dict[str, int]:
        """The k that the elbow and each score name. Stability does not vote: few clusters are nearly always stable."""
        votes = {} if self.best is None else {"elbow": self.best}
        for name in _SCORES:
            if name != "stability" and self._has(name):
                votes[name] = self.best_by(name)
        return votes

    def at_the_end(self) -> tuple[str, ...]:
        """Which votes name the first or last k of the sweep: a better one may lie beyond. No k lies below 2."""
        first, last = self.n_clusters[0], self.n_clusters[-1]
        ends = {last} | ({first} if first > 2 else set()) if last > first else set()
        return tuple(name for name, k in self.votes().items() if k in ends)

    def further(self) -> list[int]:
        """Numbers of clusters to sweep next where a vote names the last: up to twice it, in the last step.

        None that leaves fewer than 20 clustered rows for each cluster.
        """
        ks, votes = self.n_clusters, self.votes()
        if all(votes[name] < ks[-1] for name in self.at_the_end()):
            return []
        step = ks[-1] - ks[-2]
        return list(range(ks[-1] + step, min(2 * ks[-1], self.n_sampled // ROWS_TO_EXTEND) + 1, step))

    def verdict(self) -> tuple[int, tuple[str, ...]]:
        """The number of clusters that most of the elbow and the scores name, and which do; of equals, the first named.

        A vote for the end of the range, as of `at_the_end`, is no answer and does not count.

        Returns
        -------
        n_clusters : int
            Where no vote counts, the one that most name all the same, or the one with the lowest objective.
        named_by : tuple of str
            "elbow" and names of scores; empty where no vote counts.
        """
        votes, ends = self.votes(), self.at_the_end()
        counted = {name: k for name, k in votes.items() if name not in ends}
        if not votes:
            return min(self.rows, key=lambda row: row.inertia).n_clusters, ()
        named = list((counted or votes).values())
        k = max(named, key=named.count)
        return k, tuple(name for name, value in counted.items() if value == k)

    def cautions(self) -> list[tuple[str, str]]:
        """Label and text: what makes the verdict uncertain, that criteria disagree or name the end of the range."""
        votes, ends, cautions = self.votes(), self.at_the_end(), []
        if len(set(votes.values())) > 1:
            said = "; ".join(f"{k:,} by {_names(name for name in votes if votes[name] == k)}" for k in _once(votes))
            cautions.append(("disagreement", f"criteria name different numbers of clusters: {said}"))
        for k in _once({name: votes[name] for name in ends}):
            who = _names(name for name in ends if votes[name] == k)
            where = f"the best value of {who} lies at the end of the range, {k:,} clusters; look further"
            cautions.append(("end of range", where))
        return cautions

    def labels(self, n_clusters: int) -> NDArray[np.int32]:
        """Labels (n_sampled,) of the clustered rows, `sample_rows`, by the seed of the lowest inertia.

        Raises
        ------
        InvalidParameterError
            If this k was not among those of the sweep.
        """
        if n_clusters not in self._labels:
            raise InvalidParameterError(
                f"n_clusters={n_clusters!r} is not in this sweep; it holds {_shortly(self.n_clusters)}"
            )
        return self._labels[n_clusters].astype(np.int32)

    def centers(self, n_clusters: int) -> NDArray[np.float64]:
        """Centers (k, d) in the original space: means of the clustered rows, polished by Lloyd steps on the sample.

        Computed when asked for. ``StreamKMeans(k, init=result.centers(k))`` starts there and labels all rows.

        Raises
        ------
        InvalidParameterError
            If this k was not among those of the sweep.
        """
        labels, rows = self.labels(n_clusters), self._swept.clustered
        sums, counts = np.zeros((int(labels.max()) + 1, rows.X.shape[1])), np.zeros(int(labels.max()) + 1)
        add_rows(rows.X, rows.weights, labels, sums, counts)
        means = sums[counts > 0] / counts[counts > 0, None]
        with open_executor() as workers, local_executor(workers) as here:
            return polish(here, self._swept.all_rows(), means, max_iter=POLISH_STEPS, tol=POLISH_TOL).centers

    def to_dict(self) -> dict[str, Any]:
        """JSON values: cautions, votes and the verdict (null where no vote counts), what all is of, and the rows."""
        k, named_by = self.verdict()
        return {
            "cautions": [text for _, text in self.cautions()],
            "votes": self.votes(),
            "at_the_end": list(self.at_the_end()),
            "verdict": k if named_by else None,
            "named_by": list(named_by),
            "space": self.space,
            "n_samples": self.n_samples,
            "n_sampled": self.n_sampled,
            "n_judged": self.n_judged,
            "best": self.best,
            "rows": [dict(zip(COLUMNS, map(_plain, astuple(row)), strict=True)) for row in self.rows],
        }

    def csv_text(self) -> str:
        """The rows as CSV with a header; nothing for NaN."""
        with io.StringIO(newline="") as buffer:
            writer = csv.writer(buffer, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows([_plain(value) for value in astuple(row)] for row in self.rows)
            return buffer.getvalue()

    def to_csv(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write `csv_text` to a file; readers see the old file or the whole new one.

        Parameters
        ----------
        path : path
        overwrite : bool
            Replace a file that is there, whatever it is.

        Raises
        ------
        DiskFullError, OutputError
            It exists, or cannot be written; the old file is as it was.
        """
        check_new(path, overwrite=overwrite)
        text = self.csv_text().encode()
        replace_file(path, lambda file: file.write(text), len(text))

    def plot(self) -> Any:
        """Draw the objective by the number of clusters with its elbow, and the scores. Needs matplotlib.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        MissingDependencyError
            Without matplotlib.
        """
        check_matplotlib()
        from streamkm.reports.sweep_figure import sweep_figure

        return sweep_figure(self.to_dict())

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write a report, one HTML file that needs no other. Its figure needs matplotlib.

        Raises
        ------
        DiskFullError, OutputError
            Something else than a report is there, or it cannot be written; what was there is as it was.
        """
        table = self.to_dict()
        write_page(path, sweep_page(table, self.lines(), self.next_step(), sweep_svg(table)))

    def next_step(self) -> str:
        """A line of Python that clusters all rows as the sweep did, into as many clusters as the verdict names."""
        given = "".join(f", {name}={value!r}" for name, value in self._given.items() if value != _DEFAULTS[name])
        return f"labels = StreamKMeans({self.verdict()[0]}{given}).fit_predict(X)"

    def lines(self) -> list[tuple[str, str]]:
        """Label and text, for people."""
        ks = self.n_clusters
        part = "all" if self.n_sampled == self.n_samples else f"{self.n_sampled:,} of"
        lines = [
            *self.cautions(),
            ("rows", f"{part} {self.n_samples:,}"),
            ("clusters", f"{len(ks):,} numbers from {ks[0]:,} to {ks[-1]:,}"),
            ("scored", f"in the {self.space} space; silhouettes on {self.n_judged:,} rows"),
        ]
        if self.best is not None:
            lines.append(("elbow", f"{self.best:,} clusters"))
        for name, said in _SCORES.items():
            if self._has(name):
                means = self._means(name)
                best = self.best_by(name)
                value = means[best]
                equal = [k for k in ks if means[k] == value]
                error = self._means("silhouette_error")[best] if name == "silhouette" else float("nan")
                within = f" +- {error:.2g}" if np.isfinite(error) else ""
                lines.append((said, f"{_shortly(equal)} clusters ({value:,.4g}{within})"))
        return [*lines, ("verdict", self._verdict_text())]

    def _verdict_text(self) -> str:
        """The verdict, for people."""
        (k, named_by), votes = self.verdict(), self.votes()
        if not votes:
            return f"{k:,} clusters, by nothing but the lowest objective"
        if not named_by:
            return "none: the best values lie at the end of the range; look further"
        part = "" if len(named_by) == len(votes) else f"; {len(named_by)} of {len(votes)} criteria"
        return f"{k:,} clusters, by {_names(named_by)}{part}"

    def _has(self, score: str) -> bool:
        """Whether a score has a value for any k."""
        return any(np.isfinite(getattr(row, score)) for row in self.rows)

    def _means(self, score: str) -> dict[int, float]:
        """Means of a score over seeds, by k."""
        return {
            k: float(np.mean([getattr(row, score) for row in self.rows if row.n_clusters == k]))
            for k in self.n_clusters
        }


def elbow(n_clusters: Sequence[int], inertia: Sequence[float]) -> int | None:
    """Position of the point farthest below the chord of a falling curve, both axes scaled to [0, 1].

    None for fewer than three points, or a curve that does not fall.
    """
    x, y = np.asarray(n_clusters, np.float64), np.asarray(inertia, np.float64)
    if len(x) < 3 or y[0] <= y[-1]:
        return None
    below = (x[-1] - x) / (x[-1] - x[0]) - (y - y[-1]) / (y[0] - y[-1])
    return int(np.argmax(below))


ROWS_TO_EXTEND = 20  # clustered rows for each cluster of a sweep that goes on by itself
COLUMNS = tuple(entry.name for entry in fields(SweepRow))
_DEFAULTS: dict[str, Any] = {"metric": "euclidean", "preprocess": [], "on_invalid": "raise", "on_missing": "raise"}
_SCORES = {
    "silhouette": "best silhouette",
    "calinski_harabasz": "best Calinski-Harabasz",
    "davies_bouldin": "best Davies-Bouldin",
    "stability": "most stable",
}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _names(scores: Iterable[str]) -> str:
    """Names of scores, for people."""
    return ", ".join(_SCORES.get(name, name).removeprefix("best ") for name in scores)


def _once(votes: dict[str, int]) -> list[int]:
    """Every k that is named, in the order of the votes."""
    return list(dict.fromkeys(votes.values()))


def _shortly(values: Sequence[int]) -> str:
    shown = ", ".join(map(str, values[:10]))
    return shown if len(values) <= 10 else f"{shown}, ... {values[-1]}"
