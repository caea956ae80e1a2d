"""The stateless hash of (seed, feature) that every sketch shares.

Bucket and sign of feature j are functions of (seed, j) by two rounds of splitmix64's finalizer, so d need not be known,
nothing of size d is held, and later features sketch consistently. The values are a file format: tests freeze them.
"""

from __future__ import annotations

import numpy as np

from streamkm.kernels.compiling import kernel

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_ONE = np.uint64(1)


@kernel(inline="always")
def mix(seed, counter):
    """Mix a counter with a seed (uint64 both) into 64 well-distributed bits (uint64).

    Output `counter` of the splitmix64 generator that starts at `seed` (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014, figure 17), counted from 0.
    """
    z = seed + (counter + _ONE) * _GAMMA
    z = (z ^ (z >> _S30)) * _MIX_1
    z = (z ^ (z >> _S27)) * _MIX_2
    return z ^ (z >> _S31)


@kernel
def stream_seed(seed, stream):
    """Seed (uint64) of a further stream of hashes of a seed; stream 0 is the seed's own.

    Features are below 2^63, so the counters from 2^64 - 1 downward are free for streams (uint64).
    """
    return seed if stream == 0 else mix(seed, ~stream)


@kernel(inline="always")
def bucket_of(bits, n_components):
    """Bucket (uint64) below `n_components`, itself below 2^32, from the upper 32 of 64 mixed bits (uint64).

    By multiply-shift; the bias is below n_components / 2^32.
    """
    return ((bits >> _S32) * n_components) >> _S32


@kernel
def hash_features(seed, start, stop, n_components, buckets, signs):
    """Fill the buckets and signs of features start..stop-1.

    Parameters
    ----------
    seed : uint64
    start, stop : int64
    n_components : uint64
    buckets : int32 (stop - start,); written
    signs : float32 (stop - start,); written: +1 or -1
    """
    for j in range(stop - start):
        bits = mix(seed, np.uint64(start + j))
        buckets[j] = bucket_of(bits, n_components)
        signs[j] = np.float32(1.0) if (bits & _ONE) else np.float32(-1.0)


@kernel
def hash_integers(seed, row_ids, out):
    """Fill a uniform 63-bit priority for each place; the rows of lowest priority make the row sample.

    Parameters
    ----------
    seed : uint64
    row_ids : int64 (n,)
    out : int64 (n,); written
    """
    for i in range(row_ids.shape[0]):
        out[i] = np.int64(mix(seed, np.uint64(row_ids[i])) >> _ONE)
