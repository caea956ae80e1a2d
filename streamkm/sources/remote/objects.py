"""Objects behind URLs (``s3://``, ``https://``, ``memory://``, whatever fsspec knows): requests, and what they meet.

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
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

from streamkm.core.display import is_masked, masked, without_secrets
from streamkm.core.exceptions import (
    InvalidParameterError,
    MissingDependencyError,
    SourceError,
    SourceNotFoundError,
    StreamkmError,
)
from streamkm.sources.local import natural

logger = logging.getLogger(__name__)

PAUSES_SECONDS = (0.1, 0.5, 2.0, 8.0)
"""Between tries of a request that failed in a way that may pass, where the file system does not try again itself."""

_REQUESTS_AT_ONCE = 16
_EXTRAS = {"http": "remote", "https": "remote", "s3": "s3", "s3a": "s3"}
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# some of aiohttp and botocore, which may be missing
_TRANSIENT_TYPES = frozenset({
    "TimeoutError", "ConnectionError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError",
    "IncompleteRead",
})  # fmt: skip
_REFUSED_TYPES = frozenset({
    "PermissionError", "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError",
})  # fmt: skip
_ETAGS = ("ETag", "etag", "Content-MD5", "content_md5", "md5Hash")
_TIMES = ("LastModified", "Last-Modified", "last_modified", "mtime", "modified", "updated", "created")


@dataclass(frozen=True, slots=True)
class Version:
    """What tells one content of an object, or of a directory, from another."""

    n_bytes: int
    tag: str  # its etag, else its time of change, else "": then the size is all there is; of a directory a hash of them
    n_objects: int | None = None  # of a directory

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Version:
        """Read what a file system says of an object; a size that it does not know is -1."""
        etag = next((f"etag {info[key]}" for key in _ETAGS if info.get(key)), "")
        changed = next((f"last modified {_time(info[key])}" for key in _TIMES if info.get(key)), "")
        size = info.get("size")
        return cls(-1 if size is None else int(size), etag or changed)

    @classmethod
    def of_all(cls, objects: Mapping[str, Version]) -> Version:
        """Describe the objects of a directory."""
        lines = "\n".join(f"{key} {version.n_bytes} {version.tag}" for key, version in sorted(objects.items()))
        digest = hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()
        return cls(sum(version.n_bytes for version in objects.values()), digest, len(objects))

    def __str__(self) -> str:
        if self.n_objects is not None:
            return f"{self.n_objects:,} objects of {self.n_bytes:,} bytes (hash of their etags {self.tag})"
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
    def protocol(self) -> str:
        """``s3``; the first one of several."""
        return self.partition("://")[0].partition("::")[0]

    @property
    def is_http(self) -> bool:
        """Whether it is a web server's, which lists nothing and may know no ranges."""
        return self.protocol in ("http", "https")

    @property
    def in_process(self) -> bool:
        """Whether only this process sees it."""
        return self.protocol == "memory"

    def at(self, key: str) -> Address:
        """Give the address of what is below this one."""
        return Address(f"{self.url.rstrip('/')}/{key}", self.options) if key else self

    def file_system(self, **more: Any) -> tuple[Any, str]:
        """Give fsspec's file system, which it keeps for all with the same options, and the path there.

        Raises MissingDependencyError, SourceError, InvalidParameterError: no package for it, an unknown protocol,
        options that are not its own.
        """
        try:
            from fsspec.core import url_to_fs

            options = {**self.options, **more}
            if self.is_http:  # what was compressed on the way would have other ranges
                client = options.get("client_kwargs", {})
                headers = {"Accept-Encoding": "identity", **client.get("headers", {})}
                options["client_kwargs"] = {**client, "headers": headers}
            fs, path = url_to_fs(self.url, **options)
        except ImportError as error:
            extra = _EXTRAS.get(self.protocol)
            remedy = f"install streamkm[{extra}]" if extra else "install the package that fsspec names"
            raise MissingDependencyError(f"{self}: {self.protocol}:// cannot be read ({error}); {remedy}") from error
        except TypeError as error:
            raise InvalidParameterError(f"{self}: storage_options that do not fit {self.protocol}: {error}") from error
        except (ValueError, OSError) as error:  # some connect at once
            raise SourceError(f"{self} cannot be opened: {without_secrets(str(error))}") from _shown(error)
        return fs, path


