"""Near-duplicates: clusters, then pairs within each; which rows are kept.

What compares rows of one cluster, and what gathers them, comes in; how clusters are found never does. Uses the
estimators as a user would.
"""

from streamkm.deduplication.result import Deduplicated
from streamkm.deduplication.search import dedupe

__all__ = ["Deduplicated", "dedupe"]
