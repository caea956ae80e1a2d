"""Sections, keys, types and messages of a configuration; the only module that imports pydantic; reads no file.

Names, defaults and types come from the signatures of the described classes, so they are written once.
"""

from __future__ import annotations

import difflib
import inspect
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from streamkm.core.display import MASK
from streamkm.core.exceptions import ConfigError
from streamkm.estimators.kernel_kmeans import ALIASES, StreamKernelKMeans
from streamkm.estimators.kmeans import StreamKMeans
from streamkm.estimators.validation import CHOICES
from streamkm.planning.sketch_choice import LANDMARKS, METHODS
from streamkm.preparation import STEPS
from streamkm.sketches import sketch_names
from streamkm.sketches.kernel_columns import KERNELS
from streamkm.sketches.options import OPTIONS
from streamkm.sources.formats import READ_OPTIONS
from streamkm.text import FeatureHashing

# Types of keys, by name or by the annotation in the signature, where YAML takes less than Python.
_TYPES: dict[Any, Any] = {
    int | str: int | Literal["auto"],
    bool | str: bool | Literal["auto"],
    **{name: Literal[choices] for name, choices in CHOICES.items()},
    "sketch": Literal[("auto", *sketch_names())],
    "init": str,
    "preprocess": list[Literal[STEPS]] | dict[str, Any] | None,  # type: ignore[valid-type]
    "cluster_size": list[int | float | Literal["soft"] | None] | None,
    "executor": int | Literal["auto"],
    "random_state": Annotated[int, Field(ge=0, lt=1 << 32)] | None,
    "kernel": Literal[(*KERNELS, *ALIASES)],
    "gamma": float | Literal["auto", "neighbors"] | None,
    "method": Literal[tuple(METHODS)],
    "landmarks": Literal[LANDMARKS],
    "ngram_range": list[int],
    "stop_words": Literal["english"] | list[str] | None,
}


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Data(_Section):
    """Files to read; the other keys are options of `open_source`, None for its choice."""

    path: str | list[str]


# Types of those options that readers do not check, and the keys of all.
_READ: dict[str, Any] = {
    **dict.fromkeys(("dataset", "key", "dtype", "format"), str | None),
    "feature_names": str | list[str] | None,
    "follow_external": bool | None,
    "storage_options": dict[str, Any] | None,
}
_READ_KEYS: dict[str, Any] = {name: (_READ.get(name, Any), None) for name in READ_OPTIONS}


class _Reading(_Section):
    """Place of documents in a file, and their weights; None for the choice of the format."""

    field: str | int | list[str | int] | None = None
    delimiter: str | None = None
    header: bool | None = None
    decode_error: Literal["strict", "ignore", "replace"] | None = None
    tfidf: bool | str = True
    sublinear_tf: bool = False


class Output(_Section):
    """Place and choice of a fit's results."""

    directory: str = "streamkm-out"
    labels: Literal["npy", "zarr", "csv", "parquet"] = "npy"
    report: bool = True  # whether report.html is made
    overwrite: bool = False  # whether results of an earlier run may be replaced
    incremental: bool = False  # whether incremental.npz is written, which `streamkm update` goes on with
    half_life: float | None = None  # of it: rows after which a row counts half


def flat_parameters(described: type[Any]) -> dict[str, inspect.Parameter]:
    """Parameters of a class, each followed by those of its class in `OPTIONS`."""
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(described, eval_str=True).parameters.items():
        found[name] = parameter
        found |= inspect.signature(OPTIONS[name], eval_str=True).parameters if name in OPTIONS else {}
    return found


def _section_of(parameters: Mapping[str, inspect.Parameter], base: Any = _Section, **further: Any) -> type[_Section]:
    """A section of parameters, with `further` keys behind them."""
    keys: dict[str, Any] = {}
    for name, each in parameters.items():
        default = list(each.default) if isinstance(each.default, tuple) else each.default
        keys[name] = _TYPES.get(name, _TYPES.get(each.annotation, each.annotation)), default
    return create_model("_Keys", __base__=base, **keys, **further)


