"""A latency objective: how it is written, and whether a run met it."""

from __future__ import annotations

import re
from math import ceil

import msgspec

from tailcut.common.units import UnitError, parse_duration, parse_share
from tailcut.errors import LoadTestError

_NUMBER = re.compile(r"^\d+(?:\.\d+)?$", re.ASCII)
_PERCENTILE = re.compile(r"^p(\d{1,2}(?:\.\d+)?)$")


CLIENT_STATUSES = frozenset({400, 404, 413, 422})
"""HTTP statuses by which a request itself was wrong: the server is not to blame, and no objective is about them."""


class LatencyObjective(msgspec.Struct, frozen=True, kw_only=True):
    """At least ``share`` of all requests are answered within ``limit_s``."""

    share: float
    limit_s: float

    @property
    def name(self) -> str:
        """As it is written: p95, p99.9, max."""
        return "max" if self.share >= 1 else f"p{round(self.share * 100, 6):g}"

    @property
    def limit_ns(self) -> int:
        """The limit in nanoseconds."""
        return round(self.limit_s * 1e9)


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """What a run must meet: latency limits, and the largest share of failed and shed requests (None: no own limit).

    A latency limit is about all requests: one that was not answered, however quickly it failed, is later than any
    limit. Otherwise a server could meet it by refusing. Only a request that was itself wrong counts for nothing; where
    no other is left, every objective is missed.
    """

    latency: tuple[LatencyObjective, ...] = ()
    errors: float | None = None

    def __str__(self) -> str:
        parts = [f"{one.name}={one.limit_s * 1e3:g}ms" for one in self.latency]
        if self.errors is not None:
            parts.append(f"errors={self.errors * 100:g}%")
        return ",".join(parts)

    @property
    def loosest_ns(self) -> int | None:
        """The largest latency limit: a request beyond it is bad whatever its neighbours did."""
        return max((one.limit_ns for one in self.latency), default=None)


class SloFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One objective of one run: what was seen against what was allowed."""

    objective: str
    seen: float | None
    limit: float
    unit: str
    met: bool
    note: str = ""

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        seen = "no answer" if self.seen is None else f"{self.seen:.4g} {self.unit}"
        note = f" ({self.note})" if self.note else ""
        return f"{self.objective} {verdict}: {seen}, limit {self.limit:g} {self.unit}{note}"


class Tally(msgspec.Struct, kw_only=True):
    """Counts of a run so far, enough to say that an objective can no longer be met.

    Args:
        planned: requests that will be measured, less those that were themselves wrong.
        failed: of them, failed or shed so far.
        late: per latency objective, those beyond its limit so far (answered late, not answered, or still waiting).
    """

    planned: int
    failed: int
    late: list[int]


def samples_needed(share: float) -> int:
    """Compute how many samples a percentile should rest on: 20 beyond it on average."""
    return ceil(20 / (1 - share) - 1e-6) if share < 1 else 0


def parse_duration_s(text: str) -> float:
    """Read "250us", "15ms", "30s", "5m", "2h", "1d" or "5w" as seconds.

    Raises:
        LoadTestError: no number, or no unit (a bare number is ambiguous).
    """
    try:
        return float(parse_duration(text))
    except UnitError as error:
        raise LoadTestError(str(error), hint="durations are written 250us, 15ms, 30s, 5m, 2h, 1d or 5w") from None


def parse_objectives(text: str) -> Objectives:
    """Read "p95=200ms,p99.9=1s,max=2s,errors=0.1%".

    Raises:
        LoadTestError: an objective that is not known, written twice, without a value, or with a limit that no answer
            can meet: 0 or less.
    """
    latency: list[LatencyObjective] = []
    errors: float | None = None
    seen: set[str] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name in seen:
            what = "is given twice" if equals else "has no value"
            raise LoadTestError(
                f"objective {name!r} {what} in {text!r}", hint="write for example p95=200ms,errors=0.1%"
            )
        seen.add(name)
        if name == "errors":
            errors = _errors_share(value)
        else:
            latency.append(LatencyObjective(share=_share_of(name), limit_s=_limit_s(name, value)))
    if not seen:
        raise LoadTestError("the SLO is empty", hint="write for example p95=200ms,errors=0.1%")
    return Objectives(latency=tuple(latency), errors=errors)


def judge(objectives: Objectives, seen_ms: dict[str, float | None], failed: int, count: int) -> tuple[SloFinding, ...]:
    """Compare a run with its objectives.

    Args:
        objectives: what was asked for.
        seen_ms: per latency objective's name, the percentile of all requests in milliseconds; None where it falls on
            one that was not answered, or there was none.
        failed: requests that failed or were shed.
        count: requests measured.
    """
    findings = [_judge_latency(one, seen_ms[one.name], failed, count) for one in objectives.latency]
    if objectives.errors is not None:
        share = failed / count if count else 1.0
        findings.append(
            SloFinding(
                objective="errors",
                seen=share * 100 if count else None,
                limit=objectives.errors * 100,
                unit="%",
                met=count > 0 and share <= objectives.errors,
                note=f"{failed} of {count}",
            )
        )
    return tuple(findings)


def hopeless(objectives: Objectives, tally: Tally) -> str:
    """Say which objective can no longer be met whatever the rest of the run brings; empty while all still can.

    More than (1 - q) of all planned requests beyond q's limit means that the percentile is beyond it: no guess.
    """
    for one, late in zip(objectives.latency, tally.late, strict=True):
        if late > (1 - one.share) * tally.planned + 1e-9:
            limit = f"{one.name} (limit {one.limit_s * 1e3:g} ms)"
            return f"{limit}: {late} of {tally.planned} requests already exceed it or failed"
    if objectives.errors is not None and tally.failed > objectives.errors * tally.planned + 1e-9:
        return (
            f"errors (limit {objectives.errors * 100:g} %): {tally.failed} of {tally.planned} requests already failed"
        )
    return ""


def _judge_latency(one: LatencyObjective, seen_ms: float | None, failed: int, count: int) -> SloFinding:
    notes = []
    if seen_ms is None and failed:
        notes.append(f"{failed} of {count} requests were not answered")
    if count < samples_needed(one.share):
        notes.append(f"few samples: {count}; use at least {samples_needed(one.share)}")
    return SloFinding(
        objective=one.name,
        seen=seen_ms,
        limit=one.limit_s * 1e3,
        unit="ms",
        met=seen_ms is not None and seen_ms <= one.limit_s * 1e3,
        note="; ".join(notes),
    )


def _errors_share(text: str) -> float:
    """A percentage, or a fraction as a bare number."""
    try:
        return float(parse_share(float(text) if _NUMBER.match(text) else text))
    except UnitError as error:
        raise LoadTestError(str(error), hint="shares are written 0.1% or 0.001") from None


def _limit_s(name: str, text: str) -> float:
    limit_s = parse_duration_s(text.removeprefix("-"))
    if text.startswith("-") or limit_s <= 0:
        raise LoadTestError(
            f"the limit of {name} is {text}; it must be above 0",
            hint=f"write a positive time, for example {name}=200ms",
        )
    return limit_s


def _share_of(name: str) -> float:
    if name == "max":
        return 1.0
    match = _PERCENTILE.match(name)
    if match is None or float(match[1]) <= 0:
        raise LoadTestError(f"unknown objective {name!r}", hint="use p50, p95, p99.9, max (latency) or errors")
    return round(float(match[1]) / 100, 9)
