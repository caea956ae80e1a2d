"""pyarrow, where it is needed: imported late, asked for by name where it is missing. The errors that it raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from streamkm.core.exceptions import MissingDependencyError, SourceError, StreamkmError
from streamkm.sources.local import unchanged
from streamkm.sources.remote.file import RemoteFile
from streamkm.sources.remote.objects import Address


def pyarrow(what: str) -> ModuleType:
    """Import pyarrow. `what`: what it is needed for: a path. Raises MissingDependencyError."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingDependencyError(f"{what} is read by pyarrow: pip install 'streamkm[tables]'") from error
    return pa


WORKING_BYTES = 28 << 20
"""Memory that pyarrow takes while it reads, beside what it holds once it is loaded: its threads' pools."""


def trim_heap() -> None:
    """Return memory that pyarrow's pool keeps of what was freed; each thread's own would stay otherwise."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


@contextmanager
def guarded(path: str, form: str, where: str = "") -> Iterator[None]:
    """Let pyarrow read a file or object: what it raises becomes SourceError.

    `form`: for messages: ``Parquet``. `where`: what of the file is read: ``, row group 3``. Raises SourceError, also
    where a local file is not the one that was opened.
    """
    pa = pyarrow(path)
    try:
        with unchanged(path):
            yield
    except StreamkmError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SourceError(f"{path}{where} cannot be read as {form}; truncated or damaged: {first}") from error


def readable(path: str) -> tuple[Any, RemoteFile | None]:
    """What pyarrow opens of a path or URL; for the latter also the file behind it, to be closed."""
    if not isinstance(path, Address):
        return str(path), None
    file = RemoteFile(path)
    return pyarrow(path).PythonFile(file, mode="r"), file
