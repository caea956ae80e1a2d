"""Ranges of bytes of objects, each by one request whose answer also says which version of the object it is from.

Responsible for those file systems of fsspec whose own functions give the bytes and drop the rest of the answer: web
servers and S3. Gets file systems from `remote`, and runs in their event loops.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

Answer = tuple[bytes, Mapping[str, Any]]
"""Bytes, and what `Version.of` reads."""

_TOLD = ("ETag", "Content-MD5", "Last-Modified")  # as fsspec gives them; servers may write them otherwise


def ranged(fs: Any) -> Callable[[Any, str, int, int | None], Coroutine[Any, Any, Answer]] | None:
    """Choose how a file system is asked for bytes [start, stop) of what is at a path; None where its own way is all."""
    if hasattr(fs, "_call_s3"):
        return _s3_range
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return _web_range if "http" in protocols and hasattr(fs, "set_session") else None


async def _web_range(fs: Any, url: str, start: int, stop: int | None) -> Answer:
    options = dict(fs.kwargs)
    # what was compressed on the way would have other ranges
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
    if start or stop is not None:
        headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), headers=headers, **options) as response:
        if response.status == 404:
            raise FileNotFoundError(url)
        response.raise_for_status()
        facts: dict[str, Any] = {field: response.headers.get(field) for field in _TOLD}
        length = response.content_length
        _, _, total = response.headers.get("Content-Range", "").rpartition("/")
        facts["size"] = int(total) if total.isdigit() else length if response.status == 200 else None
        if response.status == 200 and (start or (stop is not None and length != stop)):
            raise ValueError("the server does not support range requests")
        return await response.read(), facts


async def _s3_range(fs: Any, path: str, start: int, stop: int | None) -> Answer:
    bucket, key, version_id = fs.split_path(path)
    options = {"VersionId": version_id} if version_id else {}
    if start or stop is not None:
        options["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    response = await fs._call_s3("get_object", Bucket=bucket, Key=key, **options)
    async with response["Body"] as body:
        data = await body.read()
    _, _, total = response.get("ContentRange", "").rpartition("/")
    return data, {**response, "size": int(total) if total.isdigit() else response.get("ContentLength")}
