"""svmlight text to CSR arrays, line by line, in one pass over the bytes.

Handles lines, order of indices, and selection; `svmlight_tokens` reads tokens. Opens no files, makes no messages.
Numba's cache follows a function's own file alone: after an edit of `words`, `decimals` or `svmlight_tokens`, empty the
folder ``__pycache__`` here, or the old ones run.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel
from streamkm.kernels.text.machine_words import WINDOW, text_of
from streamkm.kernels.text.svmlight_tokens import (
    BAD_CALL,
    HASH,
    LINE_FEED,
    OK,
    SPACE,
    TOO_WIDE,
    UNSORTED,
    ZERO_INDEX,
    is_blank,
    read_feature,
    read_plain_feature,
    skip_target,
)

# the fields of a job
START, LIMIT, END, BASE, FIRST_INDEX, LARGEST_INDEX = range(6)
ROWS, NNZ, FIXUPS, WIDEST, STATUS, TOKEN = range(6, 12)
JOB_FIELDS = 12

# ``1:2`` and a blank; ``1`` and a line feed. What a text may hold at most.
LEAST_VALUE_BYTES, LEAST_ROW_BYTES = 4, 2


@kernel
def parse_rows(buf, job, data, indices, indptr, row_ids, fixups):
    """Append the rows of the lines that start in a range of a text to CSR arrays.

    Parameters
    ----------
    buf : uint8 ndarray; the text, with `WINDOW` readable bytes behind `END`
    job : int64 ndarray of shape (JOB_FIELDS,), mutated
        In: `START`, a line's first byte; `LIMIT`, where no further line is begun; `END`, behind a line feed; `BASE`,
        the place of byte 0; `FIRST_INDEX`, 0 or 1; `LARGEST_INDEX` as written in the text; in and out: `ROWS` and
        `NNZ` filled so far, `WIDEST`, the largest index plus one counted from `FIRST_INDEX`. Out: `START`, the first
        byte not parsed; `FIXUPS`, values left to the caller, possibly more than `fixups` has room for, and then this
        call must be repeated with more; `STATUS`, and unless it is `OK`, `TOKEN`, the byte where the trouble
        begins. Rows and values before the trouble are good.
    data : float32 or float64 ndarray of shape (capacity,), mutated
        Room for a value for each `LEAST_VALUE_BYTES` of the text.
    indices : int32 or int64 ndarray of shape (capacity,), mutated
    indptr : ndarray of shape (row_capacity + 1,), mutated
        Of the type of `indices`; entry ``job[ROWS]`` is set by the caller. Room for a row for
        each `LEAST_ROW_BYTES` of the text.
    row_ids : int64 ndarray of shape (row_capacity,), mutated
    fixups : int64 ndarray of shape (n, 3), mutated
        Values to be found by other means: position in `data`, first byte, and behind the last byte.

    Notes
    -----
    Linear in the bytes. A value of a row is stored before the row is known to be good; only `indptr` commits it.
    """
    at, end, limit = job[START], job[END], job[LIMIT]
    first_index, largest_index = job[FIRST_INDEX], job[LARGEST_INDEX]
    rows, nnz, widest = job[ROWS], job[NNZ], job[WIDEST]
    n_fixups, status, token = 0, OK, at
    most_nnz, most_rows = nnz + (end - at) // LEAST_VALUE_BYTES, rows + (end - at) // LEAST_ROW_BYTES
    if (
        at < 0
        or at > end
        or end + WINDOW > buf.shape[0]
        or (end > at and buf[end - 1] != LINE_FEED)
        or most_nnz > min(data.shape[0], indices.shape[0])
        or most_rows > min(row_ids.shape[0], indptr.shape[0] - 1)
    ):
        job[STATUS] = BAD_CALL
        return
    limit = min(limit, end)
    text = text_of(buf)
    while at < limit:
        line = at
        while is_blank(text[at]):
            at += 1
        if text[at] != LINE_FEED and text[at] != HASH:
            status, at = skip_target(text, at)
            token = at
            if status != OK:
                break
            at += np.int64(text[at] == SPACE)
            last = first_index - 1
            while True:
                token = at
                stop, index, value = read_plain_feature(text, at)
                if stop >= 0:
                    # behind its blank; so the next feature need not wait until that byte has been looked at
                    at = stop + 1
                else:
                    while is_blank(text[at]):
                        at += 1
                    if text[at] == LINE_FEED or text[at] == HASH:
                        break
                    token = at
                    status, stop, index, value, value_at = read_feature(text, at)
                    if status != OK:
                        break
                    if value_at >= 0:
                        if n_fixups < fixups.shape[0]:
                            fixups[n_fixups, 0] = nnz
                            fixups[n_fixups, 1] = value_at
                            fixups[n_fixups, 2] = stop
                        n_fixups += 1
                    at = stop
                if index <= last:
                    status = ZERO_INDEX if index < first_index else UNSORTED
                    break
                if index > largest_index:
                    status = TOO_WIDE
                    break
                last = index
                data[np.uint64(nnz)] = value
                indices[np.uint64(nnz)] = index - first_index
                nnz += 1
                if text[stop] == LINE_FEED:
                    at = stop
                    break
            if status != OK:
                break
            row_ids[rows] = job[BASE] + line
            rows += 1
            indptr[rows] = nnz
            widest = max(widest, last - first_index + 1)
        while text[at] != LINE_FEED:
            at += 1
        at += 1
    job[START], job[ROWS], job[NNZ], job[WIDEST] = at, rows, nnz, widest
    job[FIXUPS], job[STATUS], job[TOKEN] = n_fixups, status, token
