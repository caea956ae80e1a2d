"""Rows of this process: arrays, memory maps, frames, iterables, labelled arrays. No file is opened here."""
