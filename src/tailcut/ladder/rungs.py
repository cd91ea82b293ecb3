"""A rung while it is being climbed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailcut.ladder.plan import PlannedRung
from tailcut.report.ladder.file import Capacity, Measurement, RungParity, RungRecord

PILOT = "pilot"


@dataclass
class RungRun:
    """What one rung runs with, and what was seen so far. Owned by the climb."""

    name: str
    pilot: bool
    added: tuple[str, ...]
    settings: tuple[str, ...]
    variant: str
    quality: Mapping[str, float]
    refused: str = ""
    failed: str = ""
    command: tuple[str, ...] = ()
    measurements: list[Measurement] = field(default_factory=list)
    capacity: Capacity | None = None
    capacity_failed: str = ""
    parity: RungParity | None = None

    @staticmethod
    def of_plan(rung: PlannedRung, quality: Mapping[str, Mapping[str, float]]) -> RungRun:
        """Begin a rung that is served by tailcut."""
        return RungRun(
            name=rung.name,
            pilot=False,
            added=rung.added,
            settings=rung.settings,
            variant=rung.variant,
            quality=quality.get(rung.variant, {}),
            refused=rung.refused,
        )

    @staticmethod
    def of_pilot(source: str, quality: Mapping[str, Mapping[str, float]]) -> RungRun:
        """Begin the pilot: it has the source model's quality."""
        return RungRun(name=PILOT, pilot=True, added=(), settings=(), variant=source, quality=quality.get(source, {}))

    def record(self) -> RungRecord:
        """Hand out what was seen."""
        return RungRecord(
            name=self.name,
            pilot=self.pilot,
            added=self.added,
            settings=self.settings,
            variant=self.variant,
            refused=self.refused,
            failed=self.failed,
            command=self.command,
            quality=dict(self.quality),
            quality_variant=self.variant,
            measurements=tuple(self.measurements),
            capacity=self.capacity,
            capacity_failed=self.capacity_failed,
            parity=self.parity,
        )
