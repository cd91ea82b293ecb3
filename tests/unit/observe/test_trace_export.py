from __future__ import annotations

import logging
import socket
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from tests.collector_kit import attributes, collecting
from tests.trace_kit import MS, SLOW_MS, Clock, ended, parent

from tailcut.errors import StartError
from tailcut.manifest.schema.observe import Traces
from tailcut.observe.traces.exporter import Exporter, Sent
from tailcut.observe.traces.otlp import Collector
from tailcut.observe.traces.settings import ExportSettings, export_settings, resource_attributes
from tailcut.observe.traces.sink import TraceSink
from tailcut.observe.traces.spans import Span


class Script:
    """A destination that answers as it is told, on a clock of its own."""

    where = "http://collector"

    def __init__(self, *answers: Sent) -> None:
        self.answers = list(answers)
        self.sent: list[int] = []
        self.now_s = 0.0
        self.waits: list[float] = []

    def encoded(self, traces: Sequence[Sequence[Span]]) -> int:
        return len(traces)

    def send(self, body: int, timeout_s: float) -> Sent:
        answer = self.answers.pop(0) if self.answers else Sent("sent")
        if answer.outcome == "sent":
            self.sent.append(body)
        return answer

    def wait(self, delay_s: float) -> bool:
        self.waits.append(delay_s)
        self.now_s += delay_s
        return False

    def close(self) -> None:
        pass


def exporting(script: Any, sink: TraceSink, most: int = 2048, **options: Any) -> Exporter:
    if isinstance(script, Script):
        options = {"clock_s": lambda: script.now_s, "wait": script.wait} | options
    found = Exporter(script, sink.ids, sink.in_batch, most=most, **options)
    sink.exporters.append(found)
    return found


def keep(sink: TraceSink, count: int) -> None:
    sink.on_requests("m", [ended(parent=parent(number + 1)) for number in range(count)])


def test_a_collector_that_is_down_is_asked_ever_more_rarely_and_both_changes_are_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = Script(*[Sent("retry", "ConnectionRefusedError: refused")] * 8)
    sink = Clock().sink()
    exporter = exporting(script, sink)
    keep(sink, 3)
    with caplog.at_level(logging.WARNING):
        exporter.export_waiting()
    assert (exporter.exported, exporter.errors, exporter.dropped.total()) == (3, 8, 0)
    delays = [min(0.5 * 2**n, 60.0) for n in range(8)]
    assert all(0.5 * delay <= wait <= delay for delay, wait in zip(delays, script.waits, strict=True))
    assert [record.getMessage().partition(" to ")[0] for record in caplog.records] == [
        "traces cannot be exported",
        "traces are exported",
    ]


def test_retry_after_is_obeyed() -> None:
    script = Script(Sent("retry", "HTTP 429", 17.0))
    sink = Clock().sink()
    exporter = exporting(script, sink)
    keep(sink, 1)
    exporter.export_waiting()
    assert script.waits == [17.0]


def test_an_hour_without_a_collector_costs_the_oldest_traces_and_then_it_goes_on() -> None:
    script = Script(*[Sent("retry", "HTTP 500")] * 100)
    clock = Clock()
    sink = clock.sink()
    exporter = exporting(script, sink, most=200)
    keep(sink, 1000)
    assert exporter.dropped["queue"] == 800
    exporter.export_waiting()
    assert exporter.dropped["collector"] == 200, "given up after five minutes each"
    script.answers.clear()
    keep(sink, 50)
    exporter.export_waiting()
    assert exporter.exported == 50


def test_what_the_collector_refuses_is_dropped_at_once() -> None:
    script = Script(Sent("refused", "HTTP 400"))
    sink = Clock().sink()
    exporter = exporting(script, sink)
    keep(sink, 2)
    exporter.export_waiting()
    assert (exporter.dropped["refused"], script.waits) == (2, [])


def test_counts_of_dropped_traces_can_be_read_while_the_thread_counts() -> None:
    sink = Clock().sink()
    exporter = exporting(Script(Sent("refused", "HTTP 400")), sink, most=1)
    reading = iter(exporter.dropped.items())
    next(reading)
    keep(sink, 2)
    exporter.export_waiting()
    assert (
        dict(reading) | {"queue": 1} == dict(exporter.dropped) == {"queue": 1, "collector": 0, "refused": 1, "stop": 0}
    )


