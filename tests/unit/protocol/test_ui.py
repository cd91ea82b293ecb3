"""The page: who may see it, what its replies allow a browser, and its events; without a socket."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import GOOD, INFER, Answer, Client, counters, deployment, running
from tests.host_kit import add_models, running_host
from tests.unit.protocol.test_app_auth import bearer, line

from tailcut.errors import Forbidden, NotFound, Shed, Unauthorized
from tailcut.observe.live.figures import KeptRequest, LiveSpan, RequestDetail
from tailcut.observe.live.model_figures import POINT
from tailcut.protocol.auth import Guard, Tokens
from tailcut.protocol.ui import routes
from tailcut.protocol.ui.routes import COOKIE, SESSION_S, Access, Feed, Viewer

LOCAL = {"host": "127.0.0.1:8700"}
FORM = {"content-type": "application/x-www-form-urlencoded", "host": "h", "sec-fetch-site": "same-origin"}
STATIC = files("tailcut.protocol.ui") / "static"


def serve(directory: Path, test: Callable[[Client], Awaitable[None]], *overrides: str) -> None:
    async def main() -> None:
        async with running(deployment(directory, overrides=overrides)) as client:
            await test(client)

    asyncio.run(main())


def with_tokens(directory: Path) -> str:
    (directory / "managers").write_text(line("secret"))
    (directory / "tokens").write_text(line("user"))
    return "server.management_tokens=managers"


def cookie_of(answer: Answer) -> dict[str, str]:
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


async def login(client: Client, token: str = "secret", back: str = "ui", **headers: str) -> Answer:
    return await client.post("/ui/login", f"token={token}&back={back}".encode(), {**FORM, **headers})


def test_beyond_loopback_the_page_is_closed_without_tokens_for_management(tmp_path: Path) -> None:
    async def test(client: Client) -> None:  # mounted: it may be reached from anywhere
        for path in ("/ui", "/ui/models/m"):
            page = await client.get(path)
            assert (page.status, "management_tokens" in page.body.decode()) == (403, True)
        for path in ("/ui/data", "/ui/events", "/ui/models/m/events", "/ui/requests/0/data"):
            assert (await client.get(path)).status == 403
        assert (await client.get("/ui/static/main.js")).status == 200

    serve(tmp_path, test)


def test_on_loopback_it_is_open_but_not_under_a_name_that_another_site_may_have() -> None:
    access = Access(Guard(local=True))
    for host in ("127.0.0.1:8700", "localhost:8700", "localhost", "[::1]:8700", "127.9.9.9"):
        access.check({"host": host})
    for headers in (
        {"host": "evil.example:8700"},
        {"host": "127.0.0.1.evil.example"},
        {**LOCAL, "origin": "https://evil.example"},
        {**LOCAL, "x-forwarded-for": "10.0.0.1"},
    ):
        with pytest.raises(Forbidden):
            access.check(headers)


def test_a_token_opens_it_by_header_and_a_form_by_cookie(tmp_path: Path) -> None:
    managing = with_tokens(tmp_path)

    async def test(client: Client) -> None:
        assert (await client.get("/ui/data", headers=bearer("secret"))).status == 200
        for headers in ({}, bearer("user"), bearer("wrong"), {"cookie": f"{COOKIE}=guessed"}):
            assert (await client.get("/ui/data", headers=headers)).status == 401
            form = await client.get("/ui/models/m", headers=headers)
            assert (form.status, 'value="ui/models/m"' in form.body.decode()) == (401, True)
        refused = await login(client, "wrong")
        assert (refused.status, "set-cookie" in refused.headers) == (401, False)
        answer = await login(client, back="ui/models/m")
        assert (answer.status, answer.headers["location"]) == (303, "../ui/models/m")
        told = answer.headers["set-cookie"]
        assert all(each in told for each in ("HttpOnly", "SameSite=Strict", "Max-Age="))
        assert not any(each in told for each in ("Path=", "Domain=", "Secure", "secret"))
        assert "Secure" in (await login(client, **{"x-forwarded-proto": "https"})).headers["set-cookie"]
        cookie = cookie_of(answer)
        assert (await client.get("/ui/data", headers=cookie)).status == 200
        page = await client.get("/ui", headers=cookie)
        assert (page.status, 'data-session="yes"' in page.body.decode()) == (200, True)
        ended = await client.post("/ui/logout", b"", {**FORM, **cookie})
        assert (ended.status, "Max-Age=0" in ended.headers["set-cookie"]) == (303, True)
        assert (await client.get("/ui/data", headers=cookie)).status == 401

    serve(tmp_path, test, managing, "server.tokens=tokens")


def test_the_form_leads_nowhere_else_and_no_other_site_can_send_it(tmp_path: Path) -> None:
    managing = with_tokens(tmp_path)

    async def test(client: Client) -> None:
        for back in ("https://evil.example", "//evil.example", "/ui", "ui/../x", "ui/models/a/b", "ui%0d%0ax: y"):
            assert (await login(client, back=back)).headers["location"] == "../ui"
        for headers in (
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "", "origin": "null"},
        ):
            for path in ("/ui/login", "/ui/logout"):
                answer = await client.post(path, b"token=secret", {**FORM, **headers})
                assert (answer.status, "set-cookie" in answer.headers) == (403, False)
        assert (await client.post("/ui/login", b"x" * 20_000, FORM)).status == 413
        assert (await client.post("/ui/login", b"a=1&" * 9, FORM)).status == 400
        assert (await client.get("/ui/login")).status == 405

    serve(tmp_path, test, managing)
    access = Access(Guard(management=Tokens(tmp_path / "managers")))
    access.begin("secret", {"origin": "https://h:1", "host": "h:1"})
    with pytest.raises(Forbidden):
        access.begin("secret", {"origin": "https://evil.example", "host": "h:1"})


def test_a_session_ends_with_its_time_and_with_its_token(tmp_path: Path) -> None:
    with_tokens(tmp_path)
    now_s = 0.0
    tokens = Tokens(tmp_path / "managers")
    access = Access(Guard(management=tokens), clock_s=lambda: now_s)

    def begun() -> dict[str, str]:
        return {"cookie": dict(access.begin("secret", {}))["set-cookie"].partition(";")[0]}

    first = begun()
    access.check(first)
    now_s = SESSION_S
    with pytest.raises(Unauthorized):
        access.check(first)
    second = begun()
    tokens._known.clear()  # it was withdrawn from the file
    with pytest.raises(Unauthorized):
        access.check(second)
    assert len(access._sessions) == 1


def test_replies_let_a_browser_run_nothing_but_files_of_the_server(tmp_path: Path) -> None:
    managing = with_tokens(tmp_path)

    async def test(client: Client) -> None:
        for path in ("/ui", "/ui/models/<script>", "/ui/requests/x", "/ui/data", "/ui/static/main.js"):
            answer = await client.get(path, headers=bearer("secret"))
            policy = dict(each.strip().split(" ", 1) for each in answer.headers["content-security-policy"].split(";"))
            assert policy["default-src"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
            assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert b"<script>" not in answer.body
        tag = (await client.get("/ui/static/style.css")).headers["etag"]
        assert (await client.get("/ui/static/style.css", headers={"if-none-match": tag})).status == 304
        for path in ("/ui/static/nothing.js", "/ui/static/page.html", "/ui/static/..", "/ui/static/a/b", "/ui/x"):
            assert (await client.get(path)).status == 404
        assert (await client.request("HEAD", "/ui/events", headers=bearer("secret"))).status == 400
        assert (await client.get("/ui/models/other/events", headers=bearer("secret"))).status == 404

    serve(tmp_path, test, managing)


def test_the_files_load_nothing_from_elsewhere_and_put_no_markup_of_the_data_into_the_page() -> None:
    sources = {each.name: each.read_text() for each in STATIC.iterdir()}
    text = "".join(sources.values()).replace("http://www.w3.org/2000/svg", "")
    assert "://" not in text
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function|<style|style=", text) == []
    )
    scripts = [html for name, html in sources.items() if name.endswith(".html")]
    assert all(re.findall(r"<script(?![^>]* src=)", each) == [] for each in scripts)
    named = set(re.findall(r'(?:from "\./|static/)([\w.]+)"', text))
    assert named == {name for name in sources if not name.endswith(".html")} - {"main.js"} | {"main.js"}


def test_the_page_is_no_request_to_a_model(tmp_path: Path) -> None:
    managing = with_tokens(tmp_path)

    async def test(client: Client) -> None:
        await client.post(INFER, GOOD)
        for path in ("/ui", "/ui/data", "/ui/nothing"):
            await client.get(path, headers=bearer("secret"))
        assert await counters(client, "tailcut_requests_total") == {("infer", "source", "ok", "off"): 1}
        found = (await client.get("/ui/data", headers=bearer("secret"))).json
        assert found["models"][0]["requests"]["answered"]["total"] == 1

    serve(tmp_path, test, managing)


def test_a_kept_request_is_found_by_its_trace(tmp_path: Path) -> None:
    managing = with_tokens(tmp_path)
    kept = KeptRequest(
        trace="a" * 32, model="m", route="infer", code="ok", variant="source", why="slow", total_s=1.0, ended_s=2.0
    )
    detail = RequestDetail(request=kept, spans=[LiveSpan(name="infer", depth=1, start_s=0.1, duration_s=0.9)])

    async def test(client: Client) -> None:
        path = f"/ui/requests/{'a' * 32}/data"
        client.app.host.observed.live.request = {}.get
        assert (await client.get(path, headers=bearer("secret"))).status == 404
        client.app.host.observed.live.request = {"a" * 32: detail}.get
        assert (await client.get(path, headers=bearer("secret"))).json["spans"][0]["duration_s"] == 0.9
        assert (await client.get(f"/ui/requests/{'b' * 32}/data", headers=bearer("secret"))).status == 404

    serve(tmp_path, test, managing)


# -- Events ----------------------------------------------------------------------------------------------------------


def event(raw: bytes) -> tuple[str, Any]:
    fields = dict(each.split(": ", 1) for each in raw.decode().strip().splitlines())
    return fields["event"], json.loads(fields["data"])


def feed_of(folder: Path, test: Callable[[Any, Feed], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running_host(add_models(folder, a=1.0, b=2.0)) as client:
            await test(client.host.observed.live, client.app.application._ui._feed)

    asyncio.run(main())


def test_events_begin_with_the_history_and_are_encoded_once_for_all(tmp_path: Path) -> None:
    async def test(live: Any, feed: Feed) -> None:
        host, one, other = await feed.watch(), await feed.watch("a"), await feed.watch("a")
        streams = [aiter(each) for each in (host, one, other)]
        kind, told = event(await anext(streams[0]))
        assert (kind, set(told["sparks"])) == ("begin", {"a", "b"})
        kind, told = event(await anext(streams[1]))
        assert (kind, told["names"], [each["name"] for each in told["snapshot"]["models"]]) == (
            "begin",
            [*POINT],
            ["a"],
        )
        assert all(len(each) == len(POINT) for each in told["points"])
        await anext(streams[2])
        await live.take()
        host_event, first, second = [await anext(each) for each in streams]
        assert first is second, "one encoding for both viewers of the model"
        kind, told = event(first)
        assert (kind, len(told["point"])) == ("snapshot", len(POINT))
        brief = event(host_event)[1]["snapshot"]["models"]
        assert [(each["name"], len(each["stages"])) for each in brief] == [("a", 1), ("b", 1)]
        assert live.viewers == 3
        for each in (host, one, other, other):
            await each.aclose()
        assert live.viewers == 0

    feed_of(tmp_path, test)


def test_a_slow_viewer_gets_the_latest_snapshot_and_is_dropped_in_the_end(tmp_path: Path) -> None:
    now_s = 50.0

    async def test(live: Any, feed: Feed) -> None:
        feed._clock_s = lambda: now_s
        viewer: Viewer = await feed.watch("a")
        stream = aiter(viewer)
        await anext(stream)
        for _ in range(5):
            await live.take()
        latest = live.latest.at_s
        assert event(await anext(stream))[1]["snapshot"]["at_s"] == latest
        assert viewer.left_s() == 10.0
        nonlocal_time(9.0)
        assert viewer.left_s() == pytest.approx(1.0)
        await live.take()
        assert event(await anext(stream))[0] == "snapshot"
        nonlocal_time(10.5)
        assert viewer.left_s() < 0
        await live.take()
        assert [each async for each in stream] == []
        await viewer.aclose()

    def nonlocal_time(passed_s: float) -> None:
        nonlocal now_s
        now_s += passed_s

    feed_of(tmp_path, test)


def test_a_viewer_whose_session_has_ended_sees_no_more(tmp_path: Path) -> None:
    async def test(live: Any, feed: Feed) -> None:
        answers = iter([True, True, False])
        viewer = await feed.watch("a", lambda: next(answers))
        stream = aiter(viewer)
        for _ in range(2):
            await anext(stream)
            await live.take()
        assert [each async for each in stream] == []
        await viewer.aclose()

    feed_of(tmp_path, test)


def test_viewers_are_bounded_and_leave_when_the_server_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_VIEWERS", 2)

    async def test(live: Any, feed: Feed) -> None:
        with pytest.raises(NotFound):
            await feed.watch("nothing")
        assert live.viewers == 0
        one, other = aiter(first := await feed.watch()), aiter(await feed.watch("a"))
        with pytest.raises(Shed):
            await feed.watch()
        await anext(one)
        live.stop()
        assert first.left_s() == 0.0
        assert [each async for each in one] == []
        assert [event(each)[0] async for each in other] == []

    feed_of(tmp_path, test)
