"""Fingerprints of sources, which show later changes: sizes, times and samples of the bytes of their files.

Reads little: an edit that keeps a file's size and time of change, and misses the sampled bytes, goes unnoticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import numpy as np

from streamkm.core.matrix import raw
from streamkm.sources import local, remote
from streamkm.sources.remote import is_remote
from streamkm.sources.row_source import RowSource
from streamkm.sources.stored import open_binary, read_fully

SAMPLES, SAMPLE_BYTES = 16, 1 << 16


def fingerprint(source: RowSource) -> dict[str, Any]:
    """Describe a source by JSON values that change when its rows do.

    The result has ``name``, ``n_rows``, ``n_features``, ``dtype``, ``sparse``; ``made_with`` for rows made from the
    files' contents; ``files`` (see `file_fingerprint`) or, without files, ``sample``, a hash of some rows, or None if
    rows can only be read in order or must be computed.
    """
    described: dict[str, Any] = {
        "name": source.name,
        "n_rows": source.n_rows,
        "n_features": source.n_features,
        "dtype": str(source.dtype),
        "sparse": source.is_sparse,
    }
    if source.origin.made_with:
        described["made_with"] = json.loads(json.dumps(dict(source.origin.made_with)))
    if source.origin.files:
        return {**described, "files": [file_fingerprint(path) for path in dict.fromkeys(source.origin.files)]}
    return {**described, "sample": None if source.access.streams or source.computed else _sampled_rows(source)}


def file_fingerprint(path: str) -> dict[str, Any]:
    """Describe a file, or a directory with its contents (URLs: `remote.fingerprint`). Raises SourceError.

    The result has ``path`` (absolute), ``bytes``, ``mtime_ns`` (the newest) and ``sample``: a hash of 16 blocks of 64
    KiB, head and tail among them; of a directory, a hash of the names, sizes and times of its files.
    """
    if is_remote(path):
        return remote.fingerprint(path)
    path, digest = local.opened(path), hashlib.blake2b(digest_size=16)
    if path.version is None:
        found = sorted(
            (os.path.relpath(entry, path), os.stat(entry))
            for folder, _, names in os.walk(path)
            for entry in (os.path.join(folder, name) for name in names)
        )
        listed = "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in found)
        size = sum(stat.st_size for _, stat in found)
        mtime_ns = max((stat.st_mtime_ns for _, stat in found), default=0)
        digest.update(os.fsencode(listed))
    else:
        size, mtime_ns = path.version.n_bytes, path.version.mtime_ns
        block = memoryview(bytearray(min(SAMPLE_BYTES, size)))
        with open_binary(path) as file:
            for start in sorted({(size - len(block)) * i // (SAMPLES - 1) for i in range(SAMPLES)}):
                digest.update(block[: read_fully(file, block, start)])
    return {"path": os.path.abspath(path), "bytes": size, "mtime_ns": mtime_ns, "sample": digest.hexdigest()}


def differences(then: Any, now: Any, where: str = "") -> list[str]:
    """List the differences of two JSON values, one text for each place: ``settings.n_clusters is 50, was 20``."""
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            each
            for key in dict.fromkeys([*then, *now])
            for each in differences(then.get(key), now.get(key), f"{where}.{key}" if where else str(key))
        ]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [each for i, (old, new) in pairs for each in differences(old, new, f"{where}[{i}]")]
    return [] if then == now else [f"{where} is {json.dumps(now)}, was {json.dumps(then)}"]


def _sampled_rows(source: RowSource) -> str:
    """Hash of the rows of some chunks, the first and the last among them."""
    chunks = source.chunks(SAMPLE_BYTES)
    digest = hashlib.blake2b(digest_size=16)
    for i in np.unique(np.linspace(0, len(chunks) - 1, SAMPLES).astype(int)):
        X = source.read(chunks[i]).X
        for array in (X,) if isinstance(X, np.ndarray) else (X.data, X.indices, X.indptr):
            digest.update(raw(array))
    return digest.hexdigest()
