"""Near-duplicates: rows are clustered, then compared within clusters and across borders; one row of each pair stays.

Clusters come from the estimators, as for a user. Nothing here searches for centers.
"""

from streamkm.deduplication.search import Deduplicated, dedupe

__all__ = ["Deduplicated", "dedupe"]
