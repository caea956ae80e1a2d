"""Near-duplicates: clusters of the estimators, and comparisons within and across them that keep a row of each pair."""

from streamkm.deduplication.search import Deduplicated, dedupe

__all__ = ["Deduplicated", "dedupe"]
