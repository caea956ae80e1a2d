"""Machine words taken from text: unaligned loads, byte classes as bit masks, bit counts.

Numba has no names for these instructions: they are LLVM forms (see `streamkm.kernels.intrinsics.forms`). Callers keep
`WINDOW` readable bytes behind every position they pass. Words are little-endian.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.np.arrayobj import make_array

from streamkm.kernels.compiling import inner_kernel
from streamkm.kernels.intrinsics.forms import compiled_form, spread

WINDOW = 32
"""Bytes that one mask covers, and the slack that every buffer needs behind its text."""

_LOW_NIBBLES = np.uint64(0x0F0F0F0F0F0F0F0F)
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_EVEN_PAIRS = np.uint64(0x0000FFFF0000FFFF)
_TENS = np.uint64(10 * 2**8 + 1)
_HUNDREDS = np.uint64(100 * 2**16 + 1)
_TEN_THOUSANDS = np.uint64(10_000 * 2**32 + 1)
_8, _16, _32, _64 = np.uint64(8), np.uint64(16), np.uint64(32), np.uint64(64)
_LOW_HALF = np.uint64(0xFFFFFFFF)


def text_of(buf):
    """Bare pointer to the bytes of an array: no reference counting, no check for negative positions.

    The caller keeps the array alive.
    """
    return buf


def load_word(buf, at):
    """Load eight bytes, ``at`` to ``at + 7``, of a uint8 array as one uint64, the first byte lowest."""
    return np.uint64(int.from_bytes(bytes(buf[at : at + 8]), "little"))


def bytes_outside(buf, at, low, span):
    """Mark the bytes of a window that are not in ``low .. low + span`` (int64), as bits of a uint64.

    Bit i is set if byte ``at + i`` of the uint8 array is outside; `WINDOW` bytes are read, and as many lowest bits
    used.
    """
    return np.uint64(sum(1 << i for i, c in enumerate(buf[at : at + WINDOW].tolist()) if not low <= c <= low + span))


def count_bits(word):
    """Count the bits of a uint64 that are 1."""
    return int(word).bit_count()


def trailing_zeros(word):
    """Count the zero bits below the lowest set bit of a uint64; 64 for 0."""
    return (int(word) & -int(word)).bit_length() - 1 if word else 64


def leading_zeros(word):
    """Count the zero bits above the highest set bit of a uint64; 64 for 0."""
    return 64 - int(word).bit_length()


def _pointer(context, builder, array_type, array, at):
    if isinstance(array_type, types.Array):
        array = make_array(array_type)(context, builder, array).data
    return builder.gep(array, [at])


@compiled_form(text_of)
def _text_of(typingctx, buf):
    def codegen(context, builder, signature, args):
        return make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(types.uint8)(buf), codegen


@compiled_form(load_word)
def _load_word(typingctx, buf, at):
    def codegen(context, builder, signature, args):
        word = _pointer(context, builder, signature.args[0], *args)
        return builder.load(builder.bitcast(word, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(buf, types.int64), codegen


@compiled_form(bytes_outside)
def _bytes_outside(typingctx, buf, at, low, span):
    def codegen(context, builder, signature, args):
        vector = ir.VectorType(ir.IntType(8), WINDOW)
        pointer = _pointer(context, builder, signature.args[0], *args[:2])
        text = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
        low8, span8 = (spread(builder, builder.trunc(value, ir.IntType(8)), vector) for value in args[2:])
        outside = builder.icmp_unsigned(">", builder.sub(text, low8), span8)
        return builder.zext(builder.bitcast(outside, ir.IntType(WINDOW)), ir.IntType(64))

    return types.uint64(buf, types.int64, types.int64, types.int64), codegen


def _count_bits(meaning, name, *more):
    @compiled_form(meaning)
    def count(typingctx, word):
        def codegen(context, builder, signature, args):
            return getattr(builder, name)(args[0], *more)

        return types.int64(types.uint64), codegen


_DEFINED = ir.Constant(ir.IntType(1), 0)  # for 0, too
_count_bits(count_bits, "ctpop")
_count_bits(trailing_zeros, "cttz", _DEFINED)
_count_bits(leading_zeros, "ctlz", _DEFINED)


@inner_kernel
def first_digits(word, n_digits):
    """Value (uint64) of the first `n_digits` characters, 1 to 8, all decimal digits, of a word as from `load_word`.

    Pairs, fours and eights of digits are joined by three multiplications, after the other characters are shifted out.
    """
    digits = (word << (_64 - (np.uint64(n_digits) << np.uint64(3)))) & _LOW_NIBBLES
    pairs = ((digits * _TENS) >> _8) & _EVEN_BYTES
    fours = ((pairs * _HUNDREDS) >> _16) & _EVEN_PAIRS
    return (fours * _TEN_THOUSANDS) >> _32


@inner_kernel
def multiply_wide(a, b):
    """Multiply two uint64 in full: (high, low), uint64, with the product ``high * 2**64 + low``."""
    a_high, a_low, b_high, b_low = a >> _32, a & _LOW_HALF, b >> _32, b & _LOW_HALF
    low_low, low_high, high_low = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (low_low >> _32) + (low_high & _LOW_HALF) + (high_low & _LOW_HALF)
    high = a_high * b_high + (low_high >> _32) + (high_low >> _32) + (middle >> _32)
    return high, (middle << _32) | (low_low & _LOW_HALF)
