"""Models and queries that run for no request in particular: counted, said, and not taken for none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.profiler.levers.test_levers import advice, pilot, reasons

from tailcut.profiler.attribution.background_calls import background_notes, background_words
from tailcut.profiler.hooks import models
from tailcut.profiler.recording.background_calls import background_calls
from tailcut.profiler.recording.captured import captured
from tailcut.profiler.recording.tracing import MODEL, OpenSpan, current, open_root, tracer
from tailcut.profiler.records import BackgroundCall, Recording, Stage

_SECOND = 1_000_000_000


def stray(stage: Stage, label: str, calls: int, seconds: float) -> BackgroundCall:
    return BackgroundCall(stage=stage, label=label, calls=calls, took_ns=int(seconds * _SECOND))


def test_what_ran_for_nobody_is_said_with_what_it_took() -> None:
    """Those that differ in a value count as one, and no value is told."""
    found = (
        stray(Stage.SQL, "SELECT 1 FROM t WHERE name = 'bob'", 2, 0.3),
        stray(Stage.SQL, "SELECT 1 FROM t WHERE name = 'amy'", 1, 0.3),
        stray(Stage.MODEL, "Net", 840, 9.1),
        stray(Stage.MODEL, "Tiny", 1, 0.0001),
        stray(Stage.CACHE, "PING", 20, 0.002),
    )
    notes = background_notes(found, window_s=30.0)
    assert [note.partition(" for no request")[0] for note in notes] == [
        "Net ran 840 times (9.1 s)",
        "SELECT ? FROM t WHERE name = ? ran 3 times (0.6 s)",
        "Tiny ran once (0.0001 s)",
    ]
    assert background_words(found, 30.0)[Stage.MODEL] == "Net ran 840 times (9.1 s)"
    assert background_notes((), 30.0) == ()


def unowned(recording: Recording, *found: BackgroundCall) -> Recording:
    return msgspec.structs.replace(recording, background_calls=found)


def test_a_model_behind_a_queue_is_not_taken_for_none() -> None:
    net = stray(Stage.MODEL, "Net", 840, 5.0)
    found = reasons(advice(unowned(pilot(model_ms=0.0), net)))
    for lever in ("runtime", "INT8", "batching"):
        assert found[lever].startswith("not known: Net ran 840 times (5 s) for no request in particular")
    plain = reasons(advice(pilot(model_ms=0.0)))
    assert plain["runtime"] == "not worth it: no model was seen"


def test_queries_behind_a_queue_are_not_taken_for_none() -> None:
    asked = stray(Stage.CACHE, "GET", 400, 2.0)
    found = reasons(advice(unowned(pilot(queries=0, code_ms=6.2, sql_ms=0.0), asked)))
    assert found["concurrent I/O"].startswith("not known: GET ran 400 times (2 s) for no request in particular")


def test_a_recording_keeps_them() -> None:
    recording = unowned(pilot(), stray(Stage.MODEL, "Net", 1, 0.1))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(recording), type=Recording) == recording


class Module:
    """As much of torch's as the hook knows."""

    def __init__(self, *inner: Module) -> None:
        self.inner = inner
        self.seen: list[OpenSpan | None] = []

    def __call__(self, x: Any) -> Any:
        self.seen.append(current.get())
        for one in self.inner:
            x = one(x)
        return x + 1


class Net(Module):
    """A model of two parts."""


def test_a_torch_model_for_nobody_is_counted_and_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are not, and what it was called with before the recording is no request's input."""
    kept: list[tuple[Any, Any, int]] = []
    monkeypatch.setattr(Module, "__call__", Module.__call__)
    monkeypatch.setattr(captured, "torch", lambda module, args, kwargs, took_ns: kept.append((module, args, took_ns)))
    models._hook_torch(SimpleNamespace(Module=Module))  # type: ignore[arg-type]
    background_calls.clear()
    net = Net(Module(), Module())
    assert [net(number) for number in (0, 10)] == [3, 13]
    assert [(one.label, one.calls) for one in background_calls.found()] == [("Net", 2)]
    assert [(module, args) for module, args, _ in kept] == [(net, (0,)), (net, (10,))]
    inside = net.inner[0].seen[0]
    assert inside is not None
    assert inside.stage is MODEL
    background_calls.clear()


class Compilable(Module):
    """As torch's: calls go by ``_wrapped_call_impl`` to the compiled form where there is one."""

    _compiled_call_impl: Any = None

    def __init__(self, *inner: Module) -> None:
        super().__init__(*inner)
        self.went: list[str] = []

    def _wrapped_call_impl(self, x: int) -> int:
        self.went.append("wrapped")
        return self._compiled_call_impl(x) if self._compiled_call_impl is not None else self._call_impl(x)

    def _call_impl(self, x: int) -> int:
        self.went.append("call")
        for one in self.inner:
            x = one(x)
        return x + 1

    __call__ = _wrapped_call_impl


def test_parts_of_a_torch_model_are_called_by_the_shortest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Compilable, "__call__", Compilable.__call__)
    monkeypatch.setattr(captured, "torch", lambda *_: None)
    models._hook_torch(SimpleNamespace(Module=Compilable))  # type: ignore[arg-type]
    plain, compiled = Compilable(), Compilable()
    compiled._compiled_call_impl = lambda x: x + 100
    assert Compilable(plain, compiled)(0) == 102
    assert (plain.went, compiled.went) == (["call"], ["wrapped"])
    background_calls.clear()


def test_a_torch_model_of_a_request_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Module, "__call__", Module.__call__)
    monkeypatch.setattr(captured, "torch", lambda *_: None)
    models._hook_torch(SimpleNamespace(Module=Module))  # type: ignore[arg-type]
    tracer.clear()
    background_calls.clear()
    trace = tracer.enter(1, "GET", "/")
    assert trace is not None
    open_root(trace, Stage.CODE, "app", "")
    net = Net(Module())
    net(0)
    trace.over = True
    net(0)  # in a task that the request has left behind
    current.set(None)
    assert [(span.stage, span.label) for span in trace.spans[1:]] == [(Stage.MODEL, "Net")]
    assert [(one.label, one.calls) for one in background_calls.found()] == [("Net", 1)]
    tracer.clear()
    background_calls.clear()
