"""Objects behind URLs (``s3://``, ``https://``, ``memory://``, whatever fsspec knows): requests, and how they fail.

Asks for ranges of bytes, sizes and lists, again where that may help, and notices an object that has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from streamkm.core.display import is_masked, masked, without_secrets
from streamkm.core.exceptions import MissingDependencyError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.sources.local import natural

logger = logging.getLogger(__name__)

PAUSES_SECONDS = (0.1, 0.5, 2.0, 8.0)
"""Between tries of a request that failed in a way that may pass, where the file system does not try again itself."""

_REQUESTS_AT_ONCE = 16
_EXTRAS = {"http": "remote", "https": "remote", "s3": "s3", "s3a": "s3"}
_TAGS = dict.fromkeys(("ETag", "etag", "Content-MD5", "content_md5", "md5Hash"), "etag") | dict.fromkeys(
    ("LastModified", "Last-Modified", "last_modified", "mtime", "modified", "updated", "created"), "last modified"
)


class Version(NamedTuple):
    """State of an object or a directory, to be compared with a later one."""

    n_bytes: int
    tag: str  # etag, else time of change, else "": then the size is all there is; of a directory a hash of them

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Version:
        """State by what a file system says of an object; a size that it does not know is -1."""
        tag = next((f"{what} {info[key]}" for key, what in _TAGS.items() if info.get(key)), "")
        return cls(-1 if info.get("size") is None else int(info["size"]), tag)

    @classmethod
    def of_all(cls, objects: Mapping[str, Version]) -> Version:
        """State of a directory by its objects."""
        digest = hashlib.blake2b(repr(sorted(objects.items())).encode(), digest_size=16).hexdigest()
        tag = f"{len(objects):,} objects, hash of their etags {digest}"
        return cls(sum(each.n_bytes for each in objects.values()), tag)

    def __str__(self) -> str:
        return f"{self.n_bytes:,} bytes" + (f", {self.tag}" if self.tag else "")


class Address(str):
    """A URL, what it takes to reach it, and what was there when it was opened. A text, so wherever paths go it goes.

    The text is the URL without its secrets, so no name, message or file that is made of it can tell them. Two
    addresses are equal where their URLs are.
    """

    url: str  # as it was given, for requests alone
    # of the file system, as fsspec takes them: ``{"anon": True}``. In no message and no fingerprint
    options: dict[str, Any]
    version: Version | None  # None for directories, and for what was not looked at

    def __new__(cls, url: str, options: Mapping[str, Any] | None = None, version: Version | None = None) -> Address:
        given = url.url if isinstance(url, Address) else url
        made = super().__new__(cls, masked(given))
        made.url, made.options, made.version = given, dict(options or {}), version
        return made

    def __getnewargs__(self) -> tuple[str, dict[str, Any], Version | None]:  # type: ignore[override]
        return self.url, self.options, self.version

    def __eq__(self, other: object) -> bool:
        return self.url == (other.url if isinstance(other, Address) else other)

    def __ne__(self, other: object) -> bool:  # that of texts compares what is shown
        return not self == other

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def is_http(self) -> bool:
        """Whether it is a web server's, which lists nothing and may know no ranges."""
        return self.url.startswith(("http://", "https://"))

    @property
    def in_process(self) -> bool:
        """Whether only this process sees it."""
        return self.url.startswith("memory:")

    @property
    def fs_options(self) -> dict[str, Any]:
        """Options of fsspec's file system."""
        if not self.is_http:
            return self.options
        client = self.options.get("client_kwargs", {})  # what was compressed on the way would have other ranges
        headers = {"Accept-Encoding": "identity", **client.get("headers", {})}
        return {**self.options, "client_kwargs": {**client, "headers": headers}}

    def at(self, key: str) -> Address:
        """Address of what is below this one."""
        return Address(f"{self.url.rstrip('/')}/{key}", self.options) if key else self

    def file_system(self) -> tuple[Any, str]:
        """File system of fsspec, and the path there. Raises MissingDependencyError, SourceError."""
        try:
            from fsspec.core import url_to_fs

            return url_to_fs(self.url, **self.fs_options)
        except ImportError as error:
            extra = _EXTRAS.get(self.partition("://")[0])
            remedy = f"install streamkm[{extra}]" if extra else "install the package that fsspec names"
            raise MissingDependencyError(f"{self} cannot be read ({error}); {remedy}") from error
        except (TypeError, ValueError, OSError) as error:  # options of others, unknown protocols; some connect at once
            raise SourceError(f"{self} cannot be opened: {without_secrets(str(error))}") from None


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def remote_library(*paths: str) -> tuple[str, ...]:
    """What is loaded for URLs among paths, as `RowSource.libraries` has it."""
    return ("fsspec",) if any(map(is_remote, paths)) else ()


def look(address: Address) -> Version | None:
    """State of an object now; None for a directory. One request. Raises SourceNotFoundError, SourceError."""
    info = _ask(address, lambda fs, path: _refreshed(fs, path).info(path))
    return None if info["type"] == "directory" else Version.of(info)


def opened(address: Address) -> Address:
    """Address with the version that is there now, unless it has one."""
    if address.version is not None:
        return address
    version = look(address)
    if version is not None and version.n_bytes < 0:
        raise SourceError(f"{address}: the server does not say how many bytes it has; download it and pass the file")
    return Address(address, address.options, version)


def has_magic(address: Address) -> bool:
    """Whether a URL is a glob. ``?`` is none: it starts the query of a URL. Chained URLs (``a::b://``) are none."""
    return "::" not in address.url and any(sign in address.url for sign in "*[")


