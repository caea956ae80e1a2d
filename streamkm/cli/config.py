"""Source, estimator, output and Dask cluster from config.yaml and overrides; the only module that imports yaml."""

from __future__ import annotations

import glob
import inspect
import os
import re
import reprlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from streamkm.cli.data import TEXT, Opened, open_configured, read_table_settings, read_text_settings, usual_steps
from streamkm.cli.schema import SECTIONS, Output, flat_parameters, validate
from streamkm.cli.summary import source_lines, table_text
from streamkm.core.display import MASK, aligned
from streamkm.core.exceptions import ConfigError, InvalidInputError, StreamkmError
from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.estimators.validation import check_parameters
from streamkm.planning.plan import Plan
from streamkm.sketches.options import OPTIONS
from streamkm.sources import RowSource, open_source
from streamkm.sources.fitted_tables import CSV_KEYS, HeadRead

# keys whose values are paths, which a configuration names as seen from its own place
_FILES = (("data", "path"), ("data", "feature_names"), ("text", "tfidf"), ("output", "directory"))
# keys that say how a table is written, and not which of its columns are features
_DIALECT = {"format", "dtype", "storage_options", *CSV_KEYS}


class Run(NamedTuple):
    """Objects that a configuration describes."""

    data: Opened  # the source, and how documents become rows, if it is one of documents
    estimator: StreamKMeans | StreamKernelKMeans
    output: Output
    cluster: str | None  # address of a scheduler
    checkpoint: str | None  # directory that was given; None for the one beside the results

    def plan(self) -> Plan:
        """Plan the fit; one pass may count document frequencies."""
        gathers = {"gathers_labels": self.output.labels != "zarr"} if isinstance(self.estimator, StreamKMeans) else {}
        if gathers:
            check_parameters(self.estimator)
        plan = self.estimator.plan_for(self.data.source, **gathers)
        before = (*plan.passes_before, *(("idf",) if self.data.counts else ()))
        passes = plan.passes + self.data.counts + (self.output.labels in ("csv", "parquet"))
        return replace(plan, passes=passes, passes_before=before)


class Override(NamedTuple):
    """A value from the command line."""

    key: str  # ``section.key``
    value: Any  # as YAML would give it
    origin: str  # what messages call it: ``--set estimator.n_clusters=50``


def parse_set(text: str) -> Override:
    """Read ``section.key=value``, a value in YAML such as ``50`` or ``[a.svm, b.svm]``; ConfigError for other text."""
    key, equals, value = text.partition("=")
    origin = f"--set {text}" if key.strip() != "data.storage_options" else f"--set {key}={MASK}"  # these are secrets
    if not equals or key.count(".") != 1:
        raise ConfigError(f"{origin}: write --set section.key=value, as in --set estimator.n_clusters=50")
    loaded, _ = _load_yaml(value, origin)
    return Override(key.strip(), loaded, origin)


def load_run(path: str | os.PathLike[str] | None, overrides: Sequence[Override] = ()) -> Run:
    """Open the source and make the objects of a configuration file, overrides, or both; reads no row.

    Relative paths start at the file's directory, or at the current one in overrides. Later overrides win.
    """
    values, origins = _read(Path(path)) if path is not None else ({}, {})
    for override in overrides:
        section, _, key = override.key.partition(".")
        keys = values[section] = {} if values.get(section) is None else values[section]
        if isinstance(keys, dict):
            keys[key] = override.value
        origins[section, key] = override.origin
        origins.setdefault((section,), override.origin)
    found = validate(values, origins, where=str(path) if path is not None else "command line")
    data, named = found.data.model_dump(), found.cluster.model_dump(exclude_none=True)
    paths, threads = data.pop("path"), found.estimator.executor
    if named:  # workers may have other current directories
        paths = _below(Path.cwd(), paths)
        if threads != "auto":
            where = origins["cluster",]
            raise ConfigError(f"{where}: cluster and estimator.executor={threads} exclude each other; leave one out")
    opened = open_configured(paths, data, found.text)
    return Run(
        opened, _estimator(found, opened.source), found.output, named.get("scheduler"), found.estimator.checkpoint
    )


def _estimator(found: Any, source: RowSource) -> StreamKMeans | StreamKernelKMeans:
    """The estimator of a configuration: kernel k-means if it has that section."""
    given = found.estimator.model_dump(exclude_unset=True, exclude={"checkpoint"})
    if found.kernel is None:
        return _made(StreamKMeans, {"preprocess": usual_steps(source, found.estimator.metric)} | given)
    known = flat_parameters(StreamKernelKMeans)
    shared = {name: value for name, value in given.items() if name in known}
    return _made(StreamKernelKMeans, shared | found.kernel.model_dump(exclude_unset=True))


