"""What a configuration may say: sections, keys, types, and the messages for anything else.

Responsible for checking plain values. Names, defaults and types are those of the signatures of the classes that
sections describe, so they are written once. The only module that imports pydantic. Reads no file.
"""

from __future__ import annotations

import difflib
import inspect
import re
import reprlib
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from streamkm.core.display import MASK
from streamkm.core.exceptions import ConfigError
from streamkm.engine import ClusterSettings
from streamkm.estimators.kernel_kmeans import ALIASES, StreamKernelKMeans
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.estimators.validation import CHOICES
from streamkm.planning.kernel_sizes import LANDMARKS, METHODS
from streamkm.sketches import OPTIONS
from streamkm.sketches.kernel_columns import KERNELS
from streamkm.sketches.registry import sketch_names
from streamkm.text import FeatureHashing

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict, _SHORT.maxstring = 2, 3, 3, 60

_COLUMNS = list[str | int] | dict[str | int, int | float] | None  # of a step; with weights; all

# Types of keys, by name or by the annotation in the signature, where YAML takes less than Python.
_TYPES: dict[Any, Any] = {
    int | str: int | Literal["auto"],
    bool | str: bool | Literal["auto"],
    **{name: Literal[choices] for name, choices in CHOICES.items()},
    "sketch": Literal[("auto", *sketch_names())],
    "init": str,
    "preprocess": list[Literal["standardize", "robust", "table", "log1p", "total", "unit"]]
    | dict[str, _COLUMNS]
    | None,
    "memory_limit": int | float | str | dict[Literal["limit", "process_memory"], int | float | str],
    "executor": int | Literal["auto"],
    "random_state": int | None,
    "kernel": Literal[(*KERNELS, *ALIASES)],
    "gamma": float | Literal["auto", "neighbors", "scale"] | None,
    "method": Literal[tuple(METHODS)],
    "landmarks": Literal[LANDMARKS],
    "ngram_range": list[int],
    "stop_words": Literal["english"] | list[str] | None,
    "dtype": Literal["float32", "float64"],
}


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Data(_Section):
    """Where rows come from; every key but `path` is an option of `open_source`, None where that should choose."""

    path: str | list[str]
    format: str | None = None
    dataset: str | None = None
    key: str | None = None
    follow_external: bool | None = None
    missing_chunks: Literal["warn", "raise"] | None = None
    var_column: str | None = None
    genes: str | list[str] | None = None
    feature_names: str | list[str] | None = None
    n_features: int | None = None
    zero_based: bool | Literal["auto"] | None = None
    dtype: str | None = None
    columns: str | list[str] | None = None
    exclude: str | list[str] | None = None
    id_column: str | None = None
    categories: str | dict[str, str | list[str]] | None = None
    categories_unseen: Literal["raise", "ignore"] | None = None
    dates: Literal["days"] | None = None
    delimiter: str | None = None
    header: bool | None = None
    newlines_in_values: bool | None = None
    null_values: str | list[str] | None = None
    storage_options: dict[str, Any] | None = None


class _Reading(_Section):
    """Where in a file documents stand, and whether rows are weighted; None where the format should choose."""

    field: str | int | list[str | int] | None = None
    delimiter: str | None = None
    header: bool | None = None
    decode_error: Literal["strict", "ignore", "replace"] | None = None
    tfidf: bool | str = True
    sublinear_tf: bool = False


class Output(_Section):
    """Where results of a fit go, and which."""

    directory: str = "streamkm-out"
    labels: Literal["npy", "zarr", "csv", "parquet"] = "npy"
    report: bool = True  # whether report.html is made
    overwrite: bool = False  # whether results of an earlier run may be replaced
    incremental: bool = False  # whether incremental.npz is written, which `streamkm update` goes on with
    half_life: float | None = None  # of it: rows after which a row counts half


