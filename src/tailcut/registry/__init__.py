"""Artifacts and their evidence: content-addressed, checked before they are opened, tied to the hardware they suit."""

from tailcut.registry.collect import Collected
from tailcut.registry.diff import Change, Diff
from tailcut.registry.evidence import VariantEvidence, VersionEvidence
from tailcut.registry.records import (
    Move,
    NewVariant,
    Promotion,
    State,
    Variant,
    VariantRecord,
    Version,
    state_of,
)
from tailcut.registry.store import Registry
from tailcut.system.atomic_files import digest
from tailcut.system.machine import read_machine

__all__ = [
    "Change",
    "Collected",
    "Diff",
    "Move",
    "NewVariant",
    "Promotion",
    "Registry",
    "State",
    "Variant",
    "VariantEvidence",
    "VariantRecord",
    "Version",
    "VersionEvidence",
    "digest",
    "read_machine",
    "state_of",
]
