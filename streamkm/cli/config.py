"""config.yaml to objects: a source, an estimator, where results go, and the Dask cluster to work on.

Responsible for reading YAML safely, for overrides from the command line, and for what paths are relative to. The only
module that imports yaml. No configuration is passed to what lies below: sources and estimators get plain arguments.
"""

from __future__ import annotations

import glob
import inspect
import os
import re
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from streamkm.cli.data import TEXT, Opened, open_configured, read_table_settings, read_text_settings, usual_steps
from streamkm.cli.options import COLUMN_FLAGS
from streamkm.cli.schema import SECTIONS, Output, flat_parameters, validate
from streamkm.cli.summary import source_lines, table_text
from streamkm.core.display import MASK, aligned
from streamkm.core.exceptions import ConfigError, InvalidInputError, InvalidParameterError, StreamkmError
from streamkm.engine import ClusterSettings
from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.estimators.validation import check_parameters
from streamkm.planning.plan import Plan
from streamkm.sketches import OPTIONS
from streamkm.sources import RowSource, open_source
from streamkm.sources.tables.columns import HeadRead

# keys whose values are paths, which a configuration names as seen from its own place
FILES = {
    ("data", "path"), ("data", "feature_names"), ("text", "tfidf"), ("output", "directory"),
    *(("cluster", key) for key in ("tls_ca_file", "tls_cert", "tls_key")),
}  # fmt: skip


class Run(NamedTuple):
    """What a configuration describes."""

    data: Opened  # the source, and how documents become rows, if it is one of documents
    estimator: StreamKMeans | StreamKernelKMeans
    output: Output
    cluster: ClusterSettings | None
    checkpoint: str | None  # directory that was given; None for the one beside the results

    def plan(self) -> Plan:
        """What a fit would do; one pass may count document frequencies."""
        plan = self.plan_for(self.data.source)
        before = (*plan.passes_before, *(("idf",) if self.data.counts else ()))
        passes = plan.passes + self.data.counts + (self.output.labels in ("csv", "parquet"))
        return replace(plan, passes=passes, passes_before=before)

    def plan_for(self, source: RowSource, memory_limit: Any = None) -> Plan:
        """What a fit of a source would do, below another limit if one is given.

        Workers of a cluster write labels themselves, where that is asked for.
        """
        if isinstance(self.estimator, StreamKMeans):
            check_parameters(self.estimator)
            written = self.cluster is not None and self.output.labels == "zarr"
            return self.estimator.plan_for(source, gathers_labels=not written, memory_limit=memory_limit)
        return self.estimator.plan_for(source, memory_limit=memory_limit)


class Override(NamedTuple):
    """A value given on the command line."""

    key: str  # ``section.key``
    value: Any  # as YAML would give it
    origin: str  # what messages call it: ``--set estimator.n_clusters=50``


def parse_set(text: str) -> Override:
    """Read ``section.key=value``; the value is YAML, such as ``50``, ``auto``, ``[a.svm, b.svm]``.

    Raises ConfigError: no ``=``, no section, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    origin = f"--set {text}" if key.strip() != "data.storage_options" else f"--set {key}={MASK}"  # these are secrets
    if not equals or key.count(".") != 1:
        raise ConfigError(f"{origin}: write --set section.key=value, as in --set estimator.n_clusters=50")
    loaded, _ = _load_yaml(value, origin)
    return Override(key.strip(), loaded, origin)


def load_run(path: str | os.PathLike[str] | None, overrides: Sequence[Override] = ()) -> Run:
    """Make the objects that a configuration file, overrides, or both describe.

    Relative paths of the file are relative to the file's directory, those of overrides to the current one.

    `path`: None takes overrides and defaults alone. `overrides`: later ones win. The source is open: its files exist
    and are of a known format. No rows were read. Raises ConfigError: wrong YAML, an unknown or repeated key, a wrong
    type; each on a line of its own. Raises StreamkmError: what `open_source` raises.
    """
    values, origins = _read(Path(path)) if path is not None else ({}, {})
    base = Path(path).parent if path is not None else Path()
    from_file = set(origins)
    for override in overrides:
        section, _, key = override.key.partition(".")
        if values.get(section) is None:
            values[section] = {}
        if isinstance(values[section], dict):
            values[section][key] = override.value
        origins[section, key] = override.origin
        origins.setdefault((section,), override.origin)
        from_file.discard((section, key))
    sections = validate(values, origins, where=str(path) if path is not None else "command line")

    for section, key in FILES & from_file:
        value = getattr(sections[section], key)
        if isinstance(value, str) or key == "path":
            below = str(base / value) if section == "output" else _below(base, value)
            sections[section] = sections[section].model_copy(update={key: below})
    data, text = sections["data"].model_dump(), sections["text"].model_dump()
    paths, estimator = data.pop("path"), sections["estimator"].model_dump()
    settings = _cluster(
        sections["cluster"].model_dump(), origins.get(("cluster",), str(path)), threads=estimator["executor"]
    )
    if settings is not None:  # workers may have other current directories
        paths = _below(Path.cwd(), paths)
    opened = open_configured(paths, data, text, list(sections["text"].model_dump(exclude_defaults=True)))
    steps = usual_steps(opened.source, estimator["metric"])
    if steps and "preprocess" not in sections["estimator"].model_fields_set:
        sections["estimator"] = sections["estimator"].model_copy(update={"preprocess": steps})
    return Run(opened, _estimator(sections), cast("Output", sections["output"]), settings, estimator["checkpoint"])


def _estimator(sections: dict[str, Any]) -> StreamKMeans | StreamKernelKMeans:
    """The estimator that is described: of kernel k-means where there is a section for it."""
    if "kernel" not in sections:
        return StreamKMeans(**_with_options(sections["estimator"].model_dump(exclude={"checkpoint"})))
    known = flat_parameters(StreamKernelKMeans)
    given = sections["estimator"].model_dump(exclude_unset=True)  # its defaults are those of the other estimator
    shared = {name: value for name, value in given.items() if name in known}
    return StreamKernelKMeans(**_with_options(shared | sections["kernel"].model_dump()))


def _with_options(values: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator, those of options gathered in them; a name alone where nothing else is said."""
    for name, options in OPTIONS.items():
        if name in values:
            full = options(**{key: values.pop(key) for key in inspect.signature(options).parameters})
            alone = getattr(full, name)
            values[name] = alone if full == options(**{name: alone}) else full
    return values


