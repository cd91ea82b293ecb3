"""Records an application with a known delay in each stage, and compares what was found with what it really took."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tailcut.load import LoadPlan
from tailcut.profiler import pilot
from tailcut.profiler.attribution.span_table import STAGES
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import RecordedRequest, Recording, Stage

HERE = Path(__file__).parent

Recorded = tuple[Recording, dict[int, dict[str, tuple[int, int]]]]
"""The recording, and nanoseconds that each request really spent in each stage where a delay is planted: at least (what
it could have run in but had no core left out, as on a busy machine) and at most."""


def record_briefly(plan: PilotPlan) -> Recording:
    """Record with a short trial of the rate before it: a test that is not about that knows what the machine bears.

    The trial sends 60 requests otherwise, which takes 9 s at low rates.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pilot, "_trial", brief_trial)
        return record(plan)


def brief_trial(load: LoadPlan) -> LoadPlan:
    """A load that asks some requests of an application, whatever its rate."""
    return msgspec.structs.replace(load, duration_s=0.6, warmup_s=0.2, seed=load.seed + 1)


def record_planted(
    folder: Path,
    module: str,
    paths: Sequence[str],
    body: Mapping[str, object],
    *,
    rate: float,
    duration_s: float,
    sample_s: float,
    environment: Mapping[str, str] | None = None,
) -> Recorded:
    """Let ``profile_{module}.py`` be profiled as it is, from a folder of its own, its paths asked for in turn."""
    for name in (module, "naps", "parts"):
        shutil.copy(HERE / f"profile_{name}.py", folder / f"{name}.py")
    (folder / f"{module}_traffic.py").write_text(
        "from itertools import cycle\n"
        f"def bodies(seed):\n    return cycle([(path, {dict(body)!r}) for path in {list(paths)!r}])\n"
    )
    plan = PilotPlan(
        target=f"{module}:app",
        payloads=f"{module}_traffic:bodies",
        path="/",
        rate=rate,
        duration_s=duration_s,
        warmup_s=0.5,
        sample_s=sample_s,
        layers=False,
        directory=str(folder),
        environment={"NAPS": str(folder / "naps.json"), **(environment or {})},
    )
    recording = record_briefly(plan)
    naps = json.loads((folder / "naps.json").read_text())
    return recording, {one.number: _spent(one, naps[str(one.number)]) for one in recording.requests}


def _spent(one: RecordedRequest, naps: Mapping[str, Sequence[tuple[int, int, int]]]) -> dict[str, tuple[int, int]]:
    """What it spent in each stage, of this run: application and client read the same clock."""
    mine = {stage: [nap for nap in found if one.intended_ns <= nap[0] <= one.done_ns] for stage, found in naps.items()}
    return {
        stage: (sum(spent - without for _, spent, without in found), sum(spent for _, spent, _ in found))
        for stage, found in mine.items()
    }


def of_path(recording: Recording, path: str) -> list[RecordedRequest]:
    found = [one for one in recording.requests if one.path == path]
    assert len(found) >= 5
    return found


def only(recording: Recording, path: str) -> Recording:
    """The recording as if nothing but this path had been asked for, without what something else held up.

    Requests come at random: some meet another one's delay, and on a busy machine a neighbour. Three quarters remain.
    """
    asked = sorted(of_path(recording, path), key=lambda one: one.done_ns - one.intended_ns)
    kept = {one.number for one in asked[: -(-3 * len(asked) // 4)]}
    return msgspec.structs.replace(recording, requests=tuple(one for one in recording.requests if one.number in kept))


WAKING_NS = 2_000_000
"""What a core that idled may take to wake up, which is the stage's own or a wait beside it; naps are 6 ms and more."""


def found_shares(recorded: Recorded, stages: Mapping[str, Stage]) -> dict[str, float]:
    """Of what a path's requests really spent in its planted stage, which share was found there: the median."""
    recording, naps = recorded
    found = attribute(recording)
    assert (found.stage_ns.sum(axis=1) == found.flat.done_ns - found.flat.intended_ns).all()
    shares: dict[str, list[float]] = defaultdict(list)
    for place, one in enumerate(found.flat.requests):
        stage = stages[one.path]
        seen_ns = int(found.stage_ns[place, STAGES.index(stage)])
        least_ns, most_ns = naps[one.number][stage.value]
        shares[one.path].append(seen_ns / min(max(seen_ns, least_ns - WAKING_NS), most_ns + WAKING_NS))
    assert set(shares) == set(stages)
    return {path: float(np.median(values)) for path, values in shares.items()}


def missed(shares: Mapping[str, float], tolerance: float = 0.1) -> dict[str, float]:
    """Those that are further off than that."""
    return {path: share for path, share in shares.items() if abs(share - 1.0) > tolerance}
