"""Sources of configured files, documents with their hashing and weights, and the settings that later documents need."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streamkm.cluster.fit_info import FitInfo
from streamkm.core.exceptions import ConfigError, ModelFileError
from streamkm.fitting.documents import COUNTED_BYTES, count_and_weight, open_documents
from streamkm.sources import open_source
from streamkm.sources.documents.hashed import TfIdfRows
from streamkm.sources.documents.open_texts import document_format
from streamkm.sources.fitted_tables import path_options, table_options
from streamkm.sources.formats import TABLES
from streamkm.sources.row_source import RowSource
from streamkm.text import FeatureHashing, TfIdf

TEXT, TFIDF = "text.json", "tfidf.npz"
_DOCUMENTS = ("lines", "files", "jsonl", "csv", "parquet")  # formats
READING = {"field", "delimiter", "header", "decode_error"}  # options of `open_documents`: places of documents
HASHING = {option.name for option in dataclasses.fields(FeatureHashing)}


@dataclass(frozen=True, slots=True)
class Opened:
    """An open source and its text settings."""

    source: RowSource  # not weighted yet where `counts`
    counts: bool = False  # whether document frequencies are still to be counted, in a pass over all documents
    # how documents are hashed and read, as JSON values; empty for rows
    text: dict[str, Any] = field(default_factory=dict)
    sublinear_tf: bool = False  # whether logarithms of counts are weighted; see `open_documents`

    def weighted(self, executor: Any = "auto", memory_limit: Any = "auto") -> RowSource:
        """The source with weighted rows; counts frequencies if needed, in O(characters)."""
        if not self.counts:
            return self.source
        how = {"executor": executor, "memory_limit": memory_limit}
        return count_and_weight(self.source, sublinear_tf=self.sublinear_tf, **how)


def open_configured(paths: str | Sequence[str], data: Mapping[str, Any], text: Any) -> Opened:
    """Open files as rows, or as documents if the format, the suffix, or for tables ``text.field`` says so.

    `data`: options of `open_source`; documents take `format` of them. `text`: the section of that name.
    """
    listed = [paths] if isinstance(paths, str) else list(paths)
    form = data.get("format")
    if form in (None, "auto") and listed:
        form = document_format(listed[0])
    if form not in _DOCUMENTS or (form in TABLES and text.field is None):  # a table of numbers has no field
        for name in text.model_dump(exclude_defaults=True):
            raise ConfigError(
                f"text.{name} is for documents, and {listed[0]} is read as rows; name the column of documents by "
                f"text.field, set data.format to lines or jsonl, or leave text.{name} out"
            )
        return Opened(open_source(paths, **data))
    reading, hashing = text.model_dump(include=READING), text.model_dump(include=HASHING)
    if text.sublinear_tf and text.tfidf is not True:
        raise ConfigError("text.sublinear_tf is of use with text.tfidf: true only; leave one of them out")
    hashing |= {"norm": None} if text.sublinear_tf else {}  # logarithms are those of counts
    weights: bool | TfIdf = False
    if isinstance(text.tfidf, str):
        if not os.path.exists(stored := os.path.expanduser(text.tfidf)):
            raise ConfigError(f"text.tfidf: {text.tfidf} does not exist; needed: true, false, or saved frequencies")
        weights = TfIdf.load(stored)
    files: Any = [Path(path) for path in listed] if len(listed) > 1 else listed[0]
    # YAML and JSON have lists
    tuples: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in hashing.items()}
    given = {**data, "format": form} | {name: each for name, each in reading.items() if each is not None}
    source = open_documents(files, hashing=FeatureHashing(**tuples), tfidf=weights, **given)
    source.access = replace(source.access, unloaded_bytes=COUNTED_BYTES if text.tfidf is True else 0)
    return Opened(source, text.tfidf is True, {"format": form, **reading, **hashing}, text.sublinear_tf)


def usual_steps(source: RowSource, metric: str) -> list[str] | None:
    """Default steps of rows: "table" for tables with text, whose categories must not dominate."""
    table = source.origin.made_with.get("table") or {}
    return ["table"] if table.get("categories") and not source.is_sparse and metric == "euclidean" else None


def write_text_settings(directory: Path, source: RowSource, text: Mapping[str, Any]) -> None:
    """Write settings of documents to ``text.json``, and frequencies to ``tfidf.npz``; nothing for rows."""
    if text:
        tfidf = TFIDF if write_frequencies(directory / TFIDF, source) else False
        (directory / TEXT).write_text(json.dumps({**text, "tfidf": tfidf}, indent=2) + "\n", "utf-8")


def write_frequencies(path: str | os.PathLike[str], source: RowSource) -> str | None:
    """Write the document frequencies of weighted rows; return the path, or None for unweighted rows."""
    if not isinstance(source, TfIdfRows):
        return None
    source.tfidf.save(path, overwrite=True)
    return os.fspath(path)


def read_text_settings(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Read settings of `write_text_settings`, or none if there is no file; ModelFileError for another file."""
    path = Path(directory) / TEXT
    try:
        settings = {**json.loads(path.read_text("utf-8"))}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelFileError(f"{path} does not say how documents were hashed: {error}") from error
    if isinstance(settings.get("tfidf"), str):
        settings["tfidf"] = str(Path(directory) / Path(settings["tfidf"]).name)
    return settings


def read_table_settings(model: str | os.PathLike[str], path: str) -> dict[str, Any]:
    """Keys of ``data`` that open the table `path` like that of a model's fit; none for other files."""
    fitted_on = FitInfo.load(model).source or {}
    return path_options(table_options(fitted_on.get("made_with"), fitted_on.get("id_column")), path)
