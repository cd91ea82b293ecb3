"""CORS, the access log and the page of the interface: off, or as the manifest says."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import GOOD, INFER, Client, deployment, running

from tailcut.errors import StartError, TailcutError
from tailcut.manifest.host import HostManifest
from tailcut.protocol.access_log import check_log
from tailcut.transport.asgi import ASGIApplication

PAGE = "https://app.example"


def serve(directory: Path, test: Callable[[Client], Awaitable[None]], *overrides: str) -> None:
    async def main() -> None:
        async with running(deployment(directory, "", overrides)) as client:
            await test(client)

    asyncio.run(main())


def cors_of(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


def preflight(origin: str = PAGE, asked: str = "content-type, x-own") -> dict[str, str]:
    return {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": asked}


def test_cors_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        assert cors_of((await client.post(INFER, GOOD, {"origin": PAGE})).headers) == {}
        refused = await client.request("OPTIONS", INFER, headers=preflight())
        assert (refused.status, cors_of(refused.headers)) == (405, {})

    serve(tmp_path, test)


def test_pages_of_named_origins_may_call(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        allowed = await client.request("OPTIONS", INFER, headers=preflight())
        assert (allowed.status, allowed.body) == (204, b"")
        assert cors_of(allowed.headers) == {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "GET, HEAD, POST",
            "access-control-allow-headers": "content-type, x-own",
            "access-control-max-age": "600",
        }
        odd = await client.request("OPTIONS", INFER, headers=preflight(asked="a b: c"))
        assert "authorization" in odd.headers["access-control-allow-headers"]
        for status, body in ((200, GOOD), (400, b"{")):
            answer = await client.post(INFER, body, {"origin": PAGE})
            assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, PAGE)
            assert "server-timing" in answer.headers["access-control-expose-headers"]
        for headers in ({"origin": "https://other.example"}, {"origin": "null"}, {}):
            answer = await client.post(INFER, GOOD, headers)
            assert (answer.status, cors_of(answer.headers), answer.headers["vary"]) == (200, {}, "origin")
        refused = await client.request("OPTIONS", INFER, headers=preflight("https://other.example"))
        assert (refused.status, cors_of(refused.headers)) == (204, {})

    serve(tmp_path, test, f'server.cors_origins=["{PAGE}"]')


def test_every_origin_may_call_where_all_are_named(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(INFER, GOOD, {"origin": PAGE})
        assert answer.headers["access-control-allow-origin"] == "*"

    serve(tmp_path, test, 'server.cors_origins=["*"]')


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


LOG = 'server.access_log="access.log"'


def test_the_access_log_has_all_that_failed_and_a_share_of_the_rest(tmp_path: Path) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    named: list[str] = []

    async def test(client: Client) -> None:
        for _ in range(50):
            assert (await client.post(INFER, GOOD)).status == 200
        secret = {"authorization": "Bearer secret", "traceparent": parent}
        assert (await client.post(INFER, b'{"secret": 1}', secret)).status == 400
        nowhere = await client.get("/nowhere?secret")
        assert nowhere.status == 404
        named.append(nowhere.headers["x-request-id"])

    serve(tmp_path, test, LOG, "server.access_log_share=0.0")
    bad, missing = lines(tmp_path / "access.log")
    assert (bad["method"], bad["path"], bad["status"]) == ("POST", INFER, 400)
    assert (bad["error"], bad["trace"]) == ({"code": "bad_request"}, parent)
    assert bad["ms"] >= 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", bad["time"])
    assert (bad["level"], bad["logger"], bad["model"]) == ("warning", "tailcut.access", "m")
    assert bad["message"] == f"POST {INFER} 400"
    assert bad["request_id"] == parent.split("-")[1]
    assert (missing["status"], missing["error"]["code"]) == (404, "not_found")
    assert [missing["request_id"]] == named, "a request without an id gets one"
    assert "secret" not in json.dumps(bad)


@pytest.mark.parametrize(
    ("sent", "logged"),
    [("req/7:a", "req/7:a"), ("two words", ""), ("x" * 129, ""), ("", "")],
)
def test_the_clients_id_names_a_request_in_the_log_where_it_is_one(tmp_path: Path, sent: str, logged: str) -> None:
    async def test(client: Client) -> None:
        failed = await client.post(INFER, b"{", {"x-request-id": sent})
        assert bool(logged) == (failed.headers["x-request-id"] == sent)
        await client.post(INFER, GOOD, {"x-request-id": sent})

    serve(tmp_path, test, LOG, "server.access_log_share=1.0")
    failed, answered = lines(tmp_path / "access.log")
    assert failed["request_id"] == (logged or failed["request_id"]) != ""
    assert answered.get("request_id", "") == logged


def test_every_request_is_logged_with_a_share_of_all(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.post(INFER, GOOD)

    serve(tmp_path, test, LOG, 'server.access_log_share="100%"')
    (line,) = lines(tmp_path / "access.log")
    assert (line["status"], line["variant"], line["cache"]) == (200, "source", "off")
    assert "total;dur=" in line["timing"]


def test_slow_requests_are_always_logged(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.post(INFER, GOOD)

    serve(tmp_path, test, LOG, "server.access_log_share=0.0", 'server.access_log_slow="1us"')
    assert len(lines(tmp_path / "access.log")) == 1


def test_a_log_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be written"):
        check_log(HostManifest.of(deployment(tmp_path, overrides=['server.access_log="no/folder/log"'])))


def test_the_page_shows_every_route_and_loads_nothing(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        page = await client.get("/docs")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        text = page.body.decode()
        for path in (await client.get("/openapi.json")).json["paths"]:
            assert path in text
        assert not re.search(r"<script|<link|src=|https?://(?!json-schema)[^ <&]*\.(js|css)", text)

    serve(tmp_path, test)


def writers() -> int:
    return sum(thread.name == "tailcut-access-log" for thread in threading.enumerate())


def test_a_request_before_the_start_does_not_start_twice(tmp_path: Path) -> None:
    async def main() -> None:
        before = writers()
        app = ASGIApplication(deployment(tmp_path, overrides=['server.access_log="log"']))
        client = Client(app)
        assert (await client.post(INFER, GOOD)).status == 503
        await app.start()
        opened = app.engine.opened
        assert (await client.post(INFER, GOOD)).status == 200
        assert app.engine.opened is opened
        assert writers() == before + 1
        await app.stop()
        assert writers() == before

    asyncio.run(main())


def test_a_start_that_fails_leaves_no_thread(tmp_path: Path) -> None:
    async def main() -> None:
        before = writers()
        manifest = deployment(tmp_path, overrides=['server.access_log="log"'])
        (tmp_path / "model.onnx").write_bytes(b"no model")
        with pytest.raises(TailcutError):
            await ASGIApplication(manifest).start()
        assert writers() == before

    asyncio.run(main())
