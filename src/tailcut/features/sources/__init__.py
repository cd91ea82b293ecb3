"""Where feature values come from: PostgreSQL, SQLite, Python functions."""

from tailcut.features.sources.base import Answer, Key, Source, SourceContext, SourceError

__all__ = ["Answer", "Key", "Source", "SourceContext", "SourceError"]
