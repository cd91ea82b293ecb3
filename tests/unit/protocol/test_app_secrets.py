"""What the user's own code says reaches the log and never a client; each reply names the incident in the log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import FEATURES, INFER, Client, deployment, running

from tailcut.models import variant_loader
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime

SECRET = "the password is hunter2"
HOOKS = f"""
def values(keys, context):
    raise RuntimeError({SECRET!r})

def refuse(rows):
    raise ValueError({SECRET!r})

def fail(rows):
    raise AttributeError({SECRET!r})

def postprocess(outputs):
    raise KeyError({SECRET!r})
"""
GROUP = FEATURES.replace("app_hooks", "secret_hooks")
ROWS = {"rows": [{"id": 1, "value": 1}]}


def serve(test: Callable[[Client], Awaitable[None]], directory: Path, more: str, *overrides: str) -> None:
    async def main() -> None:
        async with running(deployment(directory, more, overrides)) as client:
            await test(client)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("more", "override", "body", "status", "says"),
    [
        (
            FEATURES.replace("app_hooks", "secret_hooks"),
            "",
            {"entities": [1]},
            503,
            r'feature group "values" is unavailable .*\(RuntimeError\)$',
        ),
        ("", 'model.preprocess="secret_hooks:refuse"', ROWS, 400, r"preprocess refuses the rows \(ValueError\)$"),
        ("", 'model.preprocess="secret_hooks:fail"', ROWS, 500, r"preprocess failed \(AttributeError\)$"),
        ("", 'model.postprocess="secret_hooks:postprocess"', ROWS, 500, r"postprocess failed \(KeyError\)$"),
    ],
)
def test_the_text_of_an_exception_goes_to_the_log_only(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    more: str,
    override: str,
    body: Any,
    status: int,
    says: str,
) -> None:
    (tmp_path / "secret_hooks.py").write_text(HOOKS)

    async def test(client: Client) -> None:
        for _ in range(2):
            answer = await client.post("/predict/m", body)
            assert answer.status == status
            assert re.search(says, answer.json["error"])
            assert "hunter2" not in answer.body.decode()
        assert f"[{answer.json['incident']}]" in caplog.text
        assert "hunter2" in caplog.text

    serve(test, tmp_path, more, *filter(None, [override]))


def test_what_the_models_library_says_is_no_clients_business_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyRuntime(StubRuntime())
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: faulty)
    good = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}

    async def test(client: Client) -> None:
        faulty.fail(ValueError(SECRET))
        answer = await client.post(INFER, good)
        assert answer.json["error"] == "the model failed on a batch of 1 rows (ValueError)"
        assert f"[{answer.json['incident']}] infer failed: " in caplog.text
        assert "hunter2" in caplog.text

    serve(test, tmp_path, "", 'pool.executor="inline"')


WRONG = """
def preprocess(rows):
    value = rows[0]["value"]
    if value == 10:
        raise AttributeError("ten")
    if value == 11:
        raise AttributeError("eleven")
    return {"x": [[value, 0]]} if value < 0 else [value]
"""


def test_failures_of_other_lines_and_for_other_reasons_are_incidents_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "wrong_hooks.py").write_text(WRONG)
    values = [10, 11, 12, -1]

    async def test(client: Client) -> None:
        answers = [await client.post("/predict/m", {"rows": [{"id": 1, "value": one}]}) for one in [*values, *values]]
        assert {answer.status for answer in answers} == {500}
        incidents = [answer.json["incident"] for answer in answers]
        assert len(set(incidents)) == 4
        assert incidents[:4] == incidents[4:], "one reason is one incident"
        for answer in answers:
            first = next(r.getMessage() for r in caplog.records if f"[{answer.json['incident']}]" in r.getMessage())
            assert answer.json["error"] in first

    serve(test, tmp_path, "", 'model.preprocess="wrong_hooks:preprocess"')


def test_a_request_that_is_merely_wrong_is_no_incident(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/predict/m", {"rows": [{"id": 1}]})
        assert answer.status == 400
        assert "incident" not in answer.json
        assert caplog.records == []

    serve(test, tmp_path, "")
