"""What streamkm has written in a directory: listed by name and size; nothing else is replaced or removed there.

A directory that holds files of streamkm has a marker beside them: JSON that says what they are together, who owns them
(a random word, also in the names of files that are not complete yet), and which they are. A file counts as streamkm's
only if it is a regular file that the marker lists, of a size that the marker lists. It is listed before it takes its
name, so a kill at any moment leaves none that is not.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from streamkm.core.atomic_io import named, replace_file, sync, writing
from streamkm.core.exceptions import StreamkmError
from streamkm.core.partial_files import is_unlocked, partial_name, partial_suffix

MARKER = ".streamkm.json"
RESULTS = "results"
"""What files of a fit, a sweep or a report are together."""
FORMAT = 1
_PARTIAL_MARKER = re.compile(re.escape(partial_name(MARKER, "0")).replace("0", "[0-9a-f]{32}"))
LISTED = 5  # names, or whatever else, in a message


class Owned:
    """Files of streamkm's in a directory.

    Parameters
    ----------
    directory : Path
    kind : str
        What the files are together: ``checkpoint``.
    error : type of StreamkmError
        Raised where something there is not as streamkm left it.

    Attributes
    ----------
    owner : str
        Random; of this directory since it was marked.
    files : dict of str to list of int
        Name below the directory, with ``/``, and the sizes that the file may have: one, or while it is replaced the old
        one and the new one.
    facts : dict of JSON values
        What else the marker says.
    """

    def __init__(self, directory: Path, kind: str, error: type[StreamkmError]):
        self.directory, self.kind, self.error = directory, kind, error
        self.owner = secrets.token_hex(16)
        self.files: dict[str, list[int]] = {}
        self.facts: dict[str, Any] = {}

    @classmethod
    def read(cls, directory: Path, kind: str, error: type[StreamkmError]) -> Owned | None:
        """Read what a directory's marker says; None where there is no marker.

        Raises
        ------
        error
            The marker is of something else, of another format, or damaged.
        """
        path = directory / MARKER
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise ValueError("it is no regular file")
            marked = json.loads(path.read_bytes())
            found, version = marked["streamkm"], marked["format"]
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise error(f"{path} is damaged, or no marker of streamkm's ({problem}); {_ELSEWHERE}") from problem
        if found != kind:
            raise error(f"{directory} is marked as streamkm's {found}, not as its {kind}; choose another directory")
        if version != FORMAT:
            raise error(
                f"{kind} {directory} is of format {version!r}; this release reads {FORMAT}: go on with the release "
                f"that made it, or choose another directory"
            )
        owned = cls(directory, kind, error)
        try:
            owned.owner, owned.facts = str(marked["owner"]), dict(marked["told"])
            owned.files = {
                _checked(name, kind): [int(size) for size in sizes] for name, sizes in marked["files"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise error(f"{path} is damaged ({problem}); {_ELSEWHERE}") from problem
        return owned

    def owns(self, name: str) -> bool:
        """Whether a file there, or every file of a directory there, is one that streamkm wrote."""
        path = self.directory / name
        if os.path.realpath(path) != os.path.join(os.path.realpath(self.directory), *PurePosixPath(name).parts):
            return False  # a link, here or on the way
        if path.is_dir():
            return all(self.owns(f"{name}/{below.name}") for below in path.iterdir())
        return path.is_file() and path.stat().st_size in self.files.get(name, ())

    def check(self, names: Iterable[str]) -> None:
        """Refuse to replace or remove what streamkm did not write.

        Raises
        ------
        error
            Names it.
        """
        foreign = [name for name in names if os.path.lexists(self.directory / name) and not self.owns(name)]
        if foreign:
            raise self.error(
                f"{self.directory} holds {shortly(foreign)}, which streamkm did not write there, or which was changed "
                f"since; move it away, or choose another directory"
            )

    def announce(self, sizes: Mapping[str, int]) -> None:
        """List files before they take their names, beside those that are there.

        Parameters
        ----------
        sizes : mapping of str to int
            Name below the directory, and bytes.
        """
        if all(size in self.files.get(name, ()) for name, size in sizes.items()):
            return
        listed = {name: [os.lstat(self.directory / name).st_size] for name in self.files if self.owns(name)}
        for name, size in sizes.items():
            listed[name] = sorted({*listed.get(name, ()), size})
        self.files = listed
        self.mark()

    def replace(self, name: str, write: Callable[[BinaryIO], Any], n_bytes: int | None = None) -> None:
        """Write a file there, as `atomic_io.replace_file` does.

        Raises
        ------
        error
            Another file has that name.
        DiskFullError, OutputError
            The old file is as it was.
        """
        self.check([name])
        target = self.directory / name
        replace_file(target, write, n_bytes, tag=self.owner, ready=lambda size: self.announce({name: size}))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files that are streamkm's; others stay."""
        with writing(self.directory):
            for name in names:
                if self.owns(name):
                    (self.directory / name).unlink()
                self.files.pop(name, None)
            sync(self.directory)

    def remove_all(self) -> None:
        """Remove every file that is streamkm's, and what is left of files that were not complete."""
        self.remove(list(self.files))
        with writing(self.directory):
            for path in self.directory.iterdir():
                if path.name.endswith(partial_suffix(self.owner)) and path.is_file() and not path.is_symlink():
                    path.unlink()

    def mark(self) -> None:
        """Write the marker; remove those that killed processes left incomplete."""
        marked = {
            "streamkm": self.kind, "format": FORMAT, "owner": self.owner, "told": self.facts, "files": self.files,
        }  # fmt: skip
        text = json.dumps(marked, indent=1).encode()
        place = self.directory / MARKER
        with named(place, self.directory):
            replace_file(place, lambda file: file.write(text), len(text), tag=self.owner)
        for path in marker_rests(self.directory):
            with suppress(OSError):
                if is_unlocked(path):
                    path.unlink()

    def unmark(self) -> None:
        """Remove the marker: nothing there is streamkm's any more."""
        with writing(self.directory):
            (self.directory / MARKER).unlink(missing_ok=True)
            sync(self.directory)


def marker_rests(directory: Path) -> list[Path]:
    """Markers that are not complete, of processes that write them or were killed meanwhile."""
    return [
        path
        for path in directory.iterdir()
        if _PARTIAL_MARKER.fullmatch(path.name) and path.is_file() and not path.is_symlink()
    ]


def shortly(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    listed = sorted(names)
    more = f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""
    return ", ".join(listed[:LISTED]) + more


_ELSEWHERE = "streamkm cannot tell which files there are its own: move it away, or choose another directory"


def _checked(name: str, kind: str) -> str:
    """The name of a file in the directory itself; of results, labels may be a directory of files there."""
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or set(name) & set("\\:\0") or (len(parts) > 1 and kind != RESULTS):
        raise ValueError(f"it lists {name!r}")
    return name