_KMEANS, _KERNEL = flat_parameters(StreamKMeans), flat_parameters(StreamKernelKMeans)
# keys that k-means does not have, or that mean something else there
_OWN = {name: each for name, each in _KERNEL.items() if name not in _KMEANS or name in ("eps", "fit_on")}
_UNUSED = _KMEANS.keys() - _KERNEL.keys() | _OWN.keys()
SECTIONS: dict[str, type[_Section]] = {
    "data": create_model("_Keys", __base__=_Data, **_READ_KEYS),
    "text": _section_of(flat_parameters(FeatureHashing), _Reading),
    "estimator": _section_of(_KMEANS, checkpoint=(str | None, None)),
    "kernel": _section_of(_OWN),
    "output": Output,
    "cluster": _section_of({}, scheduler=(str | None, None)),
}
_FIELDS: dict[str, Any] = {name: (section, ...) for name, section in SECTIONS.items()}
_FIELDS["kernel"] = SECTIONS["kernel"] | None, None  # there only where it is given
_Configuration = create_model("_Configuration", __config__=ConfigDict(extra="forbid"), **_FIELDS)

# keys that the section cluster once had, with the values that a file may still give them
_STARTED = [("workers", None), ("threads", 1), ("memory_limit", "auto")]
_STARTED += [(name, None) for name in ("report", "tls_ca_file", "tls_cert", "tls_key")]


def validate(values: Mapping[str, Any], origins: Mapping[tuple[str, ...], str], where: str) -> Any:
    """Check all sections and fill in defaults; ConfigError has a line for each problem.

    `origins`: places of sections and keys for messages, such as ``config.yaml:12``; `where`: that of others.
    """
    defaults: dict[str, Any] = {name: {} for name in SECTIONS if name != "kernel"}
    given = defaults | {name: keys for name, keys in values.items() if keys is not None}
    if isinstance(given["cluster"], dict):
        given["cluster"] = {key: value for key, value in given["cluster"].items() if (key, value) not in _STARTED}
    try:
        found = _Configuration.model_validate(given)
    except ValidationError as error:
        each_key = groupby(error.errors(include_url=False), lambda each: each["loc"][:2])
        problems = {key: _problem(*key, details=list(details)) for key, details in each_key}
    else:
        unused = {} if found.kernel is None else found.estimator.model_dump(include=_UNUSED, exclude_defaults=True)
        needed = "does not apply to kernel k-means; leave out this key or kernel"
        problems = {("estimator", key): f"estimator.{key}={value!r} {needed}" for key, value in unused.items()}
    if problems:
        places = (origins.get(key) or origins.get(key[:1]) or where for key in problems)
        raise ConfigError("\n".join(map("{}: {}".format, places, problems.values())))
    return found


def _problem(section: str, key: str = "", *, details: Sequence[Any]) -> str:
    """Say what a key needs, in the words of pydantic for the innermost values of its types."""
    if details[0]["type"] == "extra_forbidden":
        known = SECTIONS[section].model_fields if key else SECTIONS
        return f"unknown {f'key {section}.{key}' if key else f'section {section}'}{_known(key or section, known)}"
    if not key:
        return f"{section} must be a section with keys, got {reprlib.repr(details[0]['input'])}"
    if details[0]["type"] == "missing":
        return f"{section}.{key} is missing; give the file or files to read"
    inner = [each for each in details if len(each["loc"]) == max(len(other["loc"]) for other in details)]
    needed = " or ".join(dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in inner))
    given = MASK if key == "storage_options" else reprlib.repr(inner[-1]["input"])
    return f"{section}.{key} must be {needed}, got {given}"


def _known(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest known name, in this section or another, else list the section."""
    elsewhere = {inner: f"{outer}.{inner}" for outer in SECTIONS for inner in SECTIONS[outer].model_fields}
    near = [elsewhere[name]] if name in elsewhere else difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
