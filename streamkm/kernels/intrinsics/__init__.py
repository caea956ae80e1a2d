"""What other kernels are made of: products and sums in a fixed order, vectors, hashes, cache hints; LLVM code too."""
