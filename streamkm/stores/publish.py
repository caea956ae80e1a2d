"""The root of a sketch store: the one step that makes parts its own, the replacement of its zarr.json.

The layout is described in `streamkm.sources.sketch_store`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import zarr

from streamkm.core.atomic_io import remove_tree, replace_file, sync, writing
from streamkm.core.exceptions import OutputError
from streamkm.core.manifest import shortly
from streamkm.core.matrix import raw
from streamkm.core.partial_files import FILE_TAG
from streamkm.preparation import Preparation
from streamkm.sketches import Sketch
from streamkm.sources.sketch_store import ROOT, STEPS_PREFIX, StoreInfo
from streamkm.stores.writer import create_array

# a zarr.json that zarr, or `replace_file`, was writing when it was killed
_PARTIAL_ROOT = re.compile(rf"zarr\.[0-9a-f]{{32}}\.partial|\.zarr\.json\.{FILE_TAG}\.partial")
_OF_A_PART = frozenset({ROOT, "X", "weights", "checksums"})


def start_store(path: str | os.PathLike[str], sketch: Sketch, preparation: Preparation | None) -> dict[str, int]:
    """Make the groups of a store and write what its sketch needs and steps have found; give the checksums of that."""
    place = Path(path)
    checksums = {}
    found = {} if preparation is None else preparation.arrays()
    arrays = sketch.arrays() | {STEPS_PREFIX + name: values for name, values in found.items()}
    with writing(path):
        for group in ("", "parts", "sketch"):
            if not (place / group / ROOT).exists():
                zarr.create_group(str(place / group))
        for name, values in arrays.items():
            remove_tree(place / "sketch" / name)
            array = create_array(place / "sketch" / name, values.dtype, (max(1, len(values)), *values.shape[1:]))
            array.resize(values.shape)
            array[...] = values
            checksums[name] = zlib.crc32(raw(values))
        for folder, _, names in os.walk(place / "sketch", topdown=False):
            for each in (*(os.path.join(folder, name) for name in names), folder):
                sync(each)
    return checksums


def publish(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Make a store what `info` says, in one step; then remove parts that it no longer has.

    What a killed process left of files that it was writing is removed before. Only one process at a time may do this.
    """
    root = info.to_root()
    with writing(path):
        for folder in ("", "parts", "sketch"):
            for left in (Path(path) / folder).iterdir():
                if _PARTIAL_ROOT.fullmatch(left.name):
                    left.unlink()
        sync(Path(path) / "parts")
    replace_file(Path(path) / ROOT, lambda file: file.write(root), len(root))
    sweep_parts(path, info)


def sweep_parts(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Remove parts that a store does not have: whatever else lies there stays."""
    kept = {str(part.number) for part in info.parts}
    for entry in (Path(path) / "parts").iterdir():
        if entry.name not in kept and entry.name.isdecimal() and not list(_foreign(entry, _OF_A_PART)):
            remove_tree(entry)


def check_only_store(path: str | os.PathLike[str], info: StoreInfo) -> None:
    """Refuse to replace a store's directory where other files lie among the store's.

    Raises
    ------
    OutputError
        Names them.
    """
    place = Path(path)
    found = list(_foreign(place, {ROOT, "parts", "sketch"}))
    found += _foreign(place / "sketch", {ROOT, *info.sketch_checksums})
    numbers = [entry.name for entry in (place / "parts").iterdir() if entry.name.isdecimal()]
    found += _foreign(place / "parts", {ROOT, *numbers})
    for number in numbers:
        found += _foreign(place / "parts" / number, _OF_A_PART)
    if found:
        names = shortly(str(entry.relative_to(place)) for entry in found)
        raise OutputError(f"{place} holds other files than those of a sketch store ({names}); move them away")


def _foreign(directory: Path, own: Collection[str]) -> Iterator[Path]:
    """What lies in a directory, or is it, that streamkm does not write there; it writes no symbolic links."""
    if directory.is_symlink() or not directory.is_dir():
        yield directory
        return
    for entry in directory.iterdir():
        if entry.is_symlink() or (entry.name not in own and not _PARTIAL_ROOT.fullmatch(entry.name)):
            yield entry


def part_directory(path: str | os.PathLike[str], number: int) -> Path:
    """Where a part of a store lies."""
    return Path(path) / "parts" / str(number)


def next_part(info: StoreInfo) -> int:
    """The number of a part to come."""
    return 1 + max(part.number for part in info.parts)
