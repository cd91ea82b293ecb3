"""Feature groups: where features come from, and the caches that keep their sources off the request path."""

from tailcut.features.feature_service import EntityKey, FeatureService, FeatureSet, FeatureStatistics
from tailcut.features.groups import GroupStatistics
from tailcut.features.sources.base import SourceContext

__all__ = ["EntityKey", "FeatureService", "FeatureSet", "FeatureStatistics", "GroupStatistics", "SourceContext"]
