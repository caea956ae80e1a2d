"""Telling the processor which memory comes next, where it cannot guess.

Numba has no name for that, so `prefetch` is a plain Python function that does nothing (and runs under
``NUMBA_DISABLE_JIT=1``) with an LLVM form that compiled callers get instead.
"""

from __future__ import annotations

import numba as nb
from llvmlite import ir
from numba.core import cgutils
from numba.np.arrayobj import make_array

from streamkm.kernels.intrinsics.forms import compiled_form

LINE_BYTES = 64


def prefetch(array, position):
    """Ask for the cache line of an entry, to be read soon; never fails, wherever it points.

    Parameters
    ----------
    array : ndarray (n,), C-contiguous
    position : int64
    """


def prefetched(builder, entry):
    """Have an LLVM builder ask for the cache line of a pointer."""
    byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(entry, byte), read, keep, data])


@compiled_form(prefetch)
def _prefetch(typingctx, array, position):
    def codegen(context, builder, signature, args):
        array_ = make_array(signature.args[0])(context, builder, args[0])
        entry = builder.gep(array_.data, [context.cast(builder, args[1], signature.args[1], nb.int64)])
        prefetched(builder, entry)
        return context.get_dummy_value()

    return nb.void(array, position), codegen
