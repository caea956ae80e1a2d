"""Parts of other kernels: products and sums in a fixed order, vectors, hashes, cache hints, LLVM code."""