def glob(address: Address) -> list[Address]:
    """Objects and directories that a glob names, in natural order. Raises SourceNotFoundError if there are none."""
    fs, _ = address.file_system()
    found = _ask(address, lambda fs, path: _refreshed(fs).glob(path, detail=True))
    if not found:
        raise SourceNotFoundError(f"no object matches {address}")
    versions = {name: None if found[name]["type"] == "directory" else Version.of(found[name]) for name in found}
    return [
        Address(fs.unstrip_protocol(name), address.options, version if version and version.tag else None)
        for name, version in sorted(versions.items(), key=lambda each: natural(each[0]))
    ]


def fetch(address: Address, start: int = 0, stop: int | None = None) -> bytes:
    """Bytes from `start`, negative: from the end, to `stop`, None: to the end.

    Raises SourceNotFoundError, SourceError: missing, refused, out of reach, cut short; a server that knows no ranges.
    """

    def get(fs: Any, path: str) -> bytes:
        if not address.is_http or stop is None:
            data: bytes = fs.cat_file(path, start=start or None, end=stop)
        else:  # `cat_file` would take all that a server without ranges sends
            with fs.open(path, size=stop, cache_type="none") as file:
                file.seek(start)
                data = file.read(stop - start)
        if stop is not None and len(data) < stop - start:
            check_same(address)  # a shorter object is no failure that may pass
            raise ConnectionError(f"{len(data):,} of {stop - start:,} bytes from byte {start:,} came")
        return data

    return bytes(_ask(address, get))


def settle(address: Address) -> None:
    """Wait until the thread that fetches, where its file system has one, is in the middle of nothing."""
    fs, _ = address.file_system()
    if fs.async_impl:
        from fsspec.asyn import sync

        sync(fs.loop, asyncio.sleep, 0)


@contextmanager
def unchanged(files: Sequence[str]) -> Iterator[None]:
    """Compare what a pass read of objects, or failed at, with what was opened: a request for each.

    Raises SourceError, saying what was opened and what is there, instead of what a changed object has made fail.
    """
    try:
        yield
    finally:
        if far := [file for file in files if isinstance(file, Address)]:
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
                list(threads.map(check_same, far))


def check_same(address: Address) -> None:
    """Refuse an object or directory that is no longer the one that was opened. Raises SourceError."""
    if address.version is not None and (now := _state(address)) != address.version:
        raise SourceError(
            f"{address} was changed while it was in use: it was {address.version} when it was opened and is {now} now; "
            f"open the source again once it is complete"
        )


def _state(address: Address) -> Version:
    return look(address) or Version.of_all(listed(address) or {})


def listed(address: Address) -> dict[str, Version] | None:
    """Objects below a directory, by their keys there; None for web servers, which cannot list."""
    if address.is_http:
        return None
    _, root = address.file_system()
    found = _ask(address, lambda fs, path: _refreshed(fs).find(path, detail=True))
    return {name[len(root) :].lstrip("/"): Version.of(info) for name, info in found.items()}


def fingerprint(url: str) -> dict[str, Any]:
    """Description of an object, or of a directory with all that is in it: path without secrets, bytes and version."""
    address = url if isinstance(url, Address) else Address(url)
    version = address.version or _state(address)
    described = {"path": str(address), "bytes": version.n_bytes, "version": version.tag}
    if is_masked(address) and not version.tag:
        # the query may be all that tells objects apart; so few bits of it give nothing away
        described["query"] = hashlib.blake2b(address.url.encode(), digest_size=2).hexdigest()
    return described


def _refreshed(fs: Any, path: str | None = None) -> Any:
    fs.invalidate_cache(path)  # lists that it keeps would hide a change
    return fs


def _ask(address: Address, request: Callable[[Any, str], Any]) -> Any:
    """Result of a request, made again where it failed in a way that may pass. Raises SourceError."""
    fs, path = address.file_system()
    pauses = iter(() if hasattr(fs, "retries") else PAUSES_SECONDS)  # some file systems try again themselves
    while True:
        try:
            return request(fs, path)
        except StreamkmError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, with a cause that may be shown
            cause = _cause(error)
            pause = next(pauses, None) if _is_transient(cause) else None
            if pause is None:
                raise _explained(address, error, cause) from None  # a cause may quote the secrets of a URL
            logger.warning("%s: %s; asked again in %g s", address, _text(cause), pause)
            time.sleep(pause)


def _cause(error: BaseException) -> BaseException:
    """What failed at first: fsspec calls all failures of HTTP a missing file."""
    return error if error.__cause__ is None else _cause(error.__cause__)


def _is_transient(cause: BaseException) -> bool:
    if (status := getattr(cause, "status", None)) is not None:
        return status >= 500 or status in (408, 425, 429)
    return isinstance(cause, ConnectionError | TimeoutError) or type(cause).__module__.startswith("aiohttp")


def _text(cause: BaseException) -> str:
    return f"{type(cause).__name__}: {without_secrets(str(cause))}".removesuffix(": ")


def _explained(address: Address, error: Exception, cause: BaseException) -> SourceError:
    status = getattr(cause, "status", None)
    if status in (401, 403) or isinstance(error, PermissionError) or "Credential" in type(cause).__name__:
        return SourceError(f"{address}: access refused ({_text(cause)}); give credentials by storage_options")
    gone = isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError)
    if status in (404, 410) or (gone and not _is_transient(cause)):
        then = f"; it was {address.version} when it was opened" if address.version else ""
        return SourceNotFoundError(f"{address} does not exist{then}")
    if "range requests" in str(error):
        return SourceError(
            f"{address}: the server sends no ranges of bytes, which reading in parts needs; download it and pass the "
            f"file, or serve it from a server that does (nginx, Apache, an object store)"
        )
    return SourceError(f"{address} cannot be read: {_text(cause)}")
