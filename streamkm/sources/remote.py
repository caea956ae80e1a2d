"""Objects behind URLs (``s3://``, ``https://``, ``memory://``, and all that fsspec knows), read by ranges of bytes.

Only this module uses fsspec. It retries requests, reads in windows, and notices by the end of a pass that an object has
changed. It knows no file format.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from streamkm.core.display import masked, without_secrets
from streamkm.core.exceptions import MissingDependencyError, SourceError, SourceNotFoundError, StreamkmError
from streamkm.sources.local import changed, natural

logger = logging.getLogger(__name__)

READ_AHEAD_BYTES, LEAST_BYTES = 8 << 20, 1 << 11  # of a request, at most and at least
PAUSES_SECONDS = (0.1, 0.5, 2.0, 8.0)  # between tries, where the file system does not try again itself
_WINDOWS = 2048  # small ones that a file keeps
_REQUESTS_AT_ONCE = 16
_TAGS = ("ETag", "etag", "md5Hash", "LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created")


class Version(NamedTuple):
    """State of an object or a directory, to be compared with a later one."""

    n_bytes: int
    text: str  # bytes and etag, else time of change; of a directory bytes, number of objects and a hash of these texts

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Version | None:
        """State of an object from a file system's description; None for a directory, and if the size is unknown."""
        if info["type"] == "directory" or info.get("size") is None:
            return None
        tag = next((f", {key.lower()} {info[key]}" for key in _TAGS if info.get(key)), "")
        return cls(info["size"], f"{info['size']:,} bytes{tag}")

    @classmethod
    def of_all(cls, objects: Mapping[str, Version]) -> Version:
        """State of a directory, from its objects."""
        n_bytes = sum(each.n_bytes for each in objects.values())
        digest = hashlib.blake2b(repr(sorted(objects.items())).encode(), digest_size=16).hexdigest()
        return cls(n_bytes, f"{n_bytes:,} bytes, {len(objects):,} objects, hash {digest}")


class Address(str):
    """A URL as text without its secrets, with the options to reach it and its state when it was opened.

    No name, message or file that is made of the text can tell the secrets.
    """

    url: str  # as it was given, for requests alone
    # of the file system, as fsspec takes them: ``{"anon": True}``. In no message and no fingerprint
    options: dict[str, Any]
    version: Version | None  # None for directories, and for what was not looked at

    def __new__(cls, url: str, options: Mapping[str, Any] | None = None, version: Version | None = None) -> Address:
        given = url.url if isinstance(url, Address) else url
        made = super().__new__(cls, masked(given))
        made.url, made.options, made.version = given, dict(options or {}), version
        if made.is_http:  # what was compressed on the way would have other ranges
            made.options["headers"] = {"Accept-Encoding": "identity", **made.options.get("headers", {})}
        return made

    def __getnewargs__(self) -> tuple[str, dict[str, Any], Version | None]:  # type: ignore[override]
        return self.url, self.options, self.version

    @property
    def is_http(self) -> bool:
        """Whether the server is a web server, which lists nothing and may not support ranges."""
        return self.url.startswith(("http://", "https://"))

    def at(self, key: str) -> Address:
        """Address of an object below this one."""
        return Address(f"{self.url.rstrip('/')}/{key}", self.options) if key else self


