"""What a configuration may say: sections, keys, types, and the messages for anything else.

Responsible for checking plain values. Names and defaults of the estimators are those of their signatures, those of the
cluster those of `ClusterSettings`, so they are written once. The only module that imports pydantic. Reads no file.
"""

from __future__ import annotations

import difflib
import inspect
import reprlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from streamkm.cli.data import HASHING
from streamkm.core.exceptions import ConfigError
from streamkm.core.secrets import MASK
from streamkm.engine import ClusterSettings
from streamkm.estimators.kernel_kmeans import StreamKernelKMeans
from streamkm.estimators.kernel_validation import ALIASES
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

# Types of the estimator's parameters; their names and defaults are those of its signature.
ESTIMATOR_TYPES: dict[str, Any] = {
    "n_clusters": int,
    "n_components": int | Literal["auto"],
    "eps": float | None,
    "delta": float,
    "init": str,
    "n_init": int | Literal["auto"],
    "max_iter": int,
    "tol": float,
    "preprocess": list[Literal["standardize", "robust", "log1p", "total", "unit"]] | dict[str, _COLUMNS] | None,
    "refine": int | Literal["auto"],
    "memory_limit": int | float | str | dict[Literal["limit", "process_memory"], int | float | str],
    "chunk_bytes": int | Literal["auto"],
    "executor": int | Literal["auto"],
    "progress": bool | Literal["auto"],
    "random_state": int | None,
    "sketch": Literal[("auto", *sketch_names())],
    **{name: Literal[choices] for name, choices in CHOICES.items()},
}
# Those of the kernel estimator's that the other has not, or means otherwise.
KERNEL_TYPES: dict[str, Any] = {
    "kernel": Literal[(*KERNELS, *ALIASES)],
    "gamma": float | Literal["scale"] | None,
    "gamma_factor": float,
    "degree": int,
    "coef0": float,
    "method": Literal[tuple(METHODS)],
    "n_landmarks": int | Literal["auto"],
    "landmarks": Literal[LANDMARKS],
    "rank": int | Literal["auto"],
    "eps": float | None,
    "landmark_rank": int | None,
    "fit_on": Literal["sample", "all"],
}


# Likewise of how documents are hashed.
HASHING_TYPES: dict[str, Any] = {name: get_type_hints(FeatureHashing)[name] for name in HASHING} | {
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
    genes: str | int | list[str] | None = None
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


def flat_parameters(estimator: type[Any]) -> dict[str, inspect.Parameter]:
    """The parameters of an estimator, those that are said in `OPTIONS` behind the one that takes these."""
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(estimator).parameters.items():
        found[name] = parameter
        found |= inspect.signature(OPTIONS[name]).parameters if name in OPTIONS else {}
    return found


def _section_of(estimator: type[Any], types: Mapping[str, Any], **of_fit: Any) -> type[_Section]:
    """Make a section of an estimator's parameters, with keys for arguments of `fit` behind them."""
    parameters = flat_parameters(estimator)
    fields: dict[str, Any] = {
        name: (types[name], parameter.default) for name, parameter in parameters.items() if name in types
    }
    return create_model("_Estimator", __base__=_Section, **fields, **of_fit)


def _text_section() -> type[_Section]:
    defaults = inspect.signature(FeatureHashing).parameters
    keys: dict[str, Any] = {
        name: (HASHING_TYPES[name], list(default) if isinstance(default, tuple) else default)
        for name, default in ((name, defaults[name].default) for name in HASHING)
    }
    return create_model("_Text", __base__=_Reading, **keys)


def _cluster_section() -> type[_Section]:
    kinds = get_type_hints(ClusterSettings)
    keys: dict[str, Any] = {field.name: (kinds[field.name], field.default) for field in fields(ClusterSettings)}
    return create_model("_Cluster", __base__=_Section, **keys)


SECTIONS: dict[str, type[_Section]] = {
    "data": _Data,
    "text": _text_section(),
    "estimator": _section_of(StreamKMeans, ESTIMATOR_TYPES, checkpoint=(str | None, None)),
    "kernel": _section_of(StreamKernelKMeans, KERNEL_TYPES),
    "output": Output,
    "cluster": _cluster_section(),
}
OPTIONAL = ("kernel",)  # there only where they are given


def validate(values: Mapping[str, Any], origins: Mapping[tuple[str, ...], str], where: str) -> dict[str, _Section]:
    """Check every section and say everything that is wrong with them.

    Parameters
    ----------
    values : mapping
        Sections, each a dict or None.
    origins : mapping of (section,) and (section, key) to str
        Where each was given, for messages: ``config.yaml:12``.
    where : str
        For what was not given.

    Returns
    -------
    dict of section name to section
        Every key has a value. "kernel" is left out where it is null or not given.

    Raises
    ------
    ConfigError
        An unknown section or key, a wrong type, a missing path, a key of the estimator that kernels have no use for; a
        problem a line.
    """
    problems = [_problem((name,), _unknown(name, None), origins, where) for name in values if name not in SECTIONS]
    sections: dict[str, _Section] = {}
    for name, section in SECTIONS.items():
        given = values.get(name)
        if given is None and name in OPTIONAL:
            continue
        given = {} if given is None else given  # a section without keys is YAML's null
        if not isinstance(given, dict):
            problems.append(
                _problem((name,), f"{name} must be a section with keys, got {shown(given)}", origins, where)
            )
            continue
        try:
            sections[name] = section.model_validate(given)
        except ValidationError as error:
            found = {str(detail["loc"][0]): detail["type"] for detail in error.errors(include_url=False)}
            for key, kind in found.items():
                problems.append(_problem((name, key), _explain(name, key, kind, given.get(key)), origins, where))
    if "kernel" in sections and "estimator" in sections:
        of_no_use = set(ESTIMATOR_TYPES) - set(flat_parameters(StreamKernelKMeans)) | set(KERNEL_TYPES)
        for key, value in sections["estimator"].model_dump(exclude_defaults=True).items():
            if key in of_no_use:
                problem = f"estimator.{key}={value!r} does not apply to kernel k-means; leave out this key or kernel"
                problems.append(_problem(("estimator", key), problem, origins, where))
    if problems:
        raise ConfigError("\n".join(problems))
    return sections


def _problem(key: tuple[str, ...], problem: str, origins: Mapping[tuple[str, ...], str], where: str) -> str:
    return f"{origins.get(key) or origins.get(key[:1]) or where}: {problem}"


def _explain(section: str, key: str, kind: str, given: Any) -> str:
    if kind == "extra_forbidden":
        return _unknown(key, section)
    if kind == "missing":
        return f"{section}.{key} is missing; give the file or files to read"
    needed = " or ".join(_words(SECTIONS[section].model_fields[key].annotation))
    is_secret = key == "storage_options" and not isinstance(given, int)
    return f"{section}.{key} must be {needed}, got {MASK if is_secret else shown(given)}"


def _unknown(name: str, section: str | None) -> str:
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
