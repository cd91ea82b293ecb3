"""``ladder.json``: everything that a ladder measured. Every table, page and picture is made from it alone."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailcut.common.statistics import Percentiles
from tailcut.errors import LoadTestError
from tailcut.system.atomic_files import write_file

SCHEMA = 1
"""Number of the file's form; a reader refuses another one."""

COMFORTABLE = "comfortable"
"""Name of the rate that is 70 % of the pilot's own capacity; other rates are named by their number."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One rung at one rate in one round. Latencies count from the intended send time; milliseconds."""

    round: int
    rate_name: str
    rate: float
    requests: int
    answered: int
    sheds: int
    errors: dict[str, int]
    offered_rps: float
    throughput_rps: float
    goodput_rps: float
    latency_ms: Percentiles | None
    lag_ms: Percentiles | None
    stages_ms: dict[str, float]
    """Mean per stage, from Server-Timing, so that the stages add up to ``total``."""
    cache: dict[str, int]
    cache_total_ms: dict[str, Percentiles] = {}
    """Per cache outcome, the server's own total."""
    cpu_s_per_1000: float | None
    warnings: tuple[str, ...] = ()
    raw: str = ""
    """File of the raw samples, beside ``ladder.json``."""

    @property
    def failed_share(self) -> float:
        """Share of requests without an answer: errors and sheds."""
        return 1 - self.answered / self.requests if self.requests else 0.0

    @property
    def saturated(self) -> bool:
        """Whether the rung could not keep up: more than 2 % unanswered, or answers falling behind by 3 %.

        Three requests in flight at the window's edges are no backlog: at low rates they alone are more than 3 %.
        """
        if not self.requests:
            return False
        edge_rps = 3 * self.offered_rps / self.requests
        return self.failed_share > 0.02 or self.throughput_rps < 0.97 * self.offered_rps - edge_rps


class CapacityPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a capacity search."""

    rate: float
    passed: bool
    p95_ms: float | None
    cause: str


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate within ``objectives``; 0 where no rate was."""

    objectives: str
    rate: float
    confirmed: bool
    limit: str
    complete: bool
    generator_limited: bool = False
    steps: tuple[CapacityPoint, ...] = ()


class RungParity(msgspec.Struct, frozen=True, kw_only=True):
    """A rung's answers beside the pilot's.

    Args:
        requests: that both were sent.
        differing: answered by both, with a value that differs beyond float32's rounding.
        status_differences: answered by one side only, or failed by the rung.
        max_difference: largest absolute difference of numbers; None where none differ.
        output: that it was seen in.
        left_out: outputs that were not compared.
        failed: why answers were not compared; empty where they were.
    """

    requests: int = 0
    differing: int = 0
    status_differences: int = 0
    max_difference: float | None = None
    output: str = ""
    left_out: tuple[str, ...] = ()
    failed: str = ""


class RungRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One rung: what it ran with and what was seen."""

    name: str
    pilot: bool = False
    added: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    variant: str = ""
    refused: str = ""
    failed: str = ""
    command: tuple[str, ...] = ()
    quality: dict[str, float] = {}
    quality_variant: str = ""
    measurements: tuple[Measurement, ...] = ()
    capacity: Capacity | None = None
    capacity_failed: str = ""
    """Why there is no capacity although the rung ran: its server failed in the search, after all rounds."""
    parity: RungParity | None = None
    """None where answers were not compared."""

    @property
    def ran(self) -> bool:
        """Whether there is anything to show for it."""
        return bool(self.measurements)


class PilotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How the comfortable rate came about."""

    unloaded_p95_ms: float | None
    meets_slo_unloaded: bool
    saturation_rate: float
    saturation_limit: str
    comfortable_rate: float
    note: str


class LadderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One climb of the ladder."""

    schema: int = SCHEMA
    created: str
    deployment: str
    command: str
    commit: str
    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, str]
    slo: str
    quality_budget: dict[str, float] = {}
    pilot: PilotFacts | None
    rate_names: tuple[str, ...]
    rungs: tuple[RungRecord, ...]
    notes: tuple[str, ...] = ()


def save_ladder(record: LadderRecord, path: Path) -> None:
    """Write ``ladder.json`` whole or not at all.

    Raises:
        LoadTestError: the file cannot be written.
    """
    write_file(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def load_ladder(path: Path) -> LadderRecord:
    """Read ``ladder.json``.

    Raises:
        LoadTestError: the file is missing, holds something else, or was written by another schema.
    """
    try:
        record = msgspec.json.decode(path.read_bytes(), type=LadderRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise LoadTestError(f"cannot read a ladder from {path}: {error}", hint="give a ladder.json") from error
    if record.schema != SCHEMA:
        raise LoadTestError(
            f"{path} has schema {record.schema}, but this tailcut reads {SCHEMA}", hint="run `tailcut ladder` again"
        )
    return record
