"""In an application that has an OpenTelemetry provider of its own, kept requests are its spans."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from tests.app_kit import GOOD, INFER, Client, deployment
from tests.wait_kit import until

import tailcut
from tailcut.serving import tracing
from tailcut.transport.asgi import ASGIApplication


class Provider:
    """A provider that is not the process's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)  # type: ignore[arg-type]
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        monkeypatch.setattr(tracing, "sdk_provider", lambda: self.provider)


def test_a_request_is_a_part_of_the_applications_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Provider(monkeypatch)

    async def main() -> None:
        app = ASGIApplication(deployment(tmp_path))
        await app.start()
        with given.provider.get_tracer("app").start_as_current_span("GET /user") as span:
            context = span.get_span_context()
            assert (await Client(app).post(INFER, GOOD, {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"})).status == 200
        await until(lambda: len(given.memory.get_finished_spans()) > 1)
        found = app.host.observed.traces.find(f"{context.trace_id:032x}")
        assert found is not None
        await app.stop()
        spans = {span.name: span for span in given.memory.get_finished_spans()}
        own = spans[f"POST {INFER}"]
        assert own.parent is not None
        assert own.parent.span_id == context.span_id
        assert own.context is not None
        assert f"{own.context.span_id:016x}" == found.spans[0].span_id
        assert (own.start_time, own.end_time) == (found.spans[0].start_ns, found.spans[0].end_ns)
        model = spans["model"]
        assert model.parent is not None
        assert model.parent.trace_id == context.trace_id

    asyncio.run(main())


def test_a_call_in_the_process_is_a_part_of_its_callers_span(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Provider(monkeypatch)

    async def main() -> None:
        async with tailcut.open(deployment(tmp_path)) as model:
            with given.provider.get_tracer("app").start_as_current_span("job") as span:
                await model.predict([{"id": 1, "value": 2}])
        names = [each.name for each in given.memory.get_finished_spans()]
        assert "predict m" in names
        assert {each.context.trace_id for each in given.memory.get_finished_spans() if each.context} == {
            span.get_span_context().trace_id
        }

    asyncio.run(main())


def test_the_providers_sampler_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Provider(monkeypatch, sampler=ParentBased(ALWAYS_OFF))

    async def main() -> None:
        async with tailcut.open(deployment(tmp_path, "", ["observe.traces.sample=1"])) as model:
            await model.predict([{"id": 1, "value": 2}])
        assert not given.memory.get_finished_spans()
        assert model.host.observed.traces.recent("slowest", 1.0)

    asyncio.run(main())
