"""Parity: payloads as they are read, and requests as they are sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tailcut.errors import LoadTestError, ManifestError
from tailcut.manifest import load
from tailcut.parity.analysis.request_form import AS_IT_IS, parse_form
from tailcut.parity.asking import Asker, exchange, exchange_all
from tailcut.parity.matching import NothingCompared, choose_form, choose_pairs, takes_of
from tailcut.parity.payloads import Payload, read_payloads
from tailcut.parity.run import deployment_asker

MANIFEST = """
name = "m"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4] }]
outputs = [{ name = "y" }]
"""


class Site(BaseHTTPRequestHandler):
    """Answers by the path: what was sent, "not now" once, a page, or nothing at all."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, bytes]]] = []
    release: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.path, body))
        busy = self.path == "/busy" and len(self.seen) % 2 == 1
        if self.path == "/hanging":
            self.release.wait()
        if self.path in {"/silent", "/hanging"}:
            self.close_connection = True
            return
        content = b"<html>" if self.path == "/page" else body
        denied = self.path == "/predict/m" and self.headers["Authorization"] != "Bearer t0ken"
        self.send_response(401 if denied else 503 if busy else 200)
        self.send_header("Content-Length", str(len(content)))
        if self.path == "/closing":
            self.close_connection = True  # without a word, as servers that recycle connections do it
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def site() -> Iterator[str]:
    Site.seen.clear()
    Site.release.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    Site.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_is_busy_is_asked_once_more(site: str) -> None:
    reply = Asker(f"{site}/busy").ask(b'{"a": 1}')
    assert (reply.status, reply.body, reply.answered) == (200, {"a": 1}, True)
    assert len(Site.seen) == 2


def test_a_server_that_closes_its_connections_is_asked_on_new_ones(site: str) -> None:
    asker = Asker(f"{site}/closing")
    assert [asker.ask(b"[%d]" % place).body for place in range(3)] == [[0], [1], [2]]


def test_a_request_that_times_out_is_not_sent_again(site: str) -> None:
    """The time-out is that of one request, and the server sees one."""
    asker = Asker(f"{site}/pilot", timeout_s=0.2)
    assert asker.ask(b"1").answered
    late = asker.ask(b"2", "/hanging")
    assert (late.status, late.answered) == (0, False)
    assert "TimeoutError" in late.text
    assert [path for path, _ in Site.seen] == ["/pilot", "/hanging"]


def test_no_reply_and_no_json_are_no_answers(site: str) -> None:
    asker = Asker(site)
    silent, page = asker.ask(b"1", "/silent"), asker.ask(b"1", "/page")
    assert (silent.status, silent.answered) == (0, False)
    assert silent.text.startswith("no reply")
    assert (page.status, page.body, page.text, page.answered) == (200, None, "<html>", False)


@pytest.mark.parametrize("path", ["predict", "/a b", "/prédire"])
def test_a_path_that_makes_no_url_is_refused_before_anything_is_asked(path: str) -> None:
    with pytest.raises(LoadTestError, match="the URL"):
        Asker("http://127.0.0.1:1", path)


def test_requests_go_to_both_sides_in_their_order(site: str) -> None:
    """Given two workers; then the exchanges are in the order of the payloads, each asked in its own form."""
    payloads = [Payload("", b'{"ids": [%d]}' % place, {"ids": [place]}) for place in range(12)]
    pilot, ours = Asker(f"{site}/pilot"), Asker(f"{site}/ours")
    found = exchange_all(payloads, pilot, ours, parse_form(["entities=ids[]"]), concurrency=2)
    assert [one.number for one in found] == list(range(1, 13))
    assert [one.theirs.body for one in found] == [{"ids": [place]} for place in range(12)]
    assert [one.ours.body for one in found] == [{"entities": [place]} for place in range(12)]
    assert all(one.rows == 1 for one in found)


def test_a_request_without_what_is_asked_for_is_not_sent(site: str) -> None:
    pilot, ours = Asker(f"{site}/pilot"), Asker(f"{site}/ours")
    found = exchange(1, Payload("/other", b'{"b": 1}', {"b": 1}), pilot, ours, AS_IT_IS)
    assert (found.ours.status, found.rows) == (400, 0)
    assert [path for path, _ in Site.seen] == ["/other"]


def test_a_deployment_with_tokens_is_asked_with_its_header_or_the_flag_is_named(site: str, folder: Path) -> None:
    deployment = load(folder).deployment
    payload = Payload("", b'{"rows": [{"x": 1}]}', {"rows": [{"x": 1}]})
    pilot = Asker(f"{site}/pilot")
    form = choose_form([payload], takes_of(deployment))
    assert form == AS_IT_IS
    ours = deployment_asker(site, deployment, 5.0, [("Authorization", "Bearer t0ken")])
    assert exchange(1, payload, pilot, ours, form).ours.answered
    ours = deployment_asker(site, deployment, 5.0)
    with pytest.raises(NothingCompared, match="the deployment 401") as caught:
        choose_pairs([exchange(1, payload, pilot, ours, form)])
    assert caught.value.hint.startswith("--deployment-header 'Authorization: Bearer ...'")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    (tmp_path / "parity_traffic.py").write_text(
        "def bodies(seed):\n    while True:\n        seed += 1\n        yield '/at', {'n': seed}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_payloads_are_of_a_log_or_of_a_function(folder: Path) -> None:
    manifest, log = load(folder), folder / "log.jsonl"
    log.write_text('{"n": 1}\n\n{"n": 2}\n{"n": 3}\n')
    assert [one.body for one in read_payloads(manifest, str(log), 2, 0)] == [{"n": 1}, {"n": 2}]
    log.write_text("\n".join(json.dumps({"time": 9 - place, "payload": {"n": place}}) for place in range(3)))
    assert [one.body for one in read_payloads(manifest, str(log), 9, 0)] == [{"n": 2}, {"n": 1}, {"n": 0}]
    made = read_payloads(manifest, "parity_traffic:bodies", 3, 5)
    assert [(one.path, one.body) for one in made] == [("/at", {"n": 6}), ("/at", {"n": 7}), ("/at", {"n": 8})]


def test_payloads_that_are_missing_are_refused(folder: Path) -> None:
    with pytest.raises(ManifestError, match="no payloads are given"):
        read_payloads(load(folder), "", 3, 0)
    (folder / "parity_text.py").write_text("def bodies(seed):\n    yield 'no JSON'\n")
    with pytest.raises(ManifestError, match="--payloads: the body of request 1 is not JSON"):
        read_payloads(load(folder), "parity_text:bodies", 3, 0)
    with pytest.raises(ManifestError, match="--payloads: cannot read the payloads"):
        read_payloads(load(folder), "nowhere.jsonl", 3, 0)
