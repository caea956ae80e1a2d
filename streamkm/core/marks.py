"""Files that streamkm wrote, of formats without a place for a mark: a hidden file beside each tells them from others.

The mark of NAME is `.NAME.streamkm`: JSON with the size of the file that streamkm wrote there, and a hash of all its
bytes. It is written before the file takes its name, and keeps what it says of the file that is replaced. So a kill at
any moment leaves no file of streamkm's without its mark. Files of a directory of results need none: its marker lists
them, and goes on to do so when one of them is replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, TypeAlias

from streamkm.core.atomic_io import check_new, named, replace_file
from streamkm.core.exceptions import OutputError
from streamkm.core.manifest import RESULTS, Owned

FORMAT = 1
_KIND = "file"

Overwrite: TypeAlias = bool | Literal["any"]
"""What may be replaced: nothing, what streamkm wrote, or any regular file."""


def check_ours(
    path: str | os.PathLike[str], what: str, overwrite: Overwrite, is_ours: Callable[[Path], bool] | None = None
) -> None:
    """Refuse to replace a file that `overwrite` does not allow to.

    Parameters
    ----------
    path : path
    what : str
        What streamkm writes there, for the message: ``table of labels``.
    overwrite : bool or "any"
    is_ours : callable, optional
        Tells a file of streamkm's; `is_marked` unless given.

    Raises
    ------
    OutputError
    """
    check_new(path, overwrite=bool(overwrite))
    if overwrite != "any" and os.path.lexists(path) and not (is_ours or is_marked)(Path(path)):
        raise OutputError(
            f"{os.fspath(path)} exists and is no {what} that streamkm wrote there, or was changed since; choose "
            f"another name, or replace it by overwrite='any'"
        )


def is_marked(path: Path) -> bool:
    """Whether a file is one that streamkm wrote there, unchanged."""
    results = _results_around(path)
    return (results is not None and results.owns(path.name)) or bool(_marked(path))


def replace_marked(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], Any],
    n_bytes: int | None = None,
    *,
    ready: Callable[[int], object],
) -> None:
    """Write a file as `atomic_io.replace_file` does, and its mark before it takes its name.

    Raises
    ------
    DiskFullError, OutputError
        The old file is as it was.
    """
    target = Path(path)
    written: list[Any] = []

    def write_it(file: BinaryIO) -> None:
        write(file)
        file.flush()
        written.append(_described(file))

    def mark(size: int) -> None:
        ready(size)
        if list_among_results(target, {target.name: size}):
            return
        place = _mark_of(target)
        if os.path.lexists(place) and not _read(place):
            raise OutputError(f"{place} is no mark of streamkm's, which {target} needs; move it away")
        listed = [*(told for told in _marked(target) if told not in written), *written]
        text = json.dumps({"streamkm": _KIND, "format": FORMAT, "files": listed}).encode()
        with named(place, target):
            replace_file(place, lambda file: file.write(text), len(text))

    replace_file(target, write_it, n_bytes, ready=mark)


def list_among_results(path: Path, sizes: Mapping[str, int]) -> bool:
    """List files that take a path in the marker of its directory, if that lists the path's; whether it does.

    Parameters
    ----------
    sizes : mapping of str to int
        As `Owned.announce` takes it: the path's name, or names below it where it is a directory, and bytes.
    """
    results = _results_around(path)
    if results is None or path.name not in {PurePosixPath(name).parts[0] for name in results.files}:
        return False
    results.announce(sizes)
    return True


def _results_around(path: Path) -> Owned | None:
    """What streamkm has written in a path's directory, if that is one of results."""
    with suppress(OutputError):  # of something else, or damaged: then nothing there counts as listed
        return Owned.read(path.parent, RESULTS, OutputError)
    return None


def _mark_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.streamkm")


def _marked(path: Path) -> list[Any]:
    """What the mark of a file says of it as it is: one entry, or none."""
    try:
        found = os.lstat(path)
        told = [each for each in _read(_mark_of(path)) if each.get("bytes") == found.st_size]
        if not (told and stat.S_ISREG(found.st_mode)):
            return []
        with open(path, "rb") as file:
            now = _described(file)
    except (OSError, AttributeError):
        return []
    return [each for each in told if each == now][:1]


def _described(file: BinaryIO) -> dict[str, Any]:
    """Size and hash of an open file. O(bytes): a time of change tells less, as clocks of files tick in milliseconds."""
    file.seek(0)
    digest = hashlib.file_digest(file, "blake2b").hexdigest()  # type: ignore[arg-type]
    return {"bytes": file.tell(), "blake2b": digest}


def _read(mark: Path) -> list[Any]:
    """What a mark says of files; nothing where there is none, or something else."""
    try:
        if not stat.S_ISREG(os.lstat(mark).st_mode):
            return []
        told = json.loads(mark.read_bytes())
        return list(told["files"]) if (told["streamkm"], told["format"]) == (_KIND, FORMAT) else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