def test_a_million_traces_a_minute_are_bounded_and_counted() -> None:
    """A part of it with a collector that takes nothing: memory stays, all are counted."""
    sink = Clock().sink()
    exporter = exporting(Script(), sink, most=256)
    held = []
    tracemalloc.start()
    for first in range(1, 18_001, 6_000):
        for number in range(first, first + 6_000):
            sink.on_requests("m", [ended(parent=parent(number), batches=[(number // 8 + 1, 8, 8, 1, 2)])])
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert held[2] < held[0] * 1.1 + 100_000
    assert exporter.waiting == 256
    assert exporter.dropped["queue"] == 3 * 6_000 - 256
    assert sink.kept["parent"] == 3 * 6_000


def test_a_batch_is_exported_once_and_its_members_link_to_it() -> None:
    sink = Clock().sink()
    start_ns = 10**12
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url), sink)
        for first in (1, 3):
            batches = [(9, 4, 4, start_ns + 20 * MS, start_ns + 50 * MS)]
            sink.on_requests("m", [ended(SLOW_MS + 1, parent=parent(first + n), batches=batches) for n in range(2)])
            exporter.export_waiting()
        (batch,) = collector.named("batch m")
        members = collector.named("batch")
        assert len(members) == 4
        for span in members:
            links = {attributes(link)["tailcut.link"]: link for link in span.links}
            assert (links["batch"].trace_id, links["batch"].span_id) == (batch.trace_id, batch.span_id)
        assert {link.span_id for link in batch.links} <= {span.span_id for span in members}
        assert attributes(batch)["tailcut.batch.rows"] == 4
        exporter.close(0.0)


def collector_of(url: str, timeout_s: float = 5.0, **headers: str) -> Collector:
    return Collector(ExportSettings(url + "/v1/traces", headers, timeout_s, True), resource_attributes("m", {}))


def test_spans_reach_a_collector_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Clock().sink()
    request = ended(SLOW_MS + 1, parent=parent(0xABC, 1), code="inference_failed", groups=())
    request.headers["tracestate"] = "a=1"
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url, authorization="Bearer x"), sink)
        sink.on_requests("m", [request])
        exporter.export_waiting()
        assert exporter.exported == 1
        assert collector.headers["authorization"] == "Bearer x"
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
        assert own.flags == 0x301
        assert attributes(own)["http.response.status_code"] == 500
        exporter.close(0.0)


@pytest.mark.parametrize(
    ("status", "headers", "outcome", "after_s"),
    [
        (503, {"retry-after": "7"}, "retry", 7),
        (429, {"retry-after": "9999999"}, "retry", 300),
        (429, {"retry-after": "soon"}, "retry", 0),
        (502, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, "retry", 0),
        (500, {}, "retry", 0),
        (400, {}, "refused", 0),
        (404, {}, "refused", 0),
        (302, {"location": "http://127.0.0.1:1/"}, "refused", 0),
    ],
)
def test_what_an_answer_of_the_collector_means(
    status: int, headers: dict[str, str], outcome: str, after_s: float
) -> None:
    with collecting() as collector:
        collector.status, collector.answer_headers = status, headers
        sender = collector_of(collector.url)
        sent = sender.send(sender.encoded([]), 5.0)
        assert (sent.outcome, sent.after_s) == (outcome, after_s)
        collector.status = 200
        collector.answer.partial_success.rejected_spans = 3
        assert "rejected 3 spans" in sender.send(sender.encoded([]), 5.0).why
        sender.close()


def test_a_collector_that_is_away_slow_or_closed_a_kept_connection_is_asked_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = collector_of(f"http://127.0.0.1:{taken.getsockname()[1]}")
        assert away.send(b"", 1.0).outcome == "retry"
    with collecting() as collector:
        port = collector.server_address[1]
        sender = collector_of(collector.url)
        body = sender.encoded([])
        assert sender.send(body, 5.0).outcome == "sent"
        collector.hold.clear()
        began_s = time.monotonic()
        sent = sender.send(body, 0.1)
        assert (sent.outcome, sent.why) == ("retry", "no answer within 0.1 s")
        assert time.monotonic() - began_s < 2.0
        collector.hold.set()
        assert sender.send(body, 5.0).outcome == "sent"
    with collecting(port):
        assert sender.send(body, 5.0).outcome == "sent", "at once, on a new connection"
        sender.close()


def test_close_exports_what_waits_and_gives_up_in_time() -> None:
    sink = Clock().sink()
    with collecting() as collector:
        exporter = exporting(collector_of(collector.url), sink)
        exporter.start()
        keep(sink, 300)
        exporter.close(5.0)
        assert (exporter.exported, exporter.dropped.total()) == (300, 0)
        assert len({span.trace_id for span in collector.spans}) == 300
        collector.hold.clear()
        slow = exporting(collector_of(collector.url), sink)
        slow.start()
        keep(sink, 5)
        began_s = time.monotonic()
        slow.close(0.3)
        assert time.monotonic() - began_s < 1.5


def settings(environment: dict[str, str], **traces: Any) -> ExportSettings | None:
    return export_settings(Traces(**traces), 3.0, environment)


def test_the_manifest_goes_before_the_environment() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318/",
        "OTEL_EXPORTER_OTLP_HEADERS": "X-Key=a%20b, bad name=1",
        "TOKEN": "secret",
    }
    assert settings({}) is None
    found = settings(environment)
    assert found is not None
    assert (found.url, dict(found.headers), found.is_asked_for) == (
        "http://env:4318/v1/traces",
        {"x-key": "a b"},
        False,
    )
    assert found.timeout_s == pytest.approx(2.4), "below the drain"
    asked = settings(environment, endpoint="https://c", headers={"Authorization": "Bearer ${TOKEN}"})
    assert asked is not None
    assert (asked.url, asked.headers["authorization"]) == ("https://c/v1/traces", "Bearer secret")
    assert "secret" not in repr(asked)
    assert asked.headers["x-key"] == "a b"
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


def test_the_resource_is_named_by_the_environment() -> None:
    environment = {"OTEL_SERVICE_NAME": "svc", "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,team=a%2Cb,broken"}
    found = resource_attributes("m", environment)
    assert (found["service.name"], found["team"]) == ("svc", "a,b")
    assert resource_attributes("m", {})["service.name"] == "m"
