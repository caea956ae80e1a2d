"""Which paths results may be written to: those of this machine's file system. Touches no file."""

from __future__ import annotations

import os
import re

from streamkm.core.exceptions import OutputError
from streamkm.core.secrets import masked

_URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+):/+")  # `pathlib` leaves one slash; drives have one letter


def check_local(path: str | os.PathLike[str]) -> None:
    """Refuse a URL to write to, which would name a directory ``s3:`` below the current one.

    Raises
    ------
    OutputError
    """
    if found := _URL.match(os.fspath(path)):
        url = f"{found['protocol']}://{os.fspath(path)[found.end() :]}"
        raise OutputError(
            f"{masked(url)} is a URL, and results are written to local paths only; give a path (on a "
            f"cluster one that all workers see), and copy what was written"
        )