def _time(value: Any) -> str:
    """Word a time of change; lists and single answers of one file system may give it in different types."""
    if isinstance(value, int | float):
        value = datetime.fromtimestamp(value, UTC)
    return value.astimezone(UTC).isoformat(timespec="microseconds") if isinstance(value, datetime) else str(value)


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def remote_library(*paths: str) -> tuple[str, ...]:
    """What is loaded for URLs among paths, as `RowSource.libraries` has it."""
    return ("fsspec",) if any(map(is_remote, paths)) else ()


def look(address: Address) -> Version | None:
    """Ask what an object is now; None for a directory. One request. Raises SourceNotFoundError, SourceError."""
    info = _ask(address, lambda fs, path: _refreshed(fs, path).info(path))
    return None if info["type"] == "directory" else Version.of(info)


def opened(address: Address) -> Address:
    """Give the address with the version that is there now, unless it has one."""
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
    made = []
    for name, info in sorted(found.items(), key=lambda each: natural(each[0])):
        url = fs.unstrip_protocol(name)
        version = None if info["type"] == "directory" else Version.of(info)
        made.append(Address(url, address.options, version if version and version.tag else None))
    if not made:
        raise SourceNotFoundError(f"no object matches {address}")
    return made


def fetch(address: Address, start: int = 0, stop: int | None = None) -> bytes:
    """Bytes from `start`, negative: from the end, to `stop`, None: to the end.

    Raises SourceNotFoundError, SourceError: missing, refused, out of reach, cut short; a server that knows no ranges.
    """

    def get(fs: Any, path: str) -> bytes:
        if address.is_http and stop is not None:  # `cat_file` would take all that a server without ranges sends
            with fs.open(path, size=stop, cache_type="none") as file:
                file.seek(start)
                data: bytes = file.read(stop - start)
        else:
            data = fs.cat_file(path, start=start or None, end=stop)
        wanted = -start if start < 0 else len(data) if stop is None else stop - start
        if start < 0 and len(data) > wanted:
            raise ValueError("range requests are not answered")
        if len(data) != wanted:
            check_same(address)  # a shorter object is no failure that may pass
            raise ConnectionError(f"{len(data):,} of {wanted:,} bytes from byte {start:,} came")
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
    """See to it that what a pass read of objects, or failed at, is of those that were opened: a request for each.

    Raises SourceError, saying what was opened and what is there, instead of what a changed object has made fail.
    """
    far, failure = [file for file in files if isinstance(file, Address)], None
    try:
        yield
    except StreamkmError as error:
        failure = error
    if far:
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            list(threads.map(check_same, far))
    if failure is not None:
        raise failure


def check_same(address: Address) -> None:
    """Refuse an object or directory that is no longer the one that was opened. Raises SourceError."""
    then = address.version
    if then is None:
        return
    now = look(address) if then.n_objects is None else Version.of_all(listed(address) or {})
    if now != then:
        raise SourceError(
            f"{address} was changed while it was in use: it was {then} when it was opened and is "
            f"{now or 'a directory'} now; open the source again once it is complete"
        )


def listed(address: Address) -> dict[str, Version] | None:
    """Objects below a directory, by their keys there; None where the file system cannot list."""
    if address.is_http:
        return None
    try:
        _, root = address.file_system()
        found = _ask(address, lambda fs, path: _refreshed(fs).find(path, detail=True))
    except SourceError as error:
        if isinstance(error.__cause__, NotImplementedError):
            return None
        raise
    return {name[len(root) :].lstrip("/"): Version.of(info) for name, info in found.items()}