def _made(kind: Any, values: dict[str, Any]) -> Any:
    """An estimator with parameters, grouped into options unless a name alone is given."""
    for name in OPTIONS.keys() & inspect.signature(kind).parameters:
        own = {key: values.pop(key) for key in inspect.signature(OPTIONS[name]).parameters if key in values}
        full = OPTIONS[name](**own)
        alone = getattr(full, name)
        values[name] = alone if full == OPTIONS[name](**{name: alone}) else full
    return kind(**values)


def inspected(path: str, overrides: Sequence[Override]) -> str:
    """Text on a source; for a table without overrides also on each column, with a command that fits it."""
    form = {each.key.removeprefix("data."): each.value for each in overrides}
    if form.keys() <= _DIALECT:
        try:
            with suppress(StreamkmError, TypeError):  # what is wrong is said where the source is opened
                open_source(path, **form, categories=HeadRead)
        except HeadRead as read:
            known, head = read.args
            return table_text(path, known, head, form)
    return aligned(source_lines(open_work([path], overrides).data.source))


def open_work(
    paths: Sequence[str], overrides: Sequence[Override] = (), *, beside: str | os.PathLike[str] | None = None
) -> Run:
    """Open the data and cluster of commands without an estimator; `overrides` set keys of data, text and cluster.

    Documents and tables are opened like those of the model `beside`, except for keys in `overrides`.
    """
    for override in overrides:
        if override.key.partition(".")[0] not in ("data", "text", "cluster"):
            raise ConfigError(f"{override.origin}: this command takes keys of data, text and cluster only")
    given = [Override("data.path", paths[0] if len(paths) == 1 else list(paths), "PATH"), *overrides]
    if beside is None:
        return load_run(None, given)
    text, where = read_text_settings(Path(beside).parent), str(Path(beside).parent / TEXT)
    fitted = [Override(f"{'data' if name == 'format' else 'text'}.{name}", text[name], where) for name in text]
    columns = read_table_settings(beside, paths[0])
    fitted += [Override(f"data.{name}", columns[name], os.fspath(beside)) for name in columns]
    with suppress(InvalidInputError):  # tables that come later may have no column of ids
        return load_run(None, [*fitted, *given])
    return load_run(None, [*(each for each in fitted if each.key != "data.id_column"), *given])


def _below(base: Path, path: Any) -> Any:
    """A path, or a list, relative to `base` unless absolute, a URL or at home; globs never match in `base` itself."""
    if isinstance(path, list):
        return [_below(base, each) for each in path]
    if not isinstance(path, str) or "://" in path or path.startswith("~") or os.path.isabs(path):
        return path
    if glob.has_magic(path) and not (base / path).exists():
        return os.path.join(glob.escape(str(base)), path)
    return str(base / path)


_FLOAT = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan"


class _Loader(yaml.SafeLoader):
    """YAML with the scalars of version 1.2: ``1e-4`` is a number; ``on``, ``12:30`` and ``010`` are text."""


_Loader.yaml_implicit_resolvers = {
    None: [  # whatever the first character
        ("tag:yaml.org,2002:null", re.compile(r"(?:~|null|Null|NULL|)\Z")),
        ("tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")),
        ("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z")),
        ("tag:yaml.org,2002:float", re.compile(rf"(?:{_FLOAT})\Z")),
    ]
}


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """Values of a file, with paths relative to it, and ``file:line`` of each section and key."""
    try:
        values, node = _load_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); name a configuration file or data") from None
    if values is None:
        raise ConfigError(f"{path} is empty; it needs at least data.path")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: needed: sections {', '.join(SECTIONS)} with keys, got {reprlib.repr(values)}")
    origins: dict[tuple[str, ...], str] = {}
    _note_places(origins, node, path)
    for section, key in _FILES:
        keys = values.get(section)
        if isinstance(keys, dict) and isinstance(keys.get(key), str | list if key == "path" else str):
            keys[key] = _below(path.parent, keys[key])
    return {str(section): keys for section, keys in values.items()}, origins


def _note_places(origins: dict[tuple[str, ...], str], node: yaml.Node, path: Path, *outer: str) -> None:
    """Add ``file:line`` of each key of a mapping, and of those below it; refuse a repeated key."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = (*outer, str(key.value)), key.start_mark.line + 1
        if name in origins:
            first = origins[name].rpartition(":")[2]
            raise ConfigError(f"{path}:{line}: {name[-1]} is given twice, first in line {first}; leave one")
        origins[name] = f"{path}:{line}"
        if not outer:
            _note_places(origins, value, path, *name)


def _load_yaml(text: str | bytes, origin: str) -> tuple[Any, Any]:
    """Give the values of one document and its root node."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    # a date or number that cannot be, brackets without end
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{origin}:{mark.line + 1}" if mark is not None and not origin.startswith("--") else origin
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{place}: not YAML: {problem}") from None
