"""Who may do what, by the token that a request brings; without a socket."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.app_kit import FEATURES, GOOD, INFER, Client, deployment, running

from tailcut.errors import Forbidden, ManifestError, StartError, Unauthorized
from tailcut.manifest.host import HostManifest
from tailcut.protocol import auth
from tailcut.protocol.auth import Guard, Tokens, read_tokens

LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"

NOTHING = hashlib.sha256(b"").hexdigest()  # of a token whose variable was not set


def line(token: str, tenant: str = "") -> str:
    return f"{hashlib.sha256(token.encode()).hexdigest()} {tenant}\n"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def serve(directory: Path, test: Callable[[Client], Awaitable[None]], more: str = "", *overrides: str) -> None:
    async def main() -> None:
        async with running(deployment(directory, more, overrides)) as client:
            await test(client)

    asyncio.run(main())


def test_predictions_need_a_token_where_there_are_tokens(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# ours\n\n" + line("one") + line("two", "acme"))

    async def test(client: Client) -> None:
        for path, body in ((INFER, GOOD), ("/predict/m", {"rows": [{"id": 1, "value": 2}]})):
            assert (await client.post(path, body, bearer("one"))).status == 200
            assert (await client.post(path, body, {"authorization": "bearer  two"})).status == 200
            for headers in (
                {},
                bearer("three"),
                bearer(""),
                bearer("one" * 5000),
                {"authorization": "Basic b25l"},
                bearer(hashlib.sha256(b"one").hexdigest()),
            ):
                refused = await client.post(path, body, headers)
                assert (refused.status, refused.json["code"]) == (401, "unauthorized")
                assert refused.headers["www-authenticate"].startswith("Bearer")
                assert "three" not in refused.body.decode()
                if headers == bearer("three"):
                    assert refused.json["error"] == "the bearer token is not valid for predictions"
        for path in ("/v2/models/m", "/v2/models/m/config", "/v2/models/m/stats", "/v2/models/stats"):
            assert (await client.get(path)).status == 401
            assert (await client.get(path, headers=bearer("one"))).status == 200
        for path in ("/v2", "/v2/health/ready", "/v2/models/m/ready", "/metrics", "/openapi.json", "/docs"):
            assert (await client.get(path)).status == 200
        document = (await client.get("/openapi.json")).json
        assert document["paths"][INFER]["post"]["security"] == [{"inference": []}]
        assert "security" not in document["paths"]["/v2"]["get"]

    serve(tmp_path, test, "", 'server.tokens="tokens"')


def test_a_tokens_tenant_goes_before_the_header_and_keeps_caches_apart(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(line("a", "acme") + line("b", "bolt") + line("c"))

    async def test(client: Client) -> None:
        async def cache(token: str, tenant: str = "x") -> str:
            headers = {**bearer(token), "x-tenant": tenant}
            return (await client.post("/predict/m", {"entities": [1]}, headers)).headers["x-tailcut-cache"]

        assert [await cache("a"), await cache("a", "y"), await cache("b"), await cache("b")] == [
            "miss",
            "hit",
            "miss",
            "hit",
        ]
        assert [await cache("c", "acme"), await cache("c", "bolt"), await cache("c", "z")] == ["hit", "hit", "miss"]
        assert (await client.post("/predict/m", {"entities": [1]}, bearer("c"))).status == 400

    serve(tmp_path, test, FEATURES, 'server.tokens="tokens"', 'server.tenant_header="x-tenant"')


def test_who_may_not_ask_does_not_hear_which_version_is_served(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(line("user"))

    async def test(client: Client) -> None:
        for rest in ("", "/config", "/stats", "/infer"):
            path = f"/v2/models/m/versions/other{rest}"
            ask = client.post(path, GOOD) if rest == "/infer" else client.get(path)
            assert (await ask).status == 401
        assert (await client.get("/v2/models/m/versions/other", headers=bearer("user"))).status == 404

    serve(tmp_path, test, "", 'server.tokens="tokens"')


def test_management_needs_a_token_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(line("user"))
    (tmp_path / "admins").write_text(line("admin"))

    async def test(client: Client) -> None:
        for path in (LOAD, UNLOAD):
            for headers in ({}, bearer("user")):
                assert (await client.post(path, b"", headers)).status == 401
        assert (await client.post(INFER, GOOD, bearer("admin"))).status == 200
        assert (await client.post("/v2/repository/index", b"", bearer("user"))).status == 200
        assert (await client.post(UNLOAD, b"", bearer("admin"))).status == 200
        assert (await client.post(LOAD, b"", bearer("admin"))).status == 200

    serve(tmp_path, test, "", 'server.tokens="tokens"', 'server.management_tokens="admins"')


def test_management_is_off_in_an_app_that_may_be_reached_from_anywhere(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for path in (LOAD, UNLOAD):
            answer = await client.post(path, b"")
            assert (answer.status, answer.json["code"]) == (403, "forbidden")
            assert "server.management_tokens" in answer.json["hint"]
        assert (await client.post(INFER, GOOD)).status == 200

    serve(tmp_path, test)


@pytest.mark.parametrize(
    ("address", "headers", "passes"),
    [
        ("127.0.0.1", {}, True),
        ("::1", {}, True),
        ("127.0.0.1", {"x-forwarded-for": "203.0.113.7"}, False),
        ("127.0.0.1", {"forwarded": "for=203.0.113.7"}, False),
        ("127.0.0.1", {"x-forwarded-proto": "https"}, False),
        ("127.0.0.1", {"origin": "https://evil.example"}, False),
        ("127.0.0.1", {"origin": "https://ours.example"}, True),
        ("0.0.0.0", {}, False),
        ("::", {}, False),
        ("192.0.2.1", {}, False),
        ("", {}, False),
    ],
)
def test_management_without_tokens_is_for_this_machine_only(
    tmp_path: Path, address: str, headers: dict[str, str], passes: bool
) -> None:
    manifest = deployment(tmp_path, overrides=['server.cors_origins=["https://ours.example"]'])
    guard = Guard.of(HostManifest.of(manifest), address=address)
    if passes:
        guard.management(headers)
        return
    with pytest.raises(Forbidden) as caught:
        guard.management(headers)
    assert ("mounted" in caught.value.message) == (not address)


@pytest.mark.parametrize(
    ("settings", "address", "is_open"),
    [
        ((), "127.0.0.1", False),
        (("tokens",), "127.0.0.1", True),
        (("tokens", "management_tokens"), "127.0.0.1", False),
        (("tokens",), "192.0.2.1", False),
    ],
)
def test_a_server_knows_that_tokens_do_not_keep_its_machine_from_managing_it(
    tmp_path: Path, settings: tuple[str, ...], address: str, is_open: bool
) -> None:
    for each in settings:
        (tmp_path / each).write_text(f"{hashlib.sha256(each.encode()).hexdigest()}\n")
    manifest = deployment(tmp_path, overrides=[f'server.{each}="{each}"' for each in settings])
    assert Guard.of(HostManifest.of(manifest), address=address).leaves_management_open == is_open


def test_the_file_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(auth, "monotonic", lambda: now_s)
    path = tmp_path / "tokens"
    path.write_text(line("one"))
    known = Tokens(path)
    assert (known.tenant_of("one"), known.tenant_of("two")) == ("", None)
    path.write_text(line("two", "acme"))
    os.utime(path, ns=(1, 1))
    assert known.tenant_of("one") == ""
    now_s += 2
    assert (known.tenant_of("one"), known.tenant_of("two")) == (None, "acme")
    path.write_text("nonsense\n")
    now_s += 2
    assert known.tenant_of("two") == "acme"
    path.unlink()
    now_s += 2
    assert known.tenant_of("two") == "acme"


def test_a_file_without_a_token_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    monkeypatch.setattr(auth, "monotonic", lambda: now_s)
    path = tmp_path / "tokens"
    path.write_text("# none yet\n")
    known = Tokens(path)
    path.write_text(line("one"))
    now_s += 2
    assert known.tenant_of("one") == ""
    path.write_text("")
    now_s += 2
    assert known.tenant_of("one") is None, "the file says so"
    assert [record.getMessage() for record in caplog.records] == [
        f"the file of tokens {path} has no token: all requests that need one are refused"
    ] * 2


@pytest.mark.parametrize(
    "text", ["secret\n", f"{'a' * 63}\n", f"{'a' * 64} two words\n", f"{'a' * 64} é\n", f"{NOTHING}\n"]
)
def test_a_line_that_is_no_hash_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokens"
    path.write_text("# one\n" + text)
    with pytest.raises(StartError) as caught:
        read_tokens(path)
    assert "line 2" in caught.value.message
    assert "secret" not in str(caught.value)
    assert "sha256sum" in caught.value.hint


def test_a_file_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be read"):
        Guard.of(HostManifest.of(deployment(tmp_path, overrides=['server.tokens="nowhere"'])), address="127.0.0.1")


def test_a_token_that_is_no_text_is_unknown() -> None:
    class Nobody(Tokens):
        def __init__(self) -> None:
            self._known = {}
            self._next_s = float("inf")

    with pytest.raises(Unauthorized):
        Guard(Nobody()).inference({"authorization": "Bearer \udcff"})


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ('server.tls_cert="c.pem"', "server.tls_cert is set but server.tls_key is not"),
        ('server.tls_key="k.pem"', "server.tls_key is set but server.tls_cert is not"),
        ('server.cors_origins=["https://a.example/path"]', "is not an origin"),
        ('server.cors_origins=["a.example"]', "is not an origin"),
        ('server.idle="0s"', "server.idle is 0s"),
        ('server.max_body="0B"', "server.max_body is 0 bytes"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, setting: str, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        deployment(tmp_path, overrides=[setting])


def test_one_file_for_both_kinds_of_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"is also the file of server.tokens"):
        deployment(tmp_path, overrides=['server.tokens="t"', 'server.management_tokens="t"'])


def test_management_without_tokens_is_for_names_that_no_other_site_may_have() -> None:
    guard = Guard(local=True)
    for headers in ({"host": "127.0.0.1:8700"}, {"host": "localhost"}, {}):  # gRPC sends no host
        guard.management(headers)
    with pytest.raises(Forbidden, match=r"not for evil\.example:8700"):
        guard.management({"host": "evil.example:8700"})
