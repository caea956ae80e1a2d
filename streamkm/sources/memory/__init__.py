"""Rows in the memory of this process: arrays, memory maps, frames, iterables. Opens no files."""
