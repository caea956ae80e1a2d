"""Arrays that kernels work in.

Numba compiles `numpy.empty` anew for every kind of shape and dtype, and in every process: a tenth of what a first fit
compiled. Here it is a plain Python function (what it means, and what runs under ``NUMBA_DISABLE_JIT=1``) with an LLVM
form that compiled callers get instead.
"""

from __future__ import annotations

import numpy as np
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import _empty_nd_impl

from streamkm.kernels.intrinsics.forms import compiled_form


def unfilled(shape, dtype):
    """A C-contiguous array whose entries hold anything.

    Parameters
    ----------
    shape : int64 or tuple of int64
    dtype : dtype
        As `np.float64`, or that of an array.

    Returns
    -------
    ndarray
    """
    return np.empty(shape, dtype)


@compiled_form(unfilled)
def _unfilled(typing, shape, dtype):
    kind = dtype.instance_type if isinstance(dtype, types.NumberClass) else dtype.dtype
    n_dimensions = len(shape) if isinstance(shape, types.BaseTuple) else 1
    array = types.Array(kind, n_dimensions, "C")
    sizes = types.UniTuple(types.int64, n_dimensions) if isinstance(shape, types.BaseTuple) else types.int64

    def codegen(context, builder, signature, args):
        each = cgutils.unpack_tuple(builder, args[0]) if sizes is not types.int64 else [args[0]]
        return _empty_nd_impl(context, builder, array, each)._getvalue()

    return array(sizes, dtype), codegen
