"""k-means on blocks in memory: seeding, Lloyd, split and merge, coresets, the row sample, blocks that go to disk.

Sketched rows, weights and centers come in; sources, files of results and plans do not. `model` is what a fit leaves.
"""
