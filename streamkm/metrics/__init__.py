"""Silhouettes, the table of clusters, and drift: numbers from rows and labels; nothing here plans, fits or writes."""

from streamkm.cluster.profile import feature_deviations
from streamkm.metrics.cluster_details import describe_clusters
from streamkm.metrics.cluster_summary import ClusterSummary

__all__ = ["ClusterSummary", "describe_clusters", "feature_deviations"]
