"""Summaries of clusters as values that print well; `cluster_details` and `drift` compute them."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from streamkm.core.display import columns_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pandas import DataFrame

Reason = Literal["share", "mean", "novel", "new"]
_STYLE = "max-width:40em;text-align:left"


@dataclass(frozen=True, slots=True)
class Trait:
    """A feature that sets a cluster apart."""

    feature: str  # its name, its word, or its number
    mean: float  # of the cluster's rows, and of all rows
    mean_of_all: float
    deviations: float  # the difference of both in standard deviations of all rows

    def __str__(self) -> str:
        mean = f"{self.mean:,.0f}" if 1e4 <= abs(self.mean) < 1e9 else f"{self.mean:.4g}"  # incomes, days
        return f"{self.feature} {mean} ({self.deviations:+.1f} sd)"


@dataclass(frozen=True, slots=True)
class Example:
    """A row of a cluster."""

    row: int  # its number, from 0
    distance: float  # to the center
    id: str | None = None  # what the data call it, where they have an id column
    text: str | None = None  # the row as it stands in the data, cut short, where that was asked for

    def __str__(self) -> str:
        return str(self.row) if self.id is None else self.id


@dataclass(frozen=True, slots=True)
class ClusterRow:
    """One cluster."""

    cluster: int  # its label
    size: float  # rows, or their weight
    share: float  # of all rows
    nearest: int  # the cluster whose mean lies nearest; -1 where there is no other
    distance: float  # between the two means
    traits: tuple[Trait, ...]  # those that set it apart most, first
    # of its rows to the center; None where no pass measured them, and for clusters without rows
    mean_distance: float | None = None
    largest_distance: float | None = None
    # mean simplified silhouette of its rows, ``1 - a / b`` with a the distance to the center and b that to the second
    # nearest: 1 far from all others, 0 on the border. None also where there is one cluster, and for dense rows and more
    # than 4,096 clusters, where second nearest centers are not looked for; the table then says so
    simplified_silhouette: float | None = None
    typical: tuple[Example, ...] = ()  # rows nearest to the center, and farthest from it
    outlying: tuple[Example, ...] = ()
    n_blank: int = 0  # rows without any value, of sparse data: documents without a word


@dataclass(frozen=True, slots=True)
class Moved:
    """A feature whose mean moved in a cluster."""

    feature: str  # its name, its word, or its number
    before: float  # means of the rows before, and of new rows
    now: float


@dataclass(frozen=True, slots=True)
class ClusterDrift:
    """One cluster, before and now."""

    id: int
    rows: float  # new ones, or their weight
    share_before: float  # of all rows before, and of all new rows
    share: float
    # of its mean, in mean distances of the rows before; NaN where these tell no spread, or there are no new rows
    shift: float
    moved: tuple[Moved, ...]  # features that moved most, first
    distance_before: float  # mean distance to the center; NaN where there are no rows
    distance: float
    novel: float  # new rows beyond its reach
    # tuple of {"share", "mean", "novel", "new"}, what changed most in it; empty for most clusters
    reasons: tuple[Reason, ...]

    def __str__(self) -> str:
        """The changes of the cluster, for people."""
        texts = {
            "share": f"share {self.share_before:.1%} to {self.share:.1%}",
            "mean": f"mean moved by {self.shift:.2g} of the mean distance",
            "new": "new",
            "novel": f"{weight_text(self.novel)} rows beyond the distances seen",
        }
        return f"cluster {self.id} ({', '.join(texts[reason] for reason in self.reasons) or 'unchanged'})"


@dataclass(frozen=True, slots=True)
class Missing:
    """Values that were missing."""

    share: float  # of all values
    feature: str  # the name, or number, of the feature that lacks most
    most: float  # share of its values

    @classmethod
    def of(cls, shares: NDArray[np.float64], name: Callable[[int], str]) -> Missing:
        """Make it from the share of missing values of each feature; `name` gives the name of a feature."""
        most = int(shares.argmax())
        return cls(float(shares.mean()), name(most), float(shares[most]))

    def __str__(self) -> str:
        return f"{self.share:.1%} of all values were missing, {self.most:.1%} of {self.feature}; filled with means"


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """All clusters, the largest first; prints as a table, also in notebooks."""

    rows: tuple[ClusterRow, ...]
    by_words: bool = False  # whether traits are words
    missing: Missing | None = None  # values that were missing and filled
    cautions: tuple[str, ...] = ()  # where the result is poor, and what to look at

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Print the table in IPython."""
        printer.text(str(self))

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        head, cells = self.table()
        out, indent = [], " " * max(len(line[0]) for line in [head, *cells])
        for line, row in zip(columns_text([head, *cells]), (None, *self.rows), strict=True):
            shown = () if row is None else row.typical
            out += [line, *(f"{indent}  {each}: {each.text}" for each in shown if each.text is not None)]
        return "\n".join([*out, *self.notes()])

    def notes(self) -> list[str]:
        """Facts that the table leaves out, and the reason."""
        n_blank, notes = sum(row.n_blank for row in self.rows), []
        if n_blank:
            where = ", ".join(f"{row.n_blank:,} in cluster {row.cluster}" for row in self.rows if row.n_blank)
            notes.append(f"{blank_text(n_blank, by_words=self.by_words)}: {where}")
        notes += [] if self.missing is None else [str(self.missing)]
        measured = any(row.mean_distance is not None and row.nearest >= 0 for row in self.rows)
        if measured and all(row.simplified_silhouette is None for row in self.rows):
            notes.append("no simplified silhouettes: of so many clusters, second nearest centers are not looked for")
        return [*notes, *(f"caution: {each}" for each in self.cautions)]

    def _repr_html_(self) -> str:
        head, cells = self.table()
        lines = [html_line(head, "th")]
        for line, row in zip(cells, self.rows, strict=True):
            lines.append(html_line(line, "td"))
            for each in row.typical:
                if each.text is not None:
                    text = html.escape(f"{each}: {each.text}")
                    lines.append(f'<tr><td></td><td colspan="{len(head) - 1}" style="{_STYLE}">{text}</td></tr>')
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes())
        return f"<table>{''.join(lines)}</table>{notes}"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Heads and cells of the table, as text; columns that say nothing are left out."""
        columns: dict[str, list[str]] = {
            "cluster": [str(row.cluster) for row in self.rows],
            "size": [f"{row.size:,.6g}" if row.size < 1e6 else f"{row.size:,.0f}" for row in self.rows],
            "share": [f"{row.share:.1%}" for row in self.rows],
            "mean distance": [number_text(row.mean_distance) for row in self.rows],
            "largest": [number_text(row.largest_distance) for row in self.rows],
            "simplified silhouette": [number_text(row.simplified_silhouette, ".2f") for row in self.rows],
            "nearest": ["-" if row.nearest < 0 else f"{row.nearest} ({row.distance:.3g})" for row in self.rows],
            "typical row": [str(row.typical[0]) if row.typical else "-" for row in self.rows],
            "words" if self.by_words else "set apart by": [self.traits_text(row) for row in self.rows],
        }
        last = list(columns)[-1]
        told = {head: cells for head, cells in columns.items() if head == last or any(each != "-" for each in cells)}
        return tuple(told), list(zip(*told.values(), strict=True))

    def traits_text(self, row: ClusterRow) -> str:
        """Traits of a cluster, in one line."""
        return ", ".join(trait.feature if self.by_words else str(trait) for trait in row.traits)

    def with_examples(self, ids: Mapping[int, str], texts: Mapping[int, str]) -> ClusterSummary:
        """Give the examples of a copy their ids and texts in the data, as far as these are known."""

        def told(each: Example) -> Example:
            return replace(each, id=ids.get(each.row, each.id), text=texts.get(each.row, each.text))

        rows = [
            replace(row, typical=tuple(map(told, row.typical)), outlying=tuple(map(told, row.outlying)))
            for row in self.rows
        ]
        return replace(self, rows=tuple(rows))

    def example_rows(self) -> list[int]:
        """Numbers of all example rows, ascending."""
        return sorted({each.row for row in self.rows for each in (*row.typical, *row.outlying)})

    def to_dicts(self) -> list[dict[str, Any]]:
        """JSON values, a mapping for each cluster."""
        return [asdict(row) for row in self.rows]

    def to_pandas(self) -> DataFrame:
        """A data frame with a row for each cluster; ``traits``, ``typical`` and ``outlying`` as text. Needs pandas."""
        import pandas as pd

        rows = [
            asdict(row)
            | {name: ", ".join(map(str, getattr(row, name))) for name in ("typical", "outlying")}
            | {"traits": self.traits_text(row)}
            for row in self.rows
        ]
        frame = pd.DataFrame(rows).set_index("cluster")
        measured = ["mean_distance", "largest_distance", "simplified_silhouette"]
        return frame.astype(dict.fromkeys(measured, float))


def number_text(value: float | None, form: str = ".4g") -> str:
    """A number for people, with four digits; a dash for None and NaN."""
    return "-" if value is None or math.isnan(value) else f"{value:{form}}"


def weight_text(weight: float) -> str:
    """A weight of rows, without decimals above 100."""
    return f"{weight:,.0f}" if weight >= 100 else f"{weight:.4g}"


def plain(value: Any) -> Any:
    """A value as JSON takes it, None for numbers that are not finite."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def blank_text(n_blank: int, *, by_words: bool) -> str:
    """Number of rows without any value, for people."""
    return f"{n_blank:,} {'row' if n_blank == 1 else 'rows'} without any {'word' if by_words else 'value'}"


def html_line(cells: Sequence[str], tag: str) -> str:
    """Cells as a row of a table for notebooks; the last one is aligned left."""
    styles = ["", *([""] * (len(cells) - 2)), f' style="{_STYLE}"']
    return f"<tr>{''.join(f'<{tag}{s}>{html.escape(c)}</{tag}>' for c, s in zip(cells, styles, strict=True))}</tr>"
