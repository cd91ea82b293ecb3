"""Everything that a profile found, in one JSON file; the text and the page are made from it and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tailcut.common.slo import Objectives
from tailcut.errors import ProfileError
from tailcut.profiler.attribution.budget import Budget, make_budget
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import Advice, advise
from tailcut.profiler.levers.known import know
from tailcut.profiler.levers.work import outside_words
from tailcut.profiler.payloads.diversity import Diversity
from tailcut.profiler.records import ProfiledProcess, Recording, Stage
from tailcut.report.profile.shapes import Frame, LatencyColumn, columns_of, spans_tree, stacks_tree
from tailcut.system.atomic_files import write_file

FORMAT = 2
"""Of the file; another number is another layout. Fields may be added without a new one."""

Kind = Literal["pilot", "deployment", "url"]


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """One profile.

    Args:
        format: of this file.
        created: when, UTC.
        tailcut: version that wrote it.
        command: the command line.
        target, kind: what was profiled.
        rate: requests per second that were offered.
        duration_s: seconds measured.
        slo: objectives that it is judged by; empty: none.
        machine: cpu, cores, memory, system, python.
        pilot: of the process, where the target is an application.
        budget: where the time goes.
        advice: what each lever can win; None where a recording does not tell.
        diversity: repeats among the payloads; None where there are none.
        layers: slow layers, a model each.
        notes: what could not be seen, and what makes figures weaker than they look.
        columns: requests sorted by latency, for the stacked plot.
        spans: what the requests near the p95 did, nested, in milliseconds of one request.
        stacks: sampled stacks, in milliseconds of all samples; None without samples.
    """

    format: int = FORMAT
    created: str
    tailcut: str
    command: str
    target: str
    kind: Kind
    rate: float
    duration_s: float
    slo: str
    machine: dict[str, str]
    pilot: ProfiledProcess
    budget: Budget
    advice: Advice | None = None
    diversity: Diversity | None = None
    layers: tuple[ModelLayers, ...] = ()
    notes: tuple[str, ...] = ()
    columns: tuple[LatencyColumn, ...] = ()
    spans: Frame
    stacks: Frame | None = None

    @property
    def met(self) -> bool:
        """Whether every objective was met; true without objectives."""
        return all(finding.met for finding in self.budget.findings)


def make_report(
    recording: Recording,
    *,
    kind: Kind,
    slo: Objectives,
    created: str,
    tailcut: str,
    command: str,
    advice: Advice | None = None,
    diversity: Diversity | None = None,
    layers: tuple[ModelLayers, ...] = (),
    notes: tuple[str, ...] = (),
) -> ProfileReport:
    """Work everything out of a recording.

    Args:
        recording: what was measured.
        kind: of the target.
        slo: objectives; without any nothing is judged.
        created, tailcut, command: for the record.
        advice: see ``advice_of``.
        diversity: of the payloads.
        layers: of the models that it runs.
        notes: beside those of the recording and the budget.
    """
    found = attribute(recording)
    judged = bool(slo.latency) or slo.errors is not None
    budget = make_budget(recording, slo if judged else None, found)
    outside = outside_words(recording, found) if kind == "pilot" else ()
    return ProfileReport(
        created=created,
        tailcut=tailcut,
        command=command,
        target=recording.target,
        kind=kind,
        rate=recording.rate,
        duration_s=recording.duration_s,
        slo=str(slo) if judged else "",
        machine=recording.machine,
        pilot=recording.pilot,
        budget=budget,
        advice=advice,
        diversity=diversity,
        layers=layers,
        notes=(*recording.notes, *outside, *budget.notes, *notes),
        columns=columns_of(found),
        spans=spans_tree(found),
        stacks=stacks_tree(recording.samples) if recording.samples else None,
    )


def advice_of(
    recording: Recording,
    slo: Objectives,
    diversity: Diversity | None,
    bodies: Sequence[bytes],
    at_s: Sequence[float] | None = None,
) -> Advice | None:
    """Say what levers can win, where the server's own stages are known.

    Args:
        slo: objectives; without any the p95 is to be as low as it gets.
        diversity: of the payloads.
        bodies, at_s: payloads and when they came, as of ``know``; empty: nothing is known of what caches would win.
    """
    if not any(span.stage != Stage.NETWORK for one in recording.requests for span in one.spans):
        return None
    known = know(recording, bodies, diversity, recording.rate, at_s=at_s)
    judged = bool(slo.latency) or slo.errors is not None
    return advise(recording, known=known, slo=slo if judged else None, diversity=diversity)


def save_report(report: ProfileReport, path: Path) -> None:
    """Write a report as JSON.

    Raises:
        LoadTestError: the file cannot be written.
    """
    write_file(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def load_report(path: Path) -> ProfileReport:
    """Read what ``save_report`` wrote.

    Raises:
        ProfileError: the file is missing, holds something else, or is another version's.
    """
    hint = "give a file written by `tailcut profile --json`"
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Version).format
        if version != FORMAT:
            raise ProfileError(
                f"{path} has format {version}, this tailcut reads {FORMAT}", hint="run `tailcut profile --json` again"
            )
        return msgspec.json.decode(content, type=ProfileReport)
    except (OSError, msgspec.DecodeError) as error:
        raise ProfileError(f"cannot read a profile from {path}: {error}", hint=hint) from error


class _Version(msgspec.Struct):
    format: int = 0
