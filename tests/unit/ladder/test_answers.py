"""The answers of a rung beside the pilot's: what was compared, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import TracebackType
from typing import Any

import msgspec
import pytest
from tests.unit.ladder.ladder_sample import sample

from tailcut.errors import ManifestError
from tailcut.ladder.climb import compare_rungs, describe_answers
from tailcut.parity.analysis.comparing import ParityReply
from tailcut.parity.analysis.mapping import FieldPair, parse_pair
from tailcut.parity.payloads import Payload
from tailcut.report.document import terminal
from tailcut.report.ladder.document import ladder_document
from tailcut.report.ladder.file import RungParity, RungRecord

REPLIES = {"pilot": {"probability": 2.0, "z": 1.0}, "rung": {"predictions": [{"risk": 1.0, "z": 1.0}]}}


class Asker:
    """Answers as the pilot or as the rung, by the URL."""

    def __init__(self, url: str, **_: Any) -> None:
        self.url = url

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        return

    def ask(self, body: bytes, path: str = "") -> ParityReply:
        return ParityReply(200, REPLIES[self.url], "")


class Bench:
    """Starts nothing."""

    @contextmanager
    def server(self, _: Any) -> Iterator[None]:
        yield

    def url(self, server: None, *, pilot: bool) -> str:
        return "pilot" if pilot else "rung"


def asked(monkeypatch: pytest.MonkeyPatch, *pairs: FieldPair) -> RungParity:
    monkeypatch.setattr(import_module("tailcut.ladder.climb"), "Asker", Asker)
    rung = RungRecord(name="first")
    payloads = [Payload("", b"{}", {"rows": [{"x": 1}]})] * 4
    compare_rungs(Bench(), [rung], payloads, pairs, lambda _: None)  # type: ignore[arg-type]
    assert rung.parity is not None
    return rung.parity


def shown(found: RungParity) -> str:
    made = sample()
    rung = msgspec.structs.replace(made.rungs[1], parity=found)
    return terminal(ladder_document(msgspec.structs.replace(made, rungs=(made.rungs[0], rung))))


def test_outputs_that_were_not_compared_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an output under another name at the pilot; then the log and the table say that it was left out."""
    found = asked(monkeypatch)
    assert describe_answers(found) == "the pilot's answers to 4 requests; not compared: risk"
    assert "0 of 4; not compared: risk" in shown(found)
    found = asked(monkeypatch, parse_pair("probability=risk"), parse_pair("z=z"))
    assert "4 of 4, max 1" in shown(found)
    assert "not compared" not in shown(found)


def test_a_pair_that_no_reply_has_ends_the_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ManifestError, match="no reply of the pilot has 'chance'"):
        asked(monkeypatch, parse_pair("chance=risk"))
