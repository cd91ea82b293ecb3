"""Feature groups: where features come from, and the caches that keep their sources off the request path."""

from tailcut.features.feature_service import EntityKey, FeatureService, FeatureSet
from tailcut.features.sources.base import SourceContext
from tailcut.features.statistics import FeatureStatistics, GroupStatistics

__all__ = ["EntityKey", "FeatureService", "FeatureSet", "FeatureStatistics", "GroupStatistics", "SourceContext"]
