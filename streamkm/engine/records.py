"""States as records of a checkpoint, and back.

A record is named arrays and JSON values; no pickle is written or loaded. It holds dataclasses, lists, tuples, mappings,
numbers, arrays, sparse matrices and sketches. Annotations give the types when it is read.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from streamkm.core.matrix import pack_matrix, unpack_matrix
from streamkm.sketches import sketch_from_dict
from streamkm.sketches.base_sketch import Sketch

Record: TypeAlias = tuple[dict[str, NDArray[Any]], dict[str, Any]]
T = TypeVar("T")

ARRAY, MATRIX = "array", "matrix"  # tags of values that JSON does not hold
SKETCH, FLOAT = "sketch", "float"
NAMES = {"sp": sp, "NDArray": NDArray, "Any": Any}  # to resolve the annotation `Matrix` in any module


def pack(value: Any) -> Record:
    """A value as named arrays, each held once, and a JSON value; raises TypeError for other kinds of values."""
    arrays: dict[str, NDArray[Any]] = {}
    return arrays, {"value": _packed(value, "value", arrays, {})}


def unpack(kind: type[T], record: Record) -> T:
    """The value that was packed, of type `kind` such as ``Folded[AssignState]``; else TypeError or KeyError."""
    arrays, meta = record
    return typing.cast(T, _unpacked(meta["value"], kind, arrays))


def _packed(  # noqa: PLR0911 - one line for each kind of value
    value: Any, at: str, arrays: dict[str, NDArray[Any]], seen: dict[int, str]
) -> Any:
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        return float(value) if isfinite(value) else {FLOAT: repr(float(value))}
    if isinstance(value, np.ndarray):
        name = seen.setdefault(id(value), at)
        arrays[name] = value
        return {ARRAY: name}
    if sp.issparse(value):
        arrays |= pack_matrix(at, value)
        return {MATRIX: at}
    if isinstance(value, Sketch):
        arrays |= {f"{at}.{name}": array for name, array in value.arrays().items()}
        return {SKETCH: value.to_dict(), "at": f"{at}."}
    if isinstance(value, Mapping):
        pairs = enumerate(value.items())
        return [[_packed(key, "", {}, {}), _packed(each, f"{at}.{i}", arrays, seen)] for i, (key, each) in pairs]
    if isinstance(value, Sequence):
        return [_packed(each, f"{at}.{i}", arrays, seen) for i, each in enumerate(value)]
    if is_dataclass(value):
        names = [field.name for field in fields(value) if field.init]
        return {name: _packed(getattr(value, name), f"{at}.{name}", arrays, seen) for name in names}
    raise TypeError(f"{type(value).__name__} at {at}: records do not hold such values")


def _unpacked(value: Any, kind: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        left = [each for each in args if each is not type(None)]
        return None if value is None else _unpacked(value, left[0], arrays)
    if isinstance(value, dict) and (not is_dataclass(origin) or value.keys() == {SKETCH, "at"}):
        return _tagged(value, arrays)
    if is_dataclass(origin):
        given = {each.__name__: kind for each, kind in zip(getattr(origin, "__parameters__", ()), args, strict=False)}
        hints = typing.get_type_hints(origin, localns=NAMES | given)
        known = {name: _unpacked(each, hints[name], arrays) for name, each in value.items()}
        return origin(**known)  # type: ignore[operator]
    if isinstance(value, list):
        return _collected(value, origin, args, arrays)
    return kind(value) if kind in (int, float, bool, str) else value


def _tagged(value: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    if FLOAT in value:
        return float(value[FLOAT])
    if ARRAY in value:
        return arrays[value[ARRAY]]
    if MATRIX in value:
        return unpack_matrix(value[MATRIX], arrays)
    start = value["at"]
    parts = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
    return sketch_from_dict(value[SKETCH], parts)


def _collected(value: list[Any], origin: Any, args: tuple[Any, ...], arrays: Mapping[str, NDArray[Any]]) -> Any:
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {_unpacked(key, args[0], {}): _unpacked(each, args[1], arrays) for key, each in value}
    if origin is tuple and args and args[-1] is not Ellipsis:
        return tuple(_unpacked(each, kind, arrays) for each, kind in zip(value, args, strict=True))
    found = [_unpacked(each, args[0] if args else Any, arrays) for each in value]
    return tuple(found) if origin is tuple else found
