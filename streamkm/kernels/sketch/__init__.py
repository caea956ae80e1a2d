"""Loops of the sketches: hashes of stored entries, Hadamard transforms, signs, subspace iteration, kernel values."""
