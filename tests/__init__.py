"""Tests of streamkm; helpers are imported as `tests.naive`."""
