"""k-means on rows in memory or spilled to disk: seeding, Lloyd, split and merge, coresets, the row sample.

Sketched rows, weights and centers come in; `model` is the result of a fit. Nothing here knows sources, result files or
plans. Only passes read held blocks (`held_rows`, `engine.passes`). Searches call `Executor.each` themselves: their rows
are one array of this process, so threads only share the work.
"""