class RemoteFile(io.RawIOBase):
    """An object, read in windows; the last large one and many small ones are kept. Not thread-safe.

    `expected`: bytes that will be read in order, which are fetched ahead. Reading methods raise SourceError.
    """

    def __init__(self, address: Address, expected: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.address, self.expected = opened(address), expected
        if self.address.version is None:
            raise SourceError(f"{address} is a directory, or of unknown size; name objects, or a glob of them")
        self.name, self.size = str(address), self.address.version.n_bytes
        self._position, self._windows = 0, list[tuple[int, bytes]]()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = max(0, offset + (0, self._position, self.size)[whence])
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer`, or as much of it as there are bytes left."""
        view, done = memoryview(buffer).cast("B"), 0
        while done < len(view) and self._position < self.size:
            start, data = self._window(min(len(view) - done, READ_AHEAD_BYTES))
            piece = memoryview(data)[self._position - start :][: len(view) - done]
            view[done : done + len(piece)] = piece
            done, self._position = done + len(piece), self._position + len(piece)
        return done

    def _window(self, n_bytes: int) -> tuple[int, bytes]:
        """First byte and bytes of a window that contains the position."""
        at, (first, last) = self._position, self.expected
        for start, data in self._windows:
            if start <= at < start + len(data):
                return start, data
        stop = max(at + n_bytes, at + LEAST_BYTES)
        if first <= at < min(last, first + LEAST_BYTES):  # not what lies between, which others may read before
            stop = max(at + n_bytes, min(last, at + READ_AHEAD_BYTES))
            self.expected = stop, last
        window = at, fetch(self.address, at, min(stop, self.size))
        self._windows = [window, *[each for each in self._windows if len(each[1]) <= LEAST_BYTES][:_WINDOWS]]
        return window


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def remote_library(*paths: str) -> tuple[str, ...]:
    """The library for URLs among paths, in the form of `Access.libraries`."""
    return ("fsspec",) if any(map(is_remote, paths)) else ()


def look(address: Address) -> Version | None:
    """State of an object now; None for a directory. One request. Raises SourceNotFoundError, SourceError."""
    return Version.of(ask(address, lambda fs, path: fs.info(path)))


def opened(address: Address) -> Address:
    """Address with its present version, unless it has one."""
    return Address(address, address.options, address.version or look(address))


def named(address: Address) -> list[Address]:
    """Objects and directories of a glob in natural order, else the address itself. Raises SourceNotFoundError.

    ``?`` is no wildcard: it starts the query of a URL. Chained URLs (``a::b://``) are no globs.
    """
    if "::" in address.url or not any(sign in address.url for sign in "*["):
        return [address]
    fs, found = ask(address, lambda fs, path: (fs, fs.glob(path, detail=True)))
    if not found:
        raise SourceNotFoundError(f"no object matches {address}")
    versions = {fs.unstrip_protocol(name): Version.of(info) for name, info in found.items()}
    return [Address(url, address.options, versions[url]) for url in sorted(versions, key=natural)]


def fetch(address: Address, start: int = 0, stop: int | None = None) -> bytes:
    """Bytes from `start` (negative: from the end) to `stop` or the end. Raises SourceNotFoundError, SourceError."""

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

    return bytes(ask(address, get))


def settle() -> None:
    """Wait until fsspec's thread is idle."""
    from fsspec.asyn import get_loop, sync

    sync(get_loop(), asyncio.sleep, 0)


@contextmanager
def unchanged(files: Sequence[str]) -> Iterator[None]:
    """Compare objects after a pass with their state when opened, by one request each.

    Raises SourceError with both states, in place of the error that a changed object has caused.
    """
    try:
        yield
    finally:
        if remote_library(*files):
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
                list(threads.map(check_same, files))


def check_same(file: str) -> None:
    """Refuse an object or directory that has changed since it was opened. Raises SourceError."""
    if isinstance(file, Address) and file.version is not None and (now := _state(file)) != file.version:
        raise changed(file, file.version.text, now.text)


def _state(address: Address) -> Version:
    return look(address) or Version.of_all(listed(address) or {})


def listed(address: Address) -> dict[str, Version] | None:
    """Objects below a directory, by their keys; None for web servers, which cannot list."""
    if address.is_http:
        return None
    root, found = ask(address, lambda fs, path: (path, fs.find(path, detail=True)))
    return {name[len(root) :].lstrip("/"): version for name, info in found.items() if (version := Version.of(info))}


def fingerprint(url: str) -> dict[str, Any]:
    """Description of an object, or of a directory with its contents: path without secrets, bytes and version."""
    address = url if isinstance(url, Address) else Address(url)
    n_bytes, text = address.version or _state(address)
    return {"path": str(address), "bytes": n_bytes, "version": text}


def ask(address: Address, request: Callable[[Any, str], Any]) -> Any:
    """Result of a request of a file system and a path; failures that may pass are retried.

    Raises SourceNotFoundError, SourceError, MissingDependencyError, without a cause, which may quote a URL's secrets.
    """
    for pause in (*PAUSES_SECONDS, None):
        try:
            from fsspec.core import url_to_fs

            fs, path = url_to_fs(address.url, **address.options)
            fs.invalidate_cache()  # lists that it keeps would hide a change
            return request(fs, path)
        except ImportError as error:
            install = "pip install streamkm[remote], for S3 streamkm[s3]"
            raise MissingDependencyError(f"{address} cannot be read: {error}; {install}") from error
        except StreamkmError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again
            cause = error.__cause__ or error  # fsspec calls all failures of HTTP a missing file
            may_pass = isinstance(cause, ConnectionError | TimeoutError) or type(cause).__module__.startswith("aiohttp")
            status = getattr(cause, "status", 503 if may_pass else 404 if isinstance(error, FileNotFoundError) else 400)
            if status in (404, 410):
                raise SourceNotFoundError(f"{address} does not exist") from None
            text = f"{address} cannot be read: {type(cause).__name__}: {without_secrets(str(cause))}"
            if pause is None or (status < 500 and status not in (408, 425, 429)):
                raise SourceError(f"{text}; check the URL and storage_options, or download the file") from None
            logger.warning("%s; asked again in %g s", text, pause)
            time.sleep(pause)
    raise AssertionError
