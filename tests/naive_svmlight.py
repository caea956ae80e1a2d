"""A second svmlight reader in plain loops: lines, split, float. What the fast one gives must be the same."""

from __future__ import annotations

import re

import numpy as np

NUMBER = re.compile(rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE)
FEATURE = re.compile(rb"\+?(\d+):(.*)", re.DOTALL)


SMALL = (
    b"# a comment\n\n1 qid:3 1:0.5 3:-2 7:1e-5 # more\n-1,2\t2:.5  3:5.\t\n  4:1\n3\n\r\n"
    b"2.5 1:+3 9:nan 10:-inf 12:INFINITY\r\n   # 1:2\n1 1:1e5 2:1.5e-07 3:-2.5E+300 4:1e0005 5:-1e-400 6:1\n"
    b"1 1:0.12345678901234567 2:12345678.12345678 3:1234567890123456789012345678901234567890e-20#x\n0 5:-0"
)
"""Whatever the grammar allows, in a few lines."""


class MalformedError(Exception):
    """With the line's first byte."""


def number(token: bytes) -> float:
    if not NUMBER.fullmatch(token):
        raise MalformedError
    return float(token)


def row_of(line: bytes, first_index: int) -> list[tuple[int, float]] | None:
    """Columns and values of a line; None if it is no row."""
    tokens = line.split(b"#")[0].split()
    if not tokens:
        return None
    if b":" not in tokens[0]:
        for target in tokens.pop(0).split(b","):
            number(target)
    if tokens and tokens[0].startswith(b"qid:") and not re.fullmatch(rb"qid:[+-]?\d+", tokens.pop(0)):
        raise MalformedError
    row: list[tuple[int, float]] = []
    for token in tokens:
        match = FEATURE.fullmatch(token)
        if not match:
            raise MalformedError
        column = int(match[1]) - first_index
        if column < (row[-1][0] + 1 if row else 0) or int(match[1]) > 2**63 - 1 or column + 1 > 2**63 - 1:
            raise MalformedError
        row.append((column, number(match[2])))
    return row


def rows_of(text: bytes, first_index: int, part: int = 0) -> list[tuple[int, list[tuple[int, float]]]]:
    """Place and row for each row of a file; MalformedError has the rows in front of the trouble as its argument."""
    found, offset = [], 0
    if text.startswith(b"\xef\xbb\xbf"):
        text = b"   " + text[3:]
    for line in text.split(b"\n"):
        try:
            row = row_of(line, first_index)
        except MalformedError:
            raise MalformedError(found) from None
        if row is not None:
            found.append((part << 44 | offset, row))
        offset += len(line) + 1
    return found


def as_lists(X, places) -> list[tuple[int, list[tuple[int, float]]]]:
    """Rows of a csr_array in the form of `rows_of`."""
    return [
        (int(place), list(zip(X.indices[a:b].tolist(), X.data[a:b].tolist(), strict=True)))
        for place, a, b in zip(places, X.indptr[:-1], X.indptr[1:], strict=True)
    ]


def bits(rows) -> list:
    """Rows with their values as bits, so that -0.0 is not 0.0 and NaN is NaN."""
    return [(place, [(j, np.float64(x).view(np.int64).item()) for j, x in row]) for place, row in rows]
