"""Files that streamkm wrote, of formats without a place for a mark: a hidden file beside each tells them from others.

The mark of NAME is `.NAME.streamkm`: JSON with the size of the file that streamkm wrote there, and a hash of its first
and last bytes. It is written before the file takes its name, and keeps what it says of the file that is replaced. So a
kill at any moment leaves no file of streamkm's without its mark.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from streamkm.core.atomic_io import check_new, replace_file
from streamkm.core.exceptions import OutputError

FORMAT = 1
_KIND = "file"
_END_BYTES = 1 << 16

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
    return bool(_marked(path))


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
        place = _mark_of(target)
        if os.path.lexists(place) and not _read(place):
            raise OutputError(f"{place} is no mark of streamkm's, which {target} needs; move it away")
        listed = [*(told for told in _marked(target) if told not in written), *written]
        text = json.dumps({"streamkm": _KIND, "format": FORMAT, "files": listed}).encode()
        replace_file(place, lambda file: file.write(text), len(text))

    replace_file(target, write_it, n_bytes, ready=mark)


def _mark_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.streamkm")


def _marked(path: Path) -> list[Any]:
    """What the mark of a file says of it as it is: one entry, or none."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return []
        with open(path, "rb") as file:
            now = _described(file)
    except OSError:
        return []
    return [told for told in _read(_mark_of(path)) if told == now][:1]


def _described(file: BinaryIO) -> dict[str, Any]:
    """Size and hash of the ends of an open file."""
    size = os.fstat(file.fileno()).st_size
    digest = hashlib.blake2b(digest_size=16)
    for start in (0, max(0, size - _END_BYTES)):
        file.seek(start)
        digest.update(file.read(_END_BYTES))
    return {"bytes": size, "ends": digest.hexdigest()}


def _read(mark: Path) -> list[Any]:
    """What a mark says of files; nothing where there is none, or something else."""
    try:
        if not stat.S_ISREG(os.lstat(mark).st_mode):
            return []
        told = json.loads(mark.read_bytes())
        return list(told["files"]) if (told["streamkm"], told["format"]) == (_KIND, FORMAT) else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
