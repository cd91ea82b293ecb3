"""What tracing costs a request of which nothing is kept: everything that is recorded and decided, on one thread.

    python -m benchmarks.tracing [--rounds 15] [--requests 20000] [--out benchmarks/results/tracing.md]

The same requests with and without tracing, in turn: a context is made, its batch noted, and it is handed to the sinks
64 at a time, as a server does. The difference per request is the cost; rounds alternate, and the interval is a
bootstrap's over them. Requests without a caller's trace, with one that was not sampled, with three feature groups that
are in memory, and with one whose source is asked. Beside it what a kept request costs the event loop.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from time import perf_counter_ns, thread_time_ns

from benchmarks.overhead import commit, cpu
from tailcut.features.entry import Entry
from tailcut.features.group_times import GroupTimes, Want
from tailcut.features.groups import Group
from tailcut.features.line import Lookup
from tailcut.observe.recorder import ModelSinks
from tailcut.observe.sinks import Sinks
from tailcut.observe.traces.sink import TraceSink
from tailcut.observe.traces.trace_context import TraceOrigin, format_traceparent
from tailcut.pipeline.request_context import RequestContext

LIMIT_US = 2.0
_AT_ONCE = 63
_GROUPS = tuple((name, 0, 0, 1, 0, 0) for name in ("a", "b", "c"))
_NS = [1000, 2000, 1000, 0, 0, 0, 0, 5000, 9000, 0, 3000]


def main() -> int:
    """Measure, print and write; return 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    parent = {"traceparent": format_traceparent(1, 2, 0)}
    kinds: dict[str, tuple[dict[str, str], Sequence[Sequence[object]] | None]] = {
        "no caller's trace": ({}, ()),
        "a caller's trace, not sampled": (parent, ()),
        "three feature groups in memory": ({}, _GROUPS),
        "one feature group whose source is asked": ({}, None),
    }
    lines = [
        f"# What tracing costs ({commit()}, {cpu()})",
        "",
        "| requests | us a request | 95 % interval |",
        "|---|---|---|",
    ]
    worst_us = 0.0
    for kind, (headers, groups) in kinds.items():
        costs = _differences(asked.rounds, asked.requests, headers, groups)
        low, high = _interval(costs)
        worst_us = max(worst_us, statistics.median(costs))
        lines.append(f"| {kind} | {statistics.median(costs):.2f} | {low:.2f} to {high:.2f} |")
    kept = [_kept_us(2000) for _ in range(asked.rounds)]
    low, high = _interval(kept)
    lines.append(f"| kept (sampled by its caller) | {statistics.median(kept):.2f} | {low:.2f} to {high:.2f} |")
    lines += ["", f"Bar for nothing kept: {LIMIT_US:g} us; {'met' if worst_us <= LIMIT_US else 'MISSED'}."]
    text = "\n".join(lines) + "\n"
    print(text)
    if asked.out:
        asked.out.write_text(text)
    return 0 if worst_us <= LIMIT_US else 1


def _differences(
    rounds: int, requests: int, headers: dict[str, str], groups: Sequence[Sequence[object]] | None
) -> list[float]:
    found = []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        took = {traced: _run(requests, headers, groups, traced=traced) for traced in order}
        found.append((took[True] - took[False]) / requests / 1e3)
    return found


def _run(requests: int, headers: dict[str, str], groups: Sequence[Sequence[object]] | None, *, traced: bool) -> int:
    """Return the nanoseconds of CPU time that requests take."""
    sinks = Sinks()
    sink = TraceSink(lambda model: 10**9, share=0.0, size=512)
    if traced:
        sinks.add(sink, batches=False)
    model = ModelSinks("m", sinks)
    tracer = sink.tracer if traced else None
    batch = (1, 4, 4, 1000, 2000)
    wants = [Want(_Group(), Lookup((1,), b"key"))]  # type: ignore[arg-type]  # of a group nothing but the name is used
    wants[0].entry = Entry({}, 0.0, 0.0)
    asked_groups, missing = [wants[0].group], {wants[0].group: wants}
    gc.collect()
    gc.disable()
    began_ns = thread_time_ns()
    for number in range(requests):
        context = RequestContext("infer", 1000, 10**9, "", "onnx")
        if tracer is not None:
            context.tracer, context.headers = tracer, headers
        context.timings.ns = _NS
        context.timings.last_ns = 22_000
        if context.tracer is not None:
            context.batches = [batch]
            if groups is None:
                _ask(context, asked_groups, missing, wants)
            elif groups:
                context.groups = groups
        context.code = "ok"
        model.request(context)
        if number % _AT_ONCE == _AT_ONCE - 1:
            model.flush()
    model.flush()
    took_ns = thread_time_ns() - began_ns
    gc.enable()
    return took_ns


class _Group:
    name = "group"


def _ask(context: RequestContext, groups: list[Group], missing: dict[Group, list[Want]], wants: list[Want]) -> None:
    """Note what ``FeatureService`` notes of a group whose source is asked."""
    assert context.tracer is not None
    context.origin = TraceOrigin(context.tracer, context.headers)
    context.groups = times = GroupTimes(context.origin)
    times.begin(groups)
    _ = times.caller
    times.watch(missing)
    times.end(wants)


def _kept_us(requests: int) -> float:
    sink = TraceSink(lambda model: 10**9, share=0.0, size=512)
    contexts = []
    for number in range(requests):
        context = RequestContext("infer", perf_counter_ns(), 10**18, "", "onnx")
        context.tracer, context.headers = sink.tracer, {"traceparent": format_traceparent(number + 1, 2, 1)}
        context.batches, context.timings.ns, context.code = [(number // 4, 4, 4, 1, 2)], list(_NS), "ok"
        contexts.append(context)
    began_ns = thread_time_ns()
    sink.on_requests("m", contexts)
    return (thread_time_ns() - began_ns) / requests / 1e3


def _interval(
    values: list[float], statistic: Callable[[list[float]], float] = statistics.median
) -> tuple[float, float]:
    """Return a bootstrap interval of 95 %."""
    random = Random(1)
    found = sorted(statistic(random.choices(values, k=len(values))) for _ in range(2000))
    return found[50], found[1949]


if __name__ == "__main__":
    raise SystemExit(main())
