"""How often a confirmation split has been used: each set of artifacts that it judged is one more look at it.

A split that is asked again and again about variants that were chosen by its earlier answers no longer is an unseen
judge (Dwork et al. 2015, "The reusable holdout", Science 349). The gate corrects for the number of looks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

MOST_SETS = 1000
"""Sets of artifacts that are told apart per split; older ones are only counted."""

MOST_SPLITS = 1000
"""Splits that are remembered; the one that was used longest ago is forgotten first."""


class Uses(msgspec.Struct, frozen=True, kw_only=True):
    """Of one split: the sets that it judged, oldest first, and how many more there were before."""

    sets: tuple[str, ...] = ()
    older: int = 0


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model: uses per split, by the split's SHA-256, the split that was used last at the end."""

    splits: dict[str, Uses] = {}


def count_other(ledger: Ledger, split_sha256: str, artifacts: Iterable[str]) -> int:
    """Count the different sets of artifacts, other than this one, that the split has judged."""
    uses = ledger.splits.get(split_sha256, Uses())
    return uses.older + len(set(uses.sets) - {_set_of(artifacts)})


def recorded(ledger: Ledger, split_sha256: str, artifacts: Iterable[str]) -> Ledger:
    """Note that the split has judged this set of artifacts; judging the same set again is no further look."""
    splits = dict(ledger.splits)
    uses = splits.pop(split_sha256, Uses())
    mine = _set_of(artifacts)
    if mine not in uses.sets:
        sets = (*uses.sets, mine)
        dropped = max(0, len(sets) - MOST_SETS)
        uses = replace(uses, sets=sets[dropped:], older=uses.older + dropped)
    splits[split_sha256] = uses
    for oldest in list(splits)[: max(0, len(splits) - MOST_SPLITS)]:
        del splits[oldest]
    return Ledger(splits=splits)


def _set_of(artifacts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(set(artifacts))).encode()).hexdigest()[:16]
