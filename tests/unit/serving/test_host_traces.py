"""Traces of a whole host: from the request's headers to what is shown of it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.app_kit import FEATURES, GOOD, INFER, Client, deployment, running
from tests.chain_kit import add_chain
from tests.host_kit import MANAGES, add_models, running_host
from tests.host_kit import serve as serve_host
from tests.trace_kit import check_nesting, parent

from tailcut.errors import MissingExtra
from tailcut.observe.traces.kept import FoundTrace

TRACED = """
seen = []

def values(keys, context):
    seen.append((context.traceparent, context.tracestate))
    return [{"value": 10.0 * key[0]} for key in keys]
"""


def serve(test: Callable[[Client], Awaitable[None]], directory: Path, more: str = "", *overrides: str) -> None:
    async def main() -> None:
        manifest = deployment(directory, more, overrides)
        async with running(manifest) as client:
            await test(client)

    asyncio.run(main())


async def found(client: Client, key: str) -> FoundTrace:
    """The trace of a request, which is there as soon as its reply is."""
    trace = client.app.host.observed.traces.find(key)
    assert trace is not None
    return trace


def by_name(trace: FoundTrace) -> dict[str, Any]:
    return {span.name: span for span in trace.spans}


def test_a_sampled_parent_is_continued_and_the_request_shown(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        sent = parent(0xABC)
        answer = await client.post(INFER, GOOD, {"traceparent": sent, "x-request-id": "mine"})
        assert answer.headers["traceparent"] == sent
        trace = await found(client, "mine")
        assert (trace.trace_id, trace.reason, trace.batch_rows) == (f"{0xABC:032x}", "parent", 0)
        check_nesting(trace.spans)
        server_ms = answer.stages_ms
        assert trace.duration_ms >= server_ms["total"] * 0.99
        assert abs(trace.stages_ms["receive"] - server_ms["receive"]) < 0.001, "the same record as the headers"
        assert {"receive", "validate", "admit", "model", "encode"} <= set(by_name(trace))
        await client.post(INFER, GOOD, {"traceparent": parent(0xDEF, 0)})
        await client.post(INFER, GOOD)
        metrics = (await client.get("/metrics")).body.decode()
        assert 'tailcut_traces_kept_total{reason="parent"} 1.0' in metrics
        assert 'tailcut_traces_kept_total{reason="sample"} 0.0' in metrics
        assert client.app.host.observed.traces.find(f"{0xDEF:032x}") is None

    serve(test, tmp_path, "", "observe.traces.sample=0")


def test_requests_of_one_batch_lead_to_each_other(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await asyncio.gather(*(client.post(INFER, GOOD, {"traceparent": parent(n)}) for n in (1, 2)))
        traces = [await found(client, f"{n:032x}") for n in (1, 2)]
        assert [trace.batch_requests for trace in traces] == [2, 2]
        assert [mate.trace_id for trace in traces for mate in trace.batch] == [f"{n:032x}" for n in (2, 1)]
        links = [by_name(trace)["batch"].links for trace in traces]
        assert links[0][0] == links[1][0]
        for trace in traces:
            check_nesting(trace.spans)

    serve(test, tmp_path, "", 'pool.executor="thread"', 'batching.mode="fixed"', 'batching.max_queue_delay="200ms"')


def test_feature_functions_are_given_the_span_of_their_group(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        headers = {"traceparent": parent(0xA), "tracestate": "rojo=1"}
        for n in (1, 2):
            reply = await client.post("/predict/m", {"entities": [n]}, headers | {"x-request-id": f"n{n}"})
            assert reply.status == 200
        reply = await client.post("/predict/m", {"entities": [1]}, headers | {"x-request-id": "again"})
        assert reply.status == 200
        trace = await found(client, "n1")
        check_nesting(trace.spans)
        group = by_name(trace)["feature values"]
        assert group.attributes["tailcut.feature.result"] == "miss"
        from traced_features import seen  # type: ignore[import-not-found]

        assert seen[0] == (f"00-{0xA:032x}-{group.span_id}-01", "rojo=1")
        again = await found(client, "again")
        assert by_name(again)["feature values"].attributes["tailcut.feature.result"] == "hit"
        check_nesting(again.spans)

    (tmp_path / "traced_features.py").write_text(TRACED)
    features = FEATURES.replace("[cache.entity]\nenabled = true", "")
    serve(test, tmp_path, features.replace("app_hooks", "traced_features"))


def test_another_model_computes_a_feature_in_the_same_trace(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        reply = await client.post("/predict/parent", {"entities": ["abc"]}, {"traceparent": parent(0xF00)})
        assert reply.status == 200
        trace = await found(client, f"{0xF00:032x}")
        check_nesting(trace.spans)
        names = by_name(trace)
        assert names["predict child"].parent_id == names["feature text"].span_id
        assert trace.spans[0].attributes["tailcut.model"] == "parent"
        models = {span.attributes.get("tailcut.model") for span in trace.spans} - {None}
        assert models == {"parent", "child"}

    add_chain(tmp_path)
    serve_host(tmp_path, test)


def test_failed_requests_are_shown_to_managers_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with running_host(add_models(tmp_path, a=1.0)) as client:
            assert (await client.get("/debug/requests")).status == 401
            assert (await client.get("/debug/requests/x")).status == 401
            missing = await client.request("GET", "/debug/requests/x", headers=MANAGES)
            assert missing.status == 404
            assert "flag 01" in missing.json["hint"]
            await client.post("/v2/models/a/infer", GOOD, {"traceparent": parent(5), "x-request-id": "seen/17%"})
            await found(client, "seen/17%")
            reply = await client.request("GET", f"/debug/requests/{5:032x}", headers=MANAGES)
            shown = msgspec.json.decode(reply.body, type=FoundTrace)
            assert shown == client.host.observed.traces.find("seen/17%")
            for path in ("seen%2F17%25", "seen/17%25"):
                assert (await client.request("GET", f"/debug/requests/{path}", headers=MANAGES)).status == 200
            listed = (await client.request("GET", "/debug/requests", headers=MANAGES)).json
            assert [each["request_id"] for each in listed["slowest"]] == ["seen/17%"]
            assert listed["failed"] == []

    asyncio.run(main())


def test_nothing_is_traced_where_it_is_off(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.post(INFER, GOOD, {"traceparent": parent()})
        client.app.host.only.sinks.flush()
        assert client.app.host.observed.traces.recent("slowest", 1e6) == []
        assert not client.app.host.sinks.all
        assert not re.search("tailcut_traces", (await client.get("/metrics")).body.decode())

    serve(test, tmp_path, "", "observe.traces.enabled=false")


def test_a_collector_without_the_extra_ends_the_start_only_where_the_manifest_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def start(*overrides: str) -> None:
        async with running(deployment(tmp_path, "", overrides)):
            pass

    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(MissingExtra) as raised:
        asyncio.run(start('observe.traces.endpoint="http://127.0.0.1:1"'))
    assert "tailcut[otel]" in raised.value.hint
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    asyncio.run(start())
    assert "tailcut[otel]" in caplog.text