def _cluster(given: dict[str, Any], origin: str, threads: int | str) -> ClusterSettings | None:
    """The cluster that a section describes; None where it says nothing."""
    if not any(given.values()):
        return None
    if threads != "auto":
        raise ConfigError(f"{origin}: cluster and estimator.executor={threads} exclude each other; leave one out")
    try:
        return ClusterSettings(**given)
    except InvalidParameterError as error:
        raise ConfigError(f"{origin}: cluster: {error}") from None


def inspected(path: str, overrides: Sequence[Override]) -> str:
    """Text on a source; on a table of which nothing is said also each column, and the command that fits it."""
    form = {each.key.removeprefix("data."): each.value for each in overrides if each.key.startswith("data.")}
    try:
        if len(form) == len(overrides) and not form.keys() & set(COLUMN_FLAGS):  # no documents
            with suppress(StreamkmError, TypeError):  # what is wrong is said where the source is opened
                open_source(path, **form, categories=HeadRead)
    except HeadRead as read:
        known, head = read.args
        return table_text(path, known, head, form)
    return aligned(source_lines(open_work([path], overrides, sections=("data", "text")).data.source))


def open_work(
    paths: Sequence[str],
    overrides: Sequence[Override] = (),
    *,
    beside: str | os.PathLike[str] | None = None,
    sections: Sequence[str] = ("data", "text", "cluster"),
) -> Run:
    """What commands without an estimator read and work on; `overrides` may set keys of `sections`.

    `beside`: of a model: documents are opened as those that it was fitted on, but for what `overrides` say. Raises
    ConfigError, StreamkmError as `load_run`.
    """
    for override in overrides:
        if override.key.partition(".")[0] not in sections:
            known = f"{', '.join(sections[:-1])} and {sections[-1]}"
            raise ConfigError(f"{override.origin}: this command takes keys of {known} only")
    given = [Override("data.path", paths[0] if len(paths) == 1 else list(paths), "PATH")]
    if beside is None:
        return load_run(None, [*given, *overrides])
    text, where = read_text_settings(Path(beside).parent), str(Path(beside).parent / TEXT)
    given += [Override(f"{'data' if name == 'format' else 'text'}.{name}", text[name], where) for name in text]
    columns = read_table_settings(beside, paths[0])
    of_model = [Override(f"data.{name}", columns[name], os.fspath(beside)) for name in columns]
    with suppress(InvalidInputError):  # tables that come later may have no column of ids
        return load_run(None, [*given, *of_model, *overrides])
    return load_run(None, [*given, *(each for each in of_model if each.key != "data.id_column"), *overrides])


def _below(base: Path, path: Any) -> Any:
    """A path, or a list, seen from `base`: left alone if absolute, an address or at home; no glob is in `base`."""
    if isinstance(path, list):
        return [_below(base, each) for each in path]
    if "://" in path or path.startswith("~") or os.path.isabs(path):
        return path
    if glob.has_magic(path) and not (base / path).exists():
        return os.path.join(glob.escape(str(base)), path)
    return str(base / path)


_FLOAT = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan"


class _Loader(yaml.SafeLoader):
    """YAML with the plain words of its release 1.2: ``1e-4`` is a number, ``on``, ``12:30`` and ``010`` are text.

    Anchors are refused: aliases of aliases make a few bytes as much as memory holds.
    """

    def fetch_anchor(self) -> None:
        """Refuse an anchor, and an alias."""
        what = "anchors and aliases (& and *) are not read here; write the values out"
        raise yaml.scanner.ScannerError(problem=what, problem_mark=self.get_mark())

    fetch_alias = fetch_anchor


_Loader.yaml_implicit_resolvers = {}
for _tag, _first, _pattern in (
    ("null", ["", *"~nN"], r"~|null|Null|NULL|"),
    ("bool", [*"tTfF"], r"true|True|TRUE|false|False|FALSE"),
    ("int", [*"-+0123456789"], r"[-+]?(?:0|[1-9][0-9_]*)"),
    ("float", [*"-+.0123456789"], _FLOAT),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """Give the values of a file, and ``file:line`` of each section and key."""
    try:
        values, node = _load_yaml(path.read_bytes(), str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); name a configuration file or data") from None
    if values is None:
        raise ConfigError(f"{path} is empty; it needs at least data.path")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: needed: sections {', '.join(SECTIONS)} with keys, got {reprlib.repr(values)}")
    origins: dict[tuple[str, ...], str] = {}
    for section, line, inner in _pairs(node, path):
        origins[section,] = f"{path}:{line}"
        origins.update({(section, key): f"{path}:{inner_line}" for key, inner_line, _ in _pairs(inner, path)})
    return {str(section): keys for section, keys in values.items()}, origins


def _pairs(node: yaml.Node, path: Path) -> Iterator[tuple[str, int, yaml.Node]]:
    """Key, line and value of a mapping's pairs; none of other nodes. A repeated key is refused."""
    seen: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise ConfigError(f"{path}:{line}: {name} is given twice, first in line {seen[name]}; leave one")
        seen[name] = line
        yield name, line, value


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