def entries(address: Address) -> list[str]:
    """Names in a directory; none where there is no such directory."""
    try:
        found = _ask(address, lambda fs, path: _refreshed(fs).ls(path, detail=False))
    except SourceNotFoundError:
        return []
    return [name.rstrip("/").rpartition("/")[2] for name in found]


def fingerprint(url: str) -> dict[str, Any]:
    """Description of an object, or of a directory with all that is in it: path without secrets, bytes and version."""
    address = url if isinstance(url, Address) else Address(url)
    version = address.version or look(address) or Version.of_all(listed(address) or {})
    described = {"path": str(address), "bytes": version.n_bytes, "version": version.tag}
    if version.n_objects is not None:
        return {**described, "objects": version.n_objects}
    if is_masked(address) and not version.tag:
        # the query may be all that tells objects apart; so few bits of it give nothing away
        described["query"] = hashlib.blake2b(address.url.encode(), digest_size=2).hexdigest()
    return described


def _refreshed(fs: Any, path: str | None = None) -> Any:
    fs.invalidate_cache(path)  # lists that it keeps would hide a change
    return fs


def _ask(address: Address, request: Callable[[Any, str], Any]) -> Any:
    """Make a request, again where it failed in a way that may pass; what fails for good is a SourceError."""
    fs, path = address.file_system()
    for attempt in count(1):
        try:
            return request(fs, path)
        except StreamkmError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, with a cause that may be shown
            # some file systems try again themselves
            pauses = () if hasattr(fs, "retries") or not _is_transient(error) else PAUSES_SECONDS
            if attempt > len(pauses):
                raise _explained(address, error, attempt) from _shown(error)
            logger.warning(
                "%s: %s; asked again in %g s (attempt %d of %d)",
                address, _text(error), pauses[attempt - 1], attempt + 1, len(pauses) + 1,
            )  # fmt: skip
            time.sleep(pauses[attempt - 1])
    raise AssertionError("the last attempt returns or raises")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _types(error: BaseException) -> set[str]:
    """Names of the types of an error and of what caused it."""
    return {each.__name__ for cause in _causes(error) for each in type(cause).__mro__}


def _status(error: BaseException) -> int | None:
    """HTTP status of an error of aiohttp or botocore, or of what caused it."""
    for each in _causes(error):
        response = getattr(each, "response", None)
        code = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        status = getattr(each, "status", code)
        if isinstance(status, int):
            return status
    return None


def _is_transient(error: BaseException) -> bool:
    status = _status(error)
    return bool(_types(error) & _TRANSIENT_TYPES) if status is None else status in _TRANSIENT_STATUS


def _text(error: BaseException) -> str:
    """Say what failed: the cause, where an error has one (fsspec calls all failures of HTTP a missing file)."""
    *_, last = _causes(error)
    said = without_secrets(str(last))
    return f"{type(last).__name__}: {said}" if said else type(last).__name__


def _shown(error: BaseException) -> BaseException | None:
    """An error as the cause of ours, which tracebacks show; None where it quotes the secrets of a URL."""
    return error if all(without_secrets(str(each)) == str(each) for each in _causes(error)) else None


def _explained(address: Address, error: Exception, attempts: int) -> SourceError:
    status = _status(error)
    if status in (401, 403) or _types(error) & _REFUSED_TYPES:
        return SourceError(
            f"{address}: access refused ({_text(error)}); give credentials as fsspec's {address.protocol} file system "
            f"takes them: its environment variables and files, or storage_options"
        )
    gone = isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError)
    if status in (404, 410) or (gone and not _is_transient(error)):
        if address.version is not None:
            return SourceNotFoundError(f"{address} is gone: it was {address.version} when it was opened")
        return SourceNotFoundError(f"{address} does not exist")
    if "range requests" in str(error):
        return SourceError(
            f"{address}: the server sends no ranges of bytes, which reading in parts needs; download it and pass the "
            f"file, or serve it from a server that does (nginx, Apache, an object store)"
        )
    tries = f" after {attempts} attempts" if attempts > 1 else ""
    return SourceError(f"{address} cannot be read{tries}: {_text(error)}")
