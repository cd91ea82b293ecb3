"""Artifacts and their evidence: content-addressed, written atomically, hash-checked when loaded."""

from tailcut.registry.records import NewVariant, Promotion, Variant, VariantRecord, Version
from tailcut.registry.store import Registry

__all__ = ["NewVariant", "Promotion", "Registry", "Variant", "VariantRecord", "Version"]
