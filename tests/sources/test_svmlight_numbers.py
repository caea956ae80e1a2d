"""Numbers in svmlight text: every double has the bits that Python's float gives."""

from __future__ import annotations

import decimal
import struct

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from streamkm.kernels.text.decimals import UNDECIDED, read_decimal
from streamkm.kernels.text.words import WINDOW
from streamkm.sources.svmlight_text import SvmlightSource
from tests.tables import cases


def read_values(directory, text: bytes, **options) -> np.ndarray:
    """Stored values of a file with this text."""
    path = directory / "x.svm"
    path.write_bytes(text)
    return np.concatenate([rows.X.data for rows in SvmlightSource([path], **options).stream(1 << 20)])


HARD = """0 -0 +0 0.0 1 1. .1 -.5 +3 1e5 1E+5 1e-5 1e22 1e23 9007199254740991 9007199254740992 9007199254740993
9007199254740995 9007199254740992.5 9007199254740993.0000000000000000000000001 0.1 0.3 123456789012345678
1234567890123456789 12345678901234567890 18446744073709551615 18446744073709551616 4.9e-324 2.4703282292062327e-324
2.4703282292062328e-324 2.2250738585072011e-308 2.2250738585072014e-308 1.7976931348623157e308 1.7976931348623158e308
1.7976931348623159e308 1e308 1e309 -1e309 1e-323 1e-324 1e99999999999999999999 1e-99999999999999999999 0e999999999999
0.000000000000000000000000000000000000000001e42 00000000000000000000000000000000000000001.5 nan -nan NaN inf -inf +inf
Infinity -INFINITY 8.5 0.5 2.5 1.00000000000000011102230246251565404 1.00000000000000011102230246251565405
1.00000000000000011102230246251565403 6631236846766476e-316 3.2378839133029012895883524125015321748630e-319
100000000000000016777215 100000000000000016777216 99999999.99999999 12345678.12345678 1.12345678901234567
"""
LONG = ["1" * 100, "0." + "3" * 500, "1" * 400, "0." + "0" * 400 + "1", "5" * 30 + "e-330"]


def check_value(text: str) -> None:
    """The kernel's value has the bits of Python's float."""
    buf = np.frombuffer(bytearray(text.encode() + b"\n" + bytes(WINDOW)), np.uint8)
    with np.errstate(over="ignore"):
        status, end, value = read_decimal(buf, 0)
    assert end == len(text)
    if status != UNDECIDED:
        assert struct.pack("d", value) == struct.pack("d", float(text)), text


@cases("text", HARD.split() + LONG)
def test_hard_numbers(text, tmp_path):
    check_value(text)
    values = read_values(tmp_path, f"1 1:{text} 2:{text}\n{text} 3:{text}".encode())
    assert values.tobytes() == struct.pack("d", float(text)) * 3


@given(st.floats(), st.sampled_from(["%r", "%.20e", "%.3g", "%.17g", "%.25g", "%.1f", "%.16f"]))
def test_any_double(x, numbers):
    check_value(numbers % x)


@given(st.floats(min_value=0, allow_infinity=False), st.integers(-1, 1), st.integers(0, 30))
def test_half_way_between_two_doubles(x, side, more_digits):
    """Exactly half way, and one digit far behind that above or below it."""
    with np.errstate(over="ignore"):
        above = np.nextafter(x, np.inf)
    assume(np.isfinite(above))
    with decimal.localcontext() as context:
        context.prec = 1200
        middle = (decimal.Decimal(float(x)) + decimal.Decimal(float(above))) / 2
        digits = format(middle.normalize(), "e")
        mantissa, exponent = digits.split("e")
        if side:
            step = decimal.Decimal(side).scaleb(-len(mantissa) - more_digits)
            mantissa = format(decimal.Decimal(mantissa) + step, "f")
    check_value(f"{mantissa}e{exponent}")


@given(st.integers(0, 2**64 - 1), st.integers(-350, 320))
def test_any_significand_and_power(significand, power):
    check_value(f"{significand}e{power}")


@given(st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=20))
def test_float32_is_the_rounded_double(tmp_path_factory, values):
    text = "1 " + " ".join(
        f"{j + 1}:{x!r}1" if "e" not in repr(x) and "inf" not in repr(x) else f"{j + 1}:{x!r}"
        for j, x in enumerate(values)
    )
    found = read_values(tmp_path_factory.mktemp("f"), text.encode(), dtype=np.float32)
    with np.errstate(over="ignore"):
        expected = np.array([float(cell.split(":")[1]) for cell in text.split()[1:]]).astype(np.float32)
    np.testing.assert_array_equal(found, expected)
