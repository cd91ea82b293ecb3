"""What a deployment's hooks spend their time on: models, steps of a Pipeline, queries and functions in them.

``tailcut serve`` tells how long a hook takes. What it calls is seen where the same deployment runs as an application
under ``profiler.pilot``, for some seconds more. Each call of a hook in the deployment's own recording is then divided
as the traced call is that stands at the same place of the traced ones by its length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tailcut.errors import LoadTestError, MissingExtra, ProfileError
from tailcut.ladder.serve_command import serve_arguments
from tailcut.load import LoadPlan
from tailcut.manifest.subject import Subject
from tailcut.profiler.deployments.app import environment_of
from tailcut.profiler.outside import with_notes
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Recording, Request, Sample, Span, Stage
from tailcut.profiler.trials import OnStep

_SECONDS, _WARMUP_S = 4.0, 1.0
_LEAST_SHARE = 0.002
"""A part that takes less of its hook counts as the hook's own code."""

_NOTE = f"calls of the hooks were traced in another {_SECONDS:g} s; the hooks' time here is divided by those shares"
HOOKS = ("preprocess", "postprocess")


class HookCall:
    """One call of a hook as it was traced, or a call within it.

    Attributes:
        below: what it called, in order.
    """

    def __init__(self, span: Span) -> None:
        self.span = span
        self.below: list[HookCall] = []

    @property
    def took_ns(self) -> int:
        """Wall time."""
        return self.span.end_ns - self.span.start_ns


def with_hook_steps(
    recording: Recording,
    subject: Subject,
    plan: LoadPlan,
    *,
    environment: Mapping[str, str],
    say: OnStep,
) -> Recording:
    """Divide the time of a deployment's hooks among what they call; with a note where that cannot be seen.

    Args:
        recording: as ``record_deployment`` made it.
        subject, plan, environment: as they were given to it.
        say: hears what is being done.
    """
    manifest, deployment = subject.manifest, subject.manifest.deployment
    labels = {name: reference for name in HOOKS if (reference := getattr(deployment.model, name))}
    if not labels:
        return recording
    if alike := _alike(subject, labels):
        return with_notes(recording, f"calls of the hooks were not traced: {alike}")
    say(f"tracing the hooks of {deployment.name}")
    files, settings = serve_arguments(subject)
    try:
        traced = record(
            PilotPlan(
                target="tailcut.profiler.deployments.app:app()", path=plan.url or f"/predict/{deployment.name}",
                payloads=plan.payloads or deployment.ladder.traffic, method=plan.method, headers=plan.headers,
                rate=recording.rate, duration_s=_SECONDS, warmup_s=_WARMUP_S, timeout_s=plan.timeout_s,
                directory=str(manifest.directory), sample_s=_SECONDS, layers=False, seed=plan.seed,
                environment={**environment, **environment_of(files, settings)},
            )
        )  # fmt: skip
    except (ProfileError, LoadTestError, MissingExtra) as error:
        return with_notes(recording, f"calls of the hooks could not be traced: {error.message}")
    return with_notes(divided(recording, traced, labels), _NOTE)


def _alike(subject: Subject, labels: Mapping[str, str]) -> str:
    """Say which hook of a model that computes features cannot be told from the subject's; empty where none can be.

    Spans of both are in one trace, and are named after what they call.
    """
    for hosted in subject.needed:
        for kind in labels:
            if hosted.manifest is not None and (other := getattr(hosted.manifest.deployment.model, kind)):
                return f"the {kind} of model {hosted.name!r} ({other}) would be counted as that of {subject.name!r}"
    return ""


def divided(recording: Recording, traced: Recording, labels: Mapping[str, str]) -> Recording:
    """Divide the hooks' time of one recording as another one has it.

    Args:
        recording: of the deployment as it is served; its hooks have no parts.
        traced: of the same as an application.
        labels: of the hooks in ``recording``, by their kinds.
    """
    hooks = {labels[kind]: calls for kind in labels if (calls := _calls_of(traced.requests, kind))}
    if not hooks:
        return recording
    places = {calls[0].span.label: (label, calls[0].span.place) for label, calls in hooks.items()}
    took_ns = {
        label: sorted(one.end_ns - one.start_ns for each in recording.requests for one in each.spans if _is(one, label))
        for label in hooks
    }
    return msgspec.structs.replace(
        recording,
        requests=tuple(_with_steps(one, hooks, took_ns) for one in recording.requests),
        samples=tuple(_renamed(one, places) for one in traced.samples if one.code[0] in places),
        sample_interval_ns=traced.sample_interval_ns,
        sampled_s=traced.sampled_s,
    )


def _is(span: Span, label: str) -> bool:
    return span.stage is Stage.CODE and span.label == label


def _calls_of(requests: Sequence[Request], kind: str) -> list[HookCall]:
    """List the traced calls of a hook with what each called, the shortest first."""
    found: list[HookCall] = []
    for request in requests:
        calls: dict[int, HookCall] = {}
        for place, span in enumerate(request.spans):
            if span.end_ns < 0:
                continue
            if span.parent in calls:
                calls[place] = HookCall(span)
                calls[span.parent].below.append(calls[place])
            elif span.stage is Stage.CODE and span.label.startswith(f"{kind} "):
                calls[place] = HookCall(span)
                found.append(calls[place])
    return sorted(found, key=lambda one: one.took_ns)


def _with_steps(
    request: Request, hooks: Mapping[str, Sequence[HookCall]], took_ns: Mapping[str, Sequence[int]]
) -> Request:
    spans: list[Span] = []
    for span in request.spans:
        calls = hooks.get(span.label) if span.stage is Stage.CODE else None
        if calls is None:
            spans.append(span)
            continue
        # The call that took as long among the traced ones as this one does among its own: what only slow requests
        # call is laid into slow requests.
        ranks = took_ns[span.label]
        rank = (bisect_left(ranks, span.end_ns - span.start_ns) + bisect_right(ranks, span.end_ns - span.start_ns)) / 2
        call = calls[min(int(rank / len(ranks) * len(calls)), len(calls) - 1)]
        spans.append(msgspec.structs.replace(span, place=call.span.place))
        spans.extend(_laid(call, span, len(spans) - 1))
    return msgspec.structs.replace(request, spans=tuple(spans))


def _laid(call: HookCall, within: Span, parent: int) -> Iterator[Span]:
    """Yield spans of what a call called, one after the other from its beginning; ``parent`` is where it stands."""
    length_ns, at_ns, place = within.end_ns - within.start_ns, within.start_ns, parent
    # What ran side by side takes more than there is, and shrinks.
    whole_ns = max(call.took_ns, sum(one.took_ns for one in call.below), 1)
    for one in call.below:
        share = one.took_ns / whole_ns
        if share < _LEAST_SHARE:
            continue
        end_ns = at_ns + int(length_ns * share)
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
