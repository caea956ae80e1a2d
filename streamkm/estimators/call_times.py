"""Times at which rows came, for weights that fall with time: below they are microseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from streamkm.core.exceptions import InvalidParameterError
from streamkm.estimators.validation import as_number
from streamkm.fitting.streams.stream import Stream

MICROSECOND = timedelta(microseconds=1)


def check_half_life(half_life: Any) -> None:
    """Refuse what is neither a positive number of rows nor a positive timedelta nor None."""
    if half_life is None or (isinstance(half_life, timedelta) and half_life > timedelta(0)):
        return
    if isinstance(half_life, timedelta | np.timedelta64) or not as_number(half_life) > 0:
        raise InvalidParameterError(
            f"half_life={half_life!r}; needed: a positive number of rows, a positive datetime.timedelta, or None"
        )


def half_life_rows(half_life: Any) -> float:
    """Rows after which a row counts half; infinite where weights do not fall with the number of later rows."""
    return np.inf if half_life is None or isinstance(half_life, timedelta) else float(half_life)


def call_time(half_life: Any, time: Any, last: int | None) -> int | None:
    """When the rows of a call came, in microseconds since 1970; None where weights do not fall with time.

    Raises InvalidParameterError if it is missing, of no use, no time, or before that of the last call.
    """
    if not isinstance(half_life, timedelta):
        if time is not None:
            raise InvalidParameterError(
                f"time={time!r} with half_life={half_life!r}; leave time out, or pass half_life as a "
                "datetime.timedelta, after which rows count half"
            )
        return None
    if time is None:
        raise InvalidParameterError(
            f"half_life={half_life!r} needs the time of the rows of each call; pass time=datetime.datetime(...)"
        )
    given = time
    if isinstance(given, datetime):
        given = np.datetime64(given if given.tzinfo is None else given.astimezone(UTC).replace(tzinfo=None), "us")
    if not isinstance(given, np.datetime64) or np.isnat(given):
        raise InvalidParameterError(f"time={time!r}; needed: a datetime.datetime or numpy.datetime64")
    found = int(given.astype("datetime64[us]").astype(np.int64))
    if last is not None and found < last:
        raise InvalidParameterError(
            f"time={time!r} is before {np.datetime64(last, 'us')}, the time of the last rows; give rows in the order "
            "of their times, or these rows with that time"
        )
    return found


def as_of(stream: Stream, time: int | None, half_life: Any) -> Stream:
    """The stream with weights as of a time; a stream that knows no time is as of this one."""
    if time is None:
        return stream
    elapsed = 0 if stream.time is None else time - stream.time
    aged = stream.faded(float(np.exp2(-elapsed / (half_life / MICROSECOND))))
    aged.time = time
    return aged
