"""What a deployment's hooks spend their time on: models, steps of a Pipeline, queries and functions in them.

``tailcut serve`` tells how long a hook takes. What it calls is seen where the same deployment runs as an application
under ``profiler.pilot``, for some seconds more; there each part's share of its hook is taken, and the hooks of the
deployment's own recording are divided by these shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tailcut.errors import LoadTestError, MissingExtra, ProfileError
from tailcut.load import LoadPlan
from tailcut.manifest import Manifest
from tailcut.profiler.deployments.app import environment_of
from tailcut.profiler.deployments.deployment import settings_of
from tailcut.profiler.outside import with_notes
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Recording, Request, Sample, Span, Stage
from tailcut.profiler.trials import OnStep

_SECONDS, _WARMUP_S = 4.0, 1.0
_LEAST_SHARE = 0.002
"""A part that takes less of its hook counts as the hook's own code."""
_MOST_CALLS = 50

_NOTE = (
    f"what the hooks call was seen in {_SECONDS:g} s more, as an application that is traced; their own time here is "
    "divided by the shares there"
)
HOOKS = ("preprocess", "postprocess")


class Part:
    """A call within a hook, summed over the requests.

    Attributes:
        took_ns, calls: of all of them.
        parts: what it calls, in the order in which that was seen first.
    """

    def __init__(self, span: Span) -> None:
        self.span = span
        self.took_ns = self.calls = 0
        self.parts: dict[tuple[Stage, str, str], Part] = {}

    def add(self, span: Span) -> None:
        """Count one more call."""
        self.took_ns += span.end_ns - span.start_ns
        self.calls += 1

    def within(self, span: Span) -> Part:
        """Return the part that a call in this one belongs to."""
        return self.parts.setdefault((span.stage, span.label, span.place), Part(span))


def with_hook_steps(
    recording: Recording,
    manifest: Manifest,
    path: Path,
    plan: LoadPlan,
    *,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    say: OnStep,
) -> Recording:
    """Divide the time of a deployment's hooks among what they call; with a note where that cannot be seen.

    Args:
        recording: as ``record_deployment`` made it.
        manifest, path, plan, overrides, environment: as they were given to it.
        say: hears what is being done.
    """
    deployment = manifest.deployment
    labels = {name: reference for name in HOOKS if (reference := getattr(deployment.model, name))}
    if not labels:
        return recording
    say(f"tracing the hooks of {deployment.name}")
    settings = settings_of(deployment, overrides)
    try:
        traced = record(
            PilotPlan(
                target="tailcut.profiler.deployments.app:app()", path=plan.url or f"/predict/{deployment.name}",
                payloads=plan.payloads or deployment.ladder.traffic, method=plan.method, headers=plan.headers,
                rate=recording.rate, duration_s=_SECONDS, warmup_s=_WARMUP_S, timeout_s=plan.timeout_s,
                directory=str(manifest.directory), sample_s=_SECONDS, layers=False, seed=plan.seed,
                environment={**environment, **environment_of(path, settings)},
            )
        )  # fmt: skip
    except (ProfileError, LoadTestError, MissingExtra) as error:
        return with_notes(recording, f"what the hooks call could not be seen: {error.message}")
    return with_notes(divided(recording, traced, labels), _NOTE)


def divided(recording: Recording, traced: Recording, labels: Mapping[str, str]) -> Recording:
    """Divide the hooks' time of one recording by the shares of another one.

    Args:
        recording: of the deployment as it is served; its hooks have no parts.
        traced: of the same as an application.
        labels: of the hooks in ``recording``, by their kinds.
    """
    hooks = {labels[kind]: hook for kind in labels if (hook := _hook_of(traced.requests, kind)) is not None}
    if not hooks:
        return recording
    places = {hook.span.label: (label, hook.span.place) for label, hook in hooks.items()}
    return msgspec.structs.replace(
        recording,
        requests=tuple(_with_parts(one, hooks) for one in recording.requests),
        samples=tuple(_renamed(one, places) for one in traced.samples if one.code[0] in places),
        sample_interval_ns=traced.sample_interval_ns,
        sampled_s=traced.sampled_s,
    )


def _hook_of(requests: Sequence[Request], kind: str) -> Part | None:
    """Sum what requests had in a hook; None where none called it."""
    found: Part | None = None
    for request in requests:
        parts: dict[int, Part] = {}
        for place, span in enumerate(request.spans):
            if span.end_ns < 0:
                continue
            if span.parent in parts:
                parts[place] = parts[span.parent].within(span)
            elif span.stage is Stage.CODE and span.label.startswith(f"{kind} "):
                found = found or Part(span)
                parts[place] = found
            else:
                continue
            parts[place].add(span)
    return found


def _with_parts(request: Request, hooks: Mapping[str, Part]) -> Request:
    spans: list[Span] = []
    for span in request.spans:
        hook = hooks.get(span.label) if span.stage is Stage.CODE else None
        if hook is None:
            spans.append(span)
        else:
            spans.append(msgspec.structs.replace(span, place=hook.span.place))
            spans.extend(_laid(hook, span, len(spans) - 1))
    return msgspec.structs.replace(request, spans=tuple(spans))


def _laid(part: Part, within: Span, parent: int) -> Iterator[Span]:
    """Yield spans of what a part calls, one after the other from its beginning; ``parent`` is where it stands."""
    length_ns, at_ns, place = within.end_ns - within.start_ns, within.start_ns, parent
    # What ran side by side takes more than there is, and shrinks.
    whole_ns = max(part.took_ns, sum(one.took_ns for one in part.parts.values()), 1)
    for one in part.parts.values():
        share = one.took_ns / whole_ns
        if share < _LEAST_SHARE:
            continue
        calls = min(max(round(one.calls / part.calls), 1), _MOST_CALLS)
        for _ in range(calls):
            end_ns = at_ns + int(length_ns * share / calls)
            span = Span(
                stage=one.span.stage, label=one.span.label, place=one.span.place,
                start_ns=at_ns, end_ns=end_ns, parent=parent,
            )  # fmt: skip
            place += 1
            yield span
            for below in _laid(one, span, place):
                place += 1
                yield below
            at_ns = end_ns


def _renamed(sample: Sample, places: Mapping[str, tuple[str, str]]) -> Sample:
    """Name the span of code that a sample lies in as the deployment's recording does."""
    return msgspec.structs.replace(sample, code=places[sample.code[0]])
