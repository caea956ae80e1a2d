"""config.yaml to objects: a source, an estimator and where results go.

Responsible for reading YAML safely, for overrides from the command line, and for what paths are relative to. The only
module that imports yaml. May import schema, estimators, sources and errors. No configuration is passed to what lies
below: sources and estimators get plain arguments.
"""

from __future__ import annotations

import glob
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import yaml

from streamkm.errors import ConfigError
from streamkm.estimators import StreamKMeans
from streamkm.kernel_estimators import StreamKernelKMeans
from streamkm.schema import SECTIONS, Output, shown, validate
from streamkm.sources import RowSource, open_source


class Run(NamedTuple):
    """What a configuration describes."""

    source: RowSource
    estimator: StreamKMeans | StreamKernelKMeans
    output: Output


class Override(NamedTuple):
    """A value given on the command line.

    Attributes
    ----------
    key : str
        ``section.key``.
    value : object
        As YAML would give it.
    origin : str
        What messages call it: ``--set estimator.n_clusters=50``.
    """

    key: str
    value: Any
    origin: str


def parse_set(text: str) -> Override:
    """Read ``section.key=value``; the value is YAML, such as ``50``, ``auto``, ``[a.svm, b.svm]``.

    Raises
    ------
    ConfigError
        No ``=``, no section, or a value that is not YAML.
    """
    origin = f"--set {text}"
    key, equals, value = text.partition("=")
    if not equals or key.count(".") != 1:
        raise ConfigError(f"{origin}: write --set section.key=value, as in --set estimator.n_clusters=50")
    loaded, _ = _load_yaml(value, origin)
    return Override(key.strip(), loaded, origin)


def load_run(path: str | os.PathLike[str] | None, overrides: Sequence[Override] = ()) -> Run:
    """Make the objects that a configuration file, overrides, or both describe.

    Relative paths of the file are relative to the file's directory, those of overrides to the current one.

    Parameters
    ----------
    path : path or None
        None takes overrides and defaults alone.
    overrides : sequence of Override
        Later ones win.

    Returns
    -------
    Run
        The source is opened: its files exist and are of a known format. No rows were read.

    Raises
    ------
    ConfigError
        Wrong YAML, an unknown or repeated key, a wrong type; each on a line of its own.
    StreamkmError
        What `open_source` raises.
    """
    values, origins = _read(Path(path)) if path is not None else ({}, {})
    base = Path(path).parent if path is not None else Path()
    from_file = set(origins)
    for override in overrides:
        section, _, key = override.key.partition(".")
        given = values.get(section)
        if given is None:
            given = values[section] = {}
        if isinstance(given, dict):
            given[key] = override.value
        origins[section, key] = override.origin
        origins.setdefault((section,), override.origin)
        from_file.discard((section, key))
    sections = validate(values, origins, where=str(path) if path is not None else "command line")

    data = sections["data"].model_dump()
    paths = data.pop("path")
    if ("data", "path") in from_file:
        paths = _below(base, paths) if isinstance(paths, str) else [_below(base, each) for each in paths]
    output = cast("Output", sections["output"])
    if ("output", "directory") in from_file:
        output = output.model_copy(update={"directory": str(base / output.directory)})
    return Run(open_source(paths, **data), _estimator(sections), output)


def _estimator(sections: dict[str, Any]) -> StreamKMeans | StreamKernelKMeans:
    """The estimator that is described: of kernel k-means where there is a section for it."""
    parameters = sections["estimator"].model_dump()
    if "kernel" not in sections:
        return StreamKMeans(**parameters)
    known = inspect.signature(StreamKernelKMeans).parameters
    shared = {name: value for name, value in parameters.items() if name in known}
    return StreamKernelKMeans(**(shared | sections["kernel"].model_dump()))


def open_data(paths: Sequence[str], overrides: Sequence[Override] = ()) -> RowSource:
    """Open what commands without an estimator read; `overrides` may set keys of ``data``.

    Raises
    ------
    ConfigError, StreamkmError
        As `load_run`.
    """
    for override in overrides:
        if not override.key.startswith("data."):
            raise ConfigError(f"{override.origin}: this command takes keys of data only")
    given = Override("data.path", paths[0] if len(paths) == 1 else list(paths), "PATH")
    return load_run(None, [given, *overrides]).source


def _below(base: Path, path: str) -> str:
    """`path` seen from `base`: left alone if absolute, an address or at home; no character of `base` is a glob's."""
    if "://" in path or path.startswith("~") or os.path.isabs(path):
        return path
    if glob.has_magic(path) and not (base / path).exists():
        return os.path.join(glob.escape(str(base)), path)
    return str(base / path)


_FLOAT = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan"


class _Loader(yaml.SafeLoader):
    """YAML with the plain words of its release 1.2: ``1e-4`` is a number, ``on``, ``12:30`` and ``010`` are text."""


_Loader.yaml_implicit_resolvers = {}
for _tag, _first, _pattern in (
    ("null", ["", *"~nN"], r"~|null|Null|NULL|"),
    ("bool", [*"tTfF"], r"true|True|TRUE|false|False|FALSE"),
    ("int", [*"-+0123456789"], r"[-+]?(?:0|[1-9][0-9_]*)"),
    ("float", [*"-+.0123456789"], _FLOAT),
    ("merge", ["<"], "<<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """Give the values of a file, and ``file:line`` of each section and key."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; name a configuration file or data") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start:,} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    values, node = _load_yaml(text, str(path))
    if values is None:
        raise ConfigError(f"{path} is empty; it needs at least data.path")
    if not isinstance(values, dict):
        raise ConfigError(f"{path}:1: needed: sections {', '.join(SECTIONS)} with keys, got {shown(values)}")
    origins: dict[tuple[str, ...], str] = {}
    for section, line, inner in _pairs(node, path):
        origins[section,] = f"{path}:{line}"
        origins.update({(section, key): f"{path}:{inner_line}" for key, inner_line, _ in _pairs(inner, path)})
    return {str(key): _text_keys(value) for key, value in values.items()}, origins


def _text_keys(value: Any) -> Any:
    return {str(key): inner for key, inner in value.items()} if isinstance(value, dict) else value


def _pairs(node: yaml.Node, path: Path) -> Iterator[tuple[str, int, yaml.Node]]:
    """Key, line and value of a mapping's pairs; none of other nodes. A repeated key is refused."""
    seen: dict[str, int] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise ConfigError(f"{path}:{line}: {name} is given twice, first in line {seen[name]}; leave one")
        seen[name] = line
        yield name, line, value


def _load_yaml(text: str, origin: str) -> tuple[Any, Any]:
    """Give the values of one document and its root node."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return (None if node is None else loader.construct_document(node)), node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{origin}:{mark.line + 1}" if mark is not None and not origin.startswith("--") else origin
        raise ConfigError(f"{place}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not YAML: {' '.join(str(error).split())}") from None
    except (ValueError, RecursionError) as error:  # a date or number that cannot be, brackets without end
        raise ConfigError(f"{origin}: not YAML that can be read: {error}") from None
    finally:
        if loader is not None:
            loader.dispose()
