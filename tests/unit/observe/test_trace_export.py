from __future__ import annotations

import logging
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.collector_kit import attributes, collecting
from tests.trace_kit import MS, SLOW_MS, Clock, ended, parent

from tailcut.errors import StartError
from tailcut.manifest.schema.observe import Traces
from tailcut.observe.traces.exporter import Collector, Exporter, SpanTarget
from tailcut.observe.traces.kept import Span
from tailcut.observe.traces.settings import ExportSettings, export_settings
from tailcut.observe.traces.sink import TraceSink


class Script(SpanTarget):
    """A target that fails with the reasons that it is given, in turn, and then takes everything."""

    where = "http://collector"

    def __init__(self, *reasons: str) -> None:
        self.reasons = list(reasons)

    def send(self, traces: Sequence[Sequence[Span]]) -> tuple[int, str]:
        return (len(traces), self.reasons.pop(0)) if self.reasons else (0, "")


@pytest.fixture
def exporters() -> Iterator[list[Exporter]]:
    """What a test exports with, which ends with it."""
    found: list[Exporter] = []
    yield found
    for exporter in found:
        exporter.close(5.0)


@pytest.fixture
def exporting(exporters: list[Exporter]) -> Any:
    def make(target: SpanTarget, sink: TraceSink, most: int = 2048) -> Exporter:
        found = Exporter(target, sink.ring, most=most)
        sink.exporters.append(found.offer)
        exporters.append(found)
        return found

    return make


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread looks at its queue by itself: tests do its work."""
    monkeypatch.setattr("tailcut.observe.traces.exporter._EVERY_S", 1e9)


def keep(sink: TraceSink, count: int) -> None:
    sink.on_requests("m", [ended(parent=parent(number + 1)) for number in range(count)])


def test_a_collector_that_is_down_costs_traces_and_both_changes_are_told_once(
    caplog: pytest.LogCaptureFixture, exporting: Any
) -> None:
    sink = Clock().sink()
    exporter = exporting(Script(*["ConnectionRefusedError: refused"] * 3), sink)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            keep(sink, 2)
            exporter._worker.run_once()
    assert (exporter.exported, exporter.errors, exporter.dropped["collector"]) == (4, 3, 6)
    assert [record.getMessage() for record in caplog.records] == [
        "traces cannot be exported to http://collector: ConnectionRefusedError: refused; 2 were dropped, further ones "
        "are counted",
        "traces are exported to http://collector again; 4 were dropped meanwhile",
    ]


def test_a_target_that_raises_does_not_end_the_export(exporting: Any) -> None:
    class Broken(Script):
        def send(self, traces: Sequence[Sequence[Span]]) -> tuple[int, str]:
            if super().send(traces)[0]:
                raise ValueError("no such span")
            return 0, ""

    sink = Clock().sink()
    exporter = exporting(Broken("raise"), sink)
    for _ in range(2):
        keep(sink, 1)
        exporter._worker.run_once()
    assert (exporter.exported, exporter.dropped["collector"]) == (1, 1)


def test_counts_of_dropped_traces_can_be_read_while_the_thread_counts(exporting: Any) -> None:
    sink = Clock().sink()
    exporter = exporting(Script("HTTP 400"), sink, most=1)
    reading = iter(exporter.dropped.items())
    next(reading)
    keep(sink, 2)
    exporter._worker.run_once()
    assert dict(reading) | {"queue": 1} == dict(exporter.dropped) == {"queue": 1, "collector": 1, "stop": 0}


def test_a_million_traces_a_minute_are_bounded_and_counted(exporting: Any) -> None:
    """A part of it with a collector that takes nothing: memory stays, all are counted."""

    class Held(Script):
        go_on = threading.Event()

        def send(self, traces: Sequence[Sequence[Span]]) -> tuple[int, str]:
            self.go_on.wait(30)
            return 0, ""

    sink = Clock().sink()
    exporter = exporting(Held(), sink, most=256)
    held = []
    tracemalloc.start()
    for first in range(1, 18_001, 6_000):
        for number in range(first, first + 6_000):
            sink.on_requests("m", [ended(parent=parent(number), batches=[(number // 8 + 1, 8, 8, 1, 2)])])
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    Held.go_on.set()
    assert held[2] < held[0] * 1.1 + 100_000
    assert exporter.dropped["queue"] in (3 * 6_000 - 256, 3 * 6_000 - 256 - 128), "128 are being sent"
    assert sink.kept["parent"] == 3 * 6_000
    exporter.close(5.0)
    assert exporter.exported + exporter.dropped["queue"] == 3 * 6_000


def test_a_batch_is_exported_once_and_its_members_link_to_it(exporting: Any) -> None:
    sink = Clock().sink()
    start_ns = 10**12
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url), sink)
        for first in (1, 3):
            batches = [(9, 4, 4, start_ns + 20 * MS, start_ns + 50 * MS)]
            sink.on_requests("m", [ended(SLOW_MS + 1, parent=parent(first + n), batches=batches) for n in range(2)])
            exporter._worker.run_once()
        (batch,) = collector.named("batch m")
        members = collector.named("batch")
        assert len(members) == 4
        for span in members:
            links = {attributes(link)["tailcut.link"]: link for link in span.links}
            assert (links["batch"].trace_id, links["batch"].span_id) == (batch.trace_id, batch.span_id)
        assert {link.span_id for link in batch.links} <= {span.span_id for span in members}
        assert attributes(batch)["tailcut.batch.rows"] == 4


def collector_of(url: str, **headers: str) -> Collector:
    return Collector(ExportSettings(url + "/v1/traces", headers, is_asked_for=True), "m")


def test_spans_reach_a_collector_as_they_are(monkeypatch: pytest.MonkeyPatch, exporting: Any) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "X-Key=a%20b,authorization=of-all")
    sink = Clock().sink()
    request = ended(SLOW_MS + 1, parent=parent(0xABC, 1), code="inference_failed", groups=())
    request.headers["tracestate"] = "a=1"
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url, authorization="Bearer x"), sink)
        sink.on_requests("m", [request])
        exporter._worker.run_once()
        assert exporter.exported == 1
        assert (collector.headers["authorization"], collector.headers["x-key"]) == ("Bearer x", "a b")
        assert collector.headers["content-encoding"] == "gzip"
        (resource,) = collector.resources
        assert attributes(resource.resource)["service.name"] == "m"
        assert resource.schema_url.startswith("https://opentelemetry.io/schemas/")
        found = sink.find(f"{0xABC:032x}")
        assert found is not None
        assert [(span.name, span.span_id.hex(), span.parent_span_id.hex()) for span in collector.spans] == [
            (span.name, span.span_id, span.parent_id) for span in found.spans
        ]
        assert [(span.start_time_unix_nano, span.end_time_unix_nano) for span in collector.spans] == [
            (span.start_ns, span.end_ns) for span in found.spans
        ]
        own = collector.spans[0]
        assert (own.status.code, own.status.message, own.trace_state) == (2, "inference_failed", "a=1")
        assert own.flags & 0x300 == 0x300, "its parent is of another process"
        assert attributes(own)["http.response.status_code"] == 500
        exporter.close(5.0)


@pytest.mark.parametrize("compression", ["none", "deflate"])
def test_the_compression_is_the_environments(compression: str, monkeypatch: pytest.MonkeyPatch, exporting: Any) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", compression)
    sink = Clock().sink()
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url), sink)
        keep(sink, 1)
        exporter._worker.run_once()
        exporter.close(5.0)
        assert collector.spans
        assert collector.headers.get("content-encoding", "none") == compression


def test_spans_that_a_collector_rejects_are_counted_and_told(caplog: pytest.LogCaptureFixture, exporting: Any) -> None:
    sink = Clock().sink()
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url), sink)
        rejected = collector.answer.partial_success
        for rejected.rejected_spans, rejected.error_message in ((0, ""), (1, "quota"), (1000, "quota"), (0, "a hint")):
            keep(sink, 2)
            exporter._worker.run_once()
        assert (exporter.exported, exporter.dropped["collector"], exporter.errors) == (5, 3, 2)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "it rejected 1 spans: quota; 1 were dropped, further ones are counted",
        "",
    ]


def test_an_answer_that_is_none_of_otlp_is_a_success(exporting: Any) -> None:
    sink = Clock().sink()
    with collecting() as collector:
        collector.answer = SimpleNamespace(SerializeToString=lambda: b'{"partialSuccess":{}}')
        exporter = exporting(collector_of(collector.url), sink)
        keep(sink, 1)
        exporter._worker.run_once()
        assert (exporter.exported, exporter.errors) == (1, 0)


def test_a_collector_that_was_busy_is_asked_again_when_it_says(exporting: Any) -> None:
    sink = Clock().sink()
    with collecting() as collector:
        collector.status, collector.answer_headers = 503, {"retry-after": "0"}
        exporter = exporting(collector_of(collector.url), sink)
        collector.status_of = {2: 200}
        keep(sink, 1)
        exporter._worker.run_once()
        exporter.close(5.0)
        assert (collector.asked, exporter.exported, exporter.errors) == (2, 1, 0)


@pytest.mark.parametrize("fault", ["302", "400", "503", "absent", "slow"])
def test_a_collector_that_fails_is_given_up_after_the_time_out(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, exporting: Any
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")
    sink = Clock().sink()
    with collecting() as collector, socket.socket() as taken:
        url = collector.url
        if fault == "absent":
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        elif fault == "slow":
            collector.hold.clear()
        else:
            collector.status = int(fault)
        exporter = exporting(collector_of(url), sink)
        began_s = time.monotonic()
        for _ in range(2):
            keep(sink, 1)
            exporter._worker.run_once()
        assert time.monotonic() - began_s < 5.0
        assert (exporter.dropped["collector"], exporter.errors) == (2, 2)
        (told,) = [record.getMessage() for record in caplog.records]  # and none of each try
        assert {"absent": "ConnectionError: ", "slow": "ReadTimeout: "}.get(fault, f"HTTP {fault};") in told
        exporter.close(5.0)


def test_close_exports_what_waits_and_gives_up_in_time(exporting: Any) -> None:
    sink = Clock().sink()
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url), sink)
        keep(sink, 300)
        exporter.close(5.0)
        assert (exporter.exported, exporter.dropped.total()) == (300, 0)
        assert len({span.trace_id for span in collector.spans}) == 300
        collector.hold.clear()
        sink.exporters.clear()
        slow = exporting(collector_of(collector.url), sink)
        keep(sink, 5)
        began_s = time.monotonic()
        slow.close(0.3)
        assert time.monotonic() - began_s < 1.5
        assert slow.dropped["stop"] == 5


def settings(environment: dict[str, str], **traces: Any) -> ExportSettings | None:
    return export_settings(Traces(**traces), environment)


def test_the_manifest_goes_before_the_environment() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318/",
        "TOKEN": "secret",
    }
    assert settings({}) is None
    found = settings(environment)
    assert found is not None
    assert (found.url, dict(found.headers), found.is_asked_for) == ("http://env:4318/v1/traces", {}, False)
    asked = settings(environment, endpoint="https://c", headers={"Authorization": "Bearer ${TOKEN}"})
    assert asked is not None
    assert (asked.url, dict(asked.headers)) == ("https://c/v1/traces", {"authorization": "Bearer secret"})
    assert "secret" not in repr(asked)
    custom = settings({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t/path?x=1"} | environment)
    assert custom is not None
    assert custom.url == "http://t/path?x=1"
    for off in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert settings(environment | off) is None
    assert settings(environment, endpoint="off") is None


@pytest.mark.parametrize(
    ("traces", "says"),
    [
        ({"endpoint": "localhost:4318"}, "http://"),
        ({"endpoint": "http://user:pass@host"}, "headers"),
        ({"endpoint": "http://[::1"}, "http://"),
        ({"endpoint": "http://c", "headers": {"a": "${UNSET}"}}, "UNSET is not set"),
        ({"endpoint": "http://c", "headers": {"a b": "x"}}, "cannot be sent"),
        ({"endpoint": "http://c", "headers": {"a": "x\r\ny: z"}}, "cannot be sent"),
    ],
)
def test_a_wrong_collector_ends_the_start(traces: dict[str, Any], says: str) -> None:
    with pytest.raises(StartError) as raised:
        settings({}, **traces)
    assert says in str(raised.value)


def test_what_the_environment_says_wrongly_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for environment in (
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ):
        caplog.clear()
        assert settings(environment) is None
        assert "traces are not exported" in caplog.text
    settings({"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense"})
    assert "OTEL_EXPORTER_OTLP_ENDPOINT is 'nonsense': " in caplog.text, "as it was set, without the path that is added"


def test_the_resource_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, exporting: Any) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "svc")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,team=a%2Cb")
    sink = Clock().sink()
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url), sink)
        keep(sink, 1)
        exporter.close(5.0)
        found = attributes(collector.resources[0].resource)
    assert (found["service.name"], found["team"]) == ("svc", "a,b")