def flat_parameters(described: type[Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a class, those that are said in `OPTIONS` behind the one that takes these."""
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(described, eval_str=True).parameters.items():
        found[name] = parameter
        found |= inspect.signature(OPTIONS[name], eval_str=True).parameters if name in OPTIONS else {}
    return found


def _section_of(
    parameters: Mapping[str, inspect.Parameter], types: Mapping[Any, Any], base: type[_Section], **further: Any
) -> type[_Section]:
    """A section of parameters, with `further` keys behind them."""
    keys: dict[str, Any] = {}
    for name, each in parameters.items():
        default = list(each.default) if isinstance(each.default, tuple) else each.default
        keys[name] = types.get(name, types.get(each.annotation, each.annotation)), default
    return create_model("_Keys", __base__=base, **keys, **further)


_KMEANS, _KERNEL = flat_parameters(StreamKMeans), flat_parameters(StreamKernelKMeans)
# keys that k-means does not have, or that mean something else there
_OWN = {name: each for name, each in _KERNEL.items() if name not in _KMEANS or name in ("eps", "fit_on")}
SECTIONS: dict[str, type[_Section]] = {
    "data": _Data,
    "text": _section_of(flat_parameters(FeatureHashing), _TYPES, _Reading),
    "estimator": _section_of(_KMEANS, _TYPES, _Section, checkpoint=(str | None, None)),
    "kernel": _section_of(_OWN, _TYPES, _Section),
    "output": Output,
    "cluster": _section_of(flat_parameters(ClusterSettings), {}, _Section),
}
OPTIONAL = ("kernel",)  # there only where they are given
# keys of the section cluster by which streamkm once started workers, and the values that a file may still give them
STARTED = {"workers": None, "threads": 1, "memory_limit": "auto", "report": None}


def validate(values: Mapping[str, Any], origins: Mapping[tuple[str, ...], str], where: str) -> dict[str, _Section]:
    """Check every section and say everything that is wrong with them, a problem a line.

    `origins`: where sections and keys were given, for messages: ``config.yaml:12``; `where`: for what was not. Each
    key of the result has a value; "kernel" is left out where it is null or not given. Raises ConfigError.
    """
    problems: list[str] = []
    sections: dict[str, _Section] = {}

    def wrong(problem: str, *key: str) -> None:
        problems.append(f"{origins.get(key) or origins.get(key[:1]) or where}: {problem}")

    for name in (name for name in values if name not in SECTIONS):
        wrong(_unknown(name, None), name)
    for name, section in SECTIONS.items():
        given = values.get(name)
        if given is None and name in OPTIONAL:
            continue
        given = {} if given is None else given  # a section without keys is YAML's null
        if not isinstance(given, dict):
            wrong(f"{name} must be a section with keys, got {shown(given)}", name)
            continue
        if name == "cluster":
            given = {key: value for key, value in given.items() if (key, value) not in STARTED.items()}
        try:
            sections[name] = section.model_validate(given)
            if not 0 <= (seed := given.get("random_state") or 0) < 1 << 32:
                wrong(f"{name}.random_state must be from 0 to 4,294,967,295, got {seed}", name, "random_state")
        except ValidationError as error:
            found = {str(detail["loc"][0]): detail["type"] for detail in error.errors(include_url=False)}
            for key, kind in found.items():
                wrong(_explain(name, key, kind, given.get(key)), name, key)
    if "kernel" in sections and "estimator" in sections:
        of_no_use = _KMEANS.keys() - _KERNEL.keys() | _OWN.keys()
        for key, value in sections["estimator"].model_dump(exclude_defaults=True).items():
            if key in of_no_use:
                needed = "leave out this key or kernel"
                wrong(f"estimator.{key}={value!r} does not apply to kernel k-means; {needed}", "estimator", key)
    if problems:
        raise ConfigError("\n".join(problems))
    return sections


def _explain(section: str, key: str, kind: str, given: Any) -> str:
    if kind == "extra_forbidden":
        return _unknown(key, section)
    if kind == "missing":
        return f"{section}.{key} is missing; give the file or files to read"
    needed = " or ".join(_words(SECTIONS[section].model_fields[key].annotation))
    is_secret = key == "storage_options" and not isinstance(given, int)
    words = given if isinstance(given, list | dict) else [given]
    near = [each for word in words for each in difflib.get_close_matches(str(word), re.findall(r"\w+", needed), 1, 0.7)]
    hint = f"; did you mean {near[0]}?" if near and near[0] not in words else ""
    return f"{section}.{key} must be {needed}, got {MASK if is_secret else shown(given)}{'' if is_secret else hint}"


def _unknown(name: str, section: str | None) -> str:
    if section == "cluster" and name in STARTED:
        remedy = "by `dask scheduler` and `dask worker`, or by LocalCluster in Python, and give cluster.scheduler"
        return f"cluster.{name} is of workers that streamkm starts, which it no longer does; start them {remedy}"
    what = f"unknown key {section}.{name}" if section is not None else f"unknown section {name}"
    known = list(SECTIONS[section].model_fields) if section is not None else list(SECTIONS)
    elsewhere = {inner: f"{outer}.{inner}" for outer in SECTIONS for inner in SECTIONS[outer].model_fields}
    near = [elsewhere[name]] if name in elsewhere else difflib.get_close_matches(name, known, n=1)
    if not near:
        near = [elsewhere[match] for match in difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.8)]
    return f"{what}; did you mean {near[0]}?" if near else f"{what}; known: {', '.join(known)}"


def _words(annotation: Any) -> Iterator[str]:
    """An annotation for people: ``a whole number``, ``auto``."""
    if get_origin(annotation) is dict:
        yield "keys with values"
        return
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _words(member)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is list:
        several, of = {int: "whole numbers", str: "texts"}, get_args(annotation)[0]
        named = ", ".join(get_args(of)) if get_origin(of) is Literal else "texts or whole numbers"
        yield f"a list of {several.get(of, named)}"
    else:
        yield plain[annotation]


def shown(value: Any) -> str:
    """A value and its kind for messages, never long."""
    kinds = {str: "text", bool: "true or false", int: "a whole number", float: "a number", dict: "keys", list: "a list"}
    if value is None:
        return "null"
    return f"{_SHORT.repr(value)} ({kinds.get(type(value), type(value).__name__)})"
