"""The lifecycle of a request, without a protocol: who asks, until when, and the one end, however it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest
from tests.app_kit import deployment
from tests.wait_kit import until

from tailcut.errors import BadRequest, InferenceError, NotFound, TailcutError
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.auth import Guard
from tailcut.protocol.data_plane import DataPlane, ModelPlane
from tailcut.serving.host import Host

Work = Callable[[RequestContext, Mapping[str, str], Any], Awaitable[object]]
MS = 1_000_000


class Notes:
    """A door whose replies are what it was told."""

    def answered(self, context: RequestContext, headers: object, answer: object) -> tuple[object, str]:
        return answer, context.tenant

    def failed(self, context: RequestContext, headers: object, error: TailcutError, incident: str) -> tuple[str, str]:
        return error.code, incident


class Tenants(Guard):
    """Everybody's token names the tenant ``acme``."""

    def __init__(self) -> None:
        super().__init__()
        self.asks = True

    def inference(self, headers: object) -> str:
        return "acme"


def plane(directory: Path, *overrides: str, guard: Guard | None = None) -> ModelPlane:
    return DataPlane(Host.of(deployment(directory, overrides=overrides)), guard).model("m")


def ends(model: ModelPlane) -> dict[str, int]:
    """Requests that have ended, by code."""
    assert model.engine.in_flight == {}
    return {key[2]: count for key, count in model.engine.recorder.requests.items() if count}


def answer(model: ModelPlane, work: Work, headers: Mapping[str, str] | None = None) -> Any:
    return asyncio.run(model.answer(Notes(), "predict", work, headers or {}, None))


async def identify_only(model: ModelPlane, headers: Mapping[str, str], left_ns: int = 0) -> RequestContext:
    found: list[RequestContext] = []

    async def work(context: RequestContext, headers: Mapping[str, str], source: None) -> None:
        model.identify(context, headers, left_ns)
        found.append(context)

    await model.answer(Notes(), "predict", work, headers, None)
    return found[0]


@pytest.mark.parametrize(
    ("error", "code", "logged"),
    [
        (BadRequest("no"), "bad_request", False),
        (InferenceError("broken"), "inference_failed", True),
        (ZeroDivisionError(), "internal", True),
    ],
)
def test_a_request_that_fails_is_answered_logged_and_counted_once(
    tmp_path: Path, error: Exception, code: str, logged: bool
) -> None:
    model = plane(tmp_path)

    async def work(context: RequestContext, headers: Mapping[str, str], source: None) -> None:
        raise error

    said, incident = answer(model, work)
    assert said == code
    assert bool(incident) is logged
    assert ends(model) == {code: 1}


@pytest.mark.parametrize(("asked", "code"), [("60000", "client_gone"), ("0.001", "deadline_exceeded")])
def test_a_cancelled_request_ends_as_its_clients_or_as_its_deadlines(tmp_path: Path, asked: str, code: str) -> None:
    model = plane(tmp_path)

    async def work(context: RequestContext, headers: Mapping[str, str], source: None) -> None:
        model.identify(context, headers)
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        asking = asyncio.ensure_future(model.answer(Notes(), "predict", work, {"x-tailcut-timeout-ms": asked}, None))
        await until(lambda: any(perf_counter_ns() > each.timings.start_ns + MS for each in model.engine.in_flight))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(main())
    assert ends(model) == {code: 1}


def test_the_shortest_deadline_that_is_asked_for_counts_up_to_the_largest(tmp_path: Path) -> None:
    model = plane(tmp_path, 'server.max_timeout="20s"')

    def left_ms(context: RequestContext) -> float:
        return (context.deadline_ns - context.timings.start_ns) / MS

    async def main() -> None:
        usual = await identify_only(model, {})
        assert left_ms(usual) == model.engine.timeout_ns / MS
        header = {"x-tailcut-timeout-ms": "900"}
        assert left_ms(await identify_only(model, header)) == 900
        assert left_ms(await identify_only(model, header, 300 * MS)) == 300
        shorter = await identify_only(model, header, 1300 * MS)
        assert left_ms(shorter) == 900
        model.bound_by_body(shorter, 200 * MS)
        model.bound(shorter, 800 * MS)
        assert left_ms(shorter) == 200
        assert left_ms(await identify_only(model, {"x-tailcut-timeout-ms": "900000"})) == 20_000

    asyncio.run(main())


def test_the_tenant_of_a_token_goes_before_the_headers(tmp_path: Path) -> None:
    async def main() -> None:
        setting = 'server.tenant_header="x-tenant"'
        headers = {"x-tenant": "other"}
        assert (await identify_only(plane(tmp_path, setting), headers)).tenant == "other"
        assert (await identify_only(plane(tmp_path, setting, guard=Tenants()), headers)).tenant == "acme"

    asyncio.run(main())


def test_a_model_has_one_part_of_the_data_plane(tmp_path: Path) -> None:
    found = DataPlane(Host.of(deployment(tmp_path)))
    assert found.model("m") is found.model("m")
    with pytest.raises(NotFound, match="this server has 'm'"):
        found.model("other")


def test_a_reply_that_cannot_be_made_is_an_error_and_ends_once(tmp_path: Path) -> None:
    class Broken(Notes):
        def answered(self, context: RequestContext, headers: object, answer: object) -> tuple[object, str]:
            raise ZeroDivisionError

    model = plane(tmp_path)

    async def work(context: RequestContext, headers: Mapping[str, str], source: None) -> None:
        context.is_streamed = True

    said, incident = asyncio.run(model.answer(Broken(), "predict", work, {}, None))
    assert said == "internal"
    assert incident
    assert ends(model) == {"internal": 1}
