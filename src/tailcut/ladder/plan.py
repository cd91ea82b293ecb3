"""Which rungs run with which settings, and in which order: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailcut.common.slo import Objectives
from tailcut.errors import ManifestError
from tailcut.manifest import Rung
from tailcut.report.ladder.file import RungRecord

PILOT = "pilot"


def plan_rungs(
    rungs: Sequence[Rung],
    refusals: Mapping[str, str],
    quality: Mapping[str, dict[str, float]] | None = None,
    *,
    first_variant: str = "",
) -> list[RungRecord]:
    """Add the settings up, leaving out those of refused rungs: the rungs above keep what the rung below had.

    Args:
        rungs: as in the manifest.
        refusals: per variant, why it may not be served.
        quality: per variant, its metrics.
        first_variant: the variant whose quality a rung has before any rung names one.
    """
    planned: list[RungRecord] = []
    settings: tuple[str, ...] = ()
    variant = first_variant
    for rung in rungs:
        refused = refusals.get(rung.variant, "") if rung.variant else ""
        if not refused:
            settings = merge_settings(settings, rung.set)
            variant = rung.variant or variant
        own = rung.variant if refused else variant
        planned.append(
            RungRecord(
                name=rung.name,
                added=rung.set,
                settings=() if refused else settings,
                variant=own,
                quality=(quality or {}).get(own, {}),
                refused=refused,
            )
        )
    return planned


def pilot_rung(variant: str = "", quality: dict[str, float] | None = None) -> RungRecord:
    """Begin the pilot: it has the source variant's quality."""
    return RungRecord(name=PILOT, pilot=True, variant=variant, quality=quality or {})


def merge_settings(settings: tuple[str, ...], added: tuple[str, ...]) -> tuple[str, ...]:
    """Add settings; one for the same path replaces the earlier one."""
    merged = {text.partition("=")[0].strip(): text for text in (*settings, *added)}
    return tuple(merged.values())


def choose_rungs(planned: Sequence[RungRecord], only: Sequence[str]) -> list[RungRecord]:
    """Keep the rungs named in ``only``, all where it is empty. Settings stay those of the whole ladder.

    Raises:
        ManifestError: a name that no rung has.
    """
    names = [rung.name for rung in planned]
    for name in only:
        if name not in names and name != PILOT:
            raise ManifestError(f"--only-rungs: there is no rung {name!r}", hint=f"rungs: {PILOT}, {', '.join(names)}")
    return [rung for rung in planned if not only or rung.name in only]


def round_order(count: int, round_index: int, rounds: int) -> list[int]:
    """Order the rungs of a round: rotated, so that no rung always runs first or beside the same hour of the machine."""
    if count == 0:
        return []
    start = round_index * max(1, count // max(1, rounds)) % count
    return [(start + place) % count for place in range(count)]


def harder_than_errors(slo: Objectives) -> tuple[str, ...]:
    """Say which percentiles allow fewer failures than the errors objective does: they decide, not it."""
    if slo.errors is None:
        return ()
    harder = [one for one in slo.latency if slo.errors - (1 - one.share) > 1e-9]
    return tuple(
        f"A request without an answer exceeds every limit: {one.name} allows {100 * (1 - one.share):.3g} % of them, so "
        f"the {100 * slo.errors:.3g} % of the errors objective are never reached."
        for one in harder
    )
