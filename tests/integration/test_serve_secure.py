"""TLS, tokens and management of a real server, over its socket."""

from __future__ import annotations

import hashlib
import http.client
import json
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import GOOD, INFER
from tests.integration.serving import HOST, Served

pytestmark = pytest.mark.integration

LOAD = "/v2/repository/models/m/load"
UNLOAD = "/v2/repository/models/m/unload"


class Secure(Served):
    """A server that speaks TLS."""

    cert: Path

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        context = ssl.create_default_context(cafile=self.cert)
        connection = http.client.HTTPSConnection(HOST, self.port, timeout=30, context=context)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
        finally:
            connection.close()


def make_certificate(directory: Path, name: str = "tls") -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority."""
    cert, key = directory / f"{name}.crt", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=tailcut"]
    command += ["-addext", f"subjectAltName=IP:{HOST}"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    return cert, key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Secure.cert, _ = make_certificate(tmp_path)
    return tmp_path


TLS = ('server.tls_cert="tls.crt"', 'server.tls_key="tls.key"')


def test_tls_with_tokens(folder: Path) -> None:
    for name in ("user", "admin"):
        (folder / f"{name}s").write_text(hashlib.sha256(name.encode()).hexdigest() + "\n")
    settings = (*TLS, 'server.tokens="users"', 'server.management_tokens="admins"')
    with Secure(folder, settings=settings) as server:
        assert f"https://{HOST}:{server.port}" in server.log
        user, admin = ({"authorization": f"Bearer {name}"} for name in ("user", "admin"))
        assert server.request("POST", INFER, GOOD)[0] == 401
        assert server.request("POST", INFER, GOOD, user)[0] == 200
        assert server.request("POST", UNLOAD, {}, user)[0] == 401
        assert server.request("POST", UNLOAD, {}, admin)[0] == 200
        assert server.request("POST", INFER, GOOD, user)[0] == 503
        assert server.request("POST", LOAD, {}, admin)[0] == 200
        assert server.request("POST", INFER, GOOD, user)[0] == 200
        plain = http.client.HTTPConnection(HOST, server.port, timeout=10)
        plain.request("GET", "/v2")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (('server.tls_cert="tls.crt"', 'server.tls_key="other.key"'), "are not a certificate and its key"),
        (('server.tls_cert="nowhere.crt"', 'server.tls_key="tls.key"'), "nowhere.crt cannot be read: No such file"),
        (('server.tls_cert="tls.crt"', 'server.tls_key="nowhere.key"'), "server.tls_key: "),
        (('server.tokens="nowhere"',), "the file of tokens"),
        (('server.access_log="no/folder/log"',), "the access log"),
    ],
)
def test_files_that_cannot_be_used_end_the_start(folder: Path, settings: tuple[str, ...], says: str) -> None:
    make_certificate(folder, "other")
    with Served(folder, settings=settings, wait=False) as server:
        assert server.wait() != 0
        assert says in server.log
        assert "hint:" in server.log


def test_on_loopback_management_needs_no_token_but_refuses_web_pages_and_proxies(tmp_path: Path) -> None:
    with Served(tmp_path, settings=('server.access_log="stderr"', 'server.access_log_share="100%"')) as server:
        for headers in ({"Origin": "https://evil.example"}, {"X-Forwarded-For": "203.0.113.7"}):
            assert server.request("POST", UNLOAD, None, headers)[0] == 403
        assert server.request("POST", UNLOAD)[0] == 200
        assert server.get("/v2/health/ready")[0] == 503
        assert server.request("POST", LOAD)[0] == 200
        assert server.get("/v2/health/ready")[0] == 200
        server.wait_until(lambda: '"path":"/v2/repository/models/m/load"' in server.log)


def test_beyond_loopback_management_is_off_without_tokens(tmp_path: Path) -> None:
    with Served(tmp_path, settings=('server.host="0.0.0.0"',)) as server:
        status, _, body = server.request("POST", UNLOAD)
        assert (status, json.loads(body)["code"]) == (403, "forbidden")


def test_management_is_refused_where_a_header_of_a_proxy_cannot_be_read(tmp_path: Path) -> None:
    """A proxy appends the client's address to what the client sent: its value may hold any byte."""
    with Served(tmp_path) as served:
        for name in ("x-forwarded-for", "x-real-ip", "origin"):
            connection = http.client.HTTPConnection(HOST, served.port, timeout=30)
            connection.putrequest("POST", UNLOAD)
            connection.putheader(name, b"\xff, 203.0.113.7")
            connection.putheader("content-length", "0")
            connection.endheaders()
            assert connection.getresponse().status == 403, name
            connection.close()
            assert served.get("/v2/health/ready")[0] == 200
