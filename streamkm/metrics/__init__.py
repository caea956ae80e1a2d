"""How good clusters are: agreement with known classes, and scores of their own. Labels may come in chunks.

Rows and labels come in, numbers go out; nothing here plans, fits or writes.
"""

from streamkm.cluster.profile import feature_deviations
from streamkm.metrics.agreement import (
    Contingency,
    adjusted_rand,
    clustering_accuracy,
    contingency,
    normalized_mutual_info,
    objective_ratio,
    pairwise_f_beta,
)
from streamkm.metrics.cluster_summary import ClusterSummary
from streamkm.metrics.clusters import describe_clusters
from streamkm.metrics.internal import Spread, calinski_harabasz, davies_bouldin, objective, silhouette, spread

__all__ = [
    "ClusterSummary",
    "Contingency",
    "Spread",
    "adjusted_rand",
    "calinski_harabasz",
    "clustering_accuracy",
    "contingency",
    "davies_bouldin",
    "describe_clusters",
    "feature_deviations",
    "normalized_mutual_info",
    "objective",
    "objective_ratio",
    "pairwise_f_beta",
    "silhouette",
    "spread",
]
