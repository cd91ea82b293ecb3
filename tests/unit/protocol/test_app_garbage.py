"""A request that fails leaves nothing for the garbage collector: in overload, failures are what there is most of.

An exception knows the frames that it came through. Where one of them knows the exception, all that those frames hold
(bodies, tensors, connections) stays until a collection, which comes the later, the more of it there is.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import FEATURES, GOOD, INFER, PATIENT, Client, deployment, running
from tests.unit.protocol.test_app_errors import ROW, THREAD, WRONG, tensor
from tests.wait_kit import until

from tailcut.errors import InferenceError, TailcutError
from tailcut.models import variant_loader
from tailcut.models.batch_item import BatchItem
from tailcut.models.runtimes import open_runtime
from tailcut.pipeline.request_context import RequestContext
from tailcut.testing.runtimes import FaultyRuntime

pytestmark = pytest.mark.slow

PREDICT = "/predict/m"
HASTY = {"x-tailcut-timeout-ms": "30"}
HOOKS = """
def preprocess(rows):
    raise {error}

def values(keys, context):
    raise OSError("the source is down")
"""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Log nothing: pytest keeps the tracebacks of what is logged."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> list[FaultyRuntime]:
    """The runtimes of the deployment."""
    opened: list[FaultyRuntime] = []

    def faulty(*arguments: Any, **options: Any) -> FaultyRuntime:
        opened.append(FaultyRuntime(open_runtime(*arguments, **options)))
        return opened[-1]

    monkeypatch.setattr(variant_loader, "open_runtime", faulty)
    return opened


@contextmanager
def uncollected() -> Iterator[Callable[[], Counter[str]]]:
    """Collect nothing meanwhile; yields what counts by kind what is left of requests."""

    def requests() -> list[Any]:
        return [each for each in gc.get_objects() if issubclass(type(each), RequestContext | BatchItem | TailcutError)]

    gc.collect()
    gc.disable()
    try:
        before = requests()  # of tests that failed, say
        known = {id(each) for each in before}
        yield lambda: Counter(type(each).__name__ for each in requests() if id(each) not in known)
    finally:
        gc.enable()


def serve(
    folder: Path, test: Callable[[Client], Awaitable[None]], *overrides: str, more: str = "", **hooks: Any
) -> None:
    """Run a test, whose first requests are not looked at, since what is made once stays."""
    manifest = deployment(folder, more, overrides)
    (folder / f"{folder.name}.py").write_text(HOOKS.format(**hooks) if hooks else "")

    async def main() -> None:
        async with running(manifest) as client:
            await test(client)
            with uncollected() as left:
                await test(client)
                with suppress(TimeoutError):
                    await until(lambda: not left())  # an executor's thread lets go once it has its turn
                assert left() == {}

    asyncio.run(main())


def test_requests_that_are_wrong(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for method, path, body, headers, status, *_ in WRONG:
            assert (await client.request(method, path, body, headers)).status == status

    serve(tmp_path, test, "server.max_body=200000", more=FEATURES)


@pytest.mark.parametrize("kind", ["inline", "thread"])
@pytest.mark.parametrize("error", [InferenceError, ValueError, SystemExit])
def test_a_model_that_fails(
    tmp_path: Path, faulty: list[FaultyRuntime], kind: str, error: Callable[[str], BaseException]
) -> None:
    async def test(client: Client) -> None:
        for path, body in ((INFER, tensor()), (INFER, GOOD), (PREDICT, {"rows": [ROW]})):
            for _ in range(9):
                faulty[0].fail(error("no"))
            answers = await asyncio.gather(client.post(path, body), client.post(path, body))
            assert {answer.status for answer in answers} <= {500, 200}
            while (await client.post(path, body)).status == 500:
                continue

    serve(tmp_path, test, f'pool={{executor="{kind}", executors=1}}', *PATIENT)


def test_no_answer_before_the_deadline(tmp_path: Path, faulty: list[FaultyRuntime]) -> None:
    async def test(client: Client) -> None:
        faulty[0].hang()
        answers = await asyncio.gather(*[client.post(INFER, GOOD, HASTY) for _ in range(4)])
        assert {answer.json["code"] for answer in answers} == {"infer_timeout", "queue_timeout"}
        faulty[0].release()
        assert (await client.post(INFER, GOOD)).status == 200

    serve(tmp_path, test, THREAD, *PATIENT)


@pytest.mark.parametrize("more", ["", FEATURES], ids=["plain", "recalls"])
def test_no_room(tmp_path: Path, faulty: list[FaultyRuntime], more: str) -> None:
    settings = ['serve.fallback=["stale"]', "cache.entity.stale_for=60s"] if more else []

    async def test(client: Client) -> None:
        faulty[0].hang()
        first = [asyncio.create_task(client.post(INFER, GOOD)) for _ in range(12)]
        path, body = (PREDICT, {"entities": [7]}) if more else (INFER, GOOD)
        async with asyncio.timeout(30):
            while client.app.engine.pipeline.serving.dispatcher.scheduler.waiting.rows < 16:
                await asyncio.sleep(0)
        for _ in range(3):
            assert (await client.post(path, body)).status == 429
        faulty[0].release()
        assert {answer.status for answer in await asyncio.gather(*first)} == {200, 429}

    serve(tmp_path, test, THREAD, *PATIENT, *settings, more=more)


def test_a_client_that_leaves(tmp_path: Path, faulty: list[FaultyRuntime]) -> None:
    async def test(client: Client) -> None:
        faulty[0].hang()
        leaving = [client.connect("POST", INFER) for _ in range(3)]
        for each in leaving:
            each.send(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}')
        answers = [asyncio.create_task(each.answer()) for each in leaving]
        assert await asyncio.to_thread(faulty[0].entered.wait, 20)
        for each in leaving:
            each.disconnect()
        assert [answer.status for answer in await asyncio.gather(*answers)] == [499] * 3
        faulty[0].release()
        assert (await client.post(INFER, GOOD)).status == 200

    serve(tmp_path, test, THREAD, *PATIENT)


@pytest.mark.parametrize("error", ['ValueError("no")', 'OSError("no")', "SystemExit(3)"])
def test_hooks_and_sources_that_fail(tmp_path: Path, error: str) -> None:
    async def test(client: Client) -> None:
        for _ in range(4):
            assert (await client.post(PREDICT, {"rows": [ROW]})).status in {400, 500}
            assert (await client.post(PREDICT, {"entities": [1]})).status in {400, 500, 503}

    module = tmp_path.name
    more = FEATURES.replace("app_hooks", module)
    serve(tmp_path, test, f'model.preprocess="{module}:preprocess"', *PATIENT, more=more, error=error)
