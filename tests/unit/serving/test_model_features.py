"""A model whose features another model of the same server computes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import Client, counters
from tests.chain_kit import CHILD, PARENT, PRIORS, add_chain, scaled

from tailcut.errors import ManifestError
from tailcut.manifest.host import load_host
from tailcut.serving.served_model import LocalModel
from tailcut.transport.asgi import ASGIApplication


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of both models."""
    return add_chain(tmp_path)


def serve(folder: Path, test: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        app = ASGIApplication(load_host([folder], environment={}))
        await app.start()
        try:
            await test(Client(app))
        finally:
            await app.stop()

    asyncio.run(main())


async def predict(client: Client, *texts: str) -> Any:
    return await client.post("/predict/parent", {"entities": list(texts)})


def asked(client: Client) -> list[list[str]]:
    """The texts of each call of the child's preprocess since the start."""
    hook: Any = client.app.host.engine("child").opened.code.preprocess
    found: list[list[str]] = hook.__globals__["calls"]
    return found


def test_the_columns_are_what_the_other_model_answers(folder: Path) -> None:
    async def test(client: Client) -> None:
        answer = await predict(client, "abc", "de")
        assert answer.status == 200, answer.json
        assert [each["y"] for each in answer.json["predictions"]] == [[60, 20, 10, 1000], [40, 20, 10, 1000]]
        counted = await counters(client, "tailcut_requests_total")
        assert sum(count for labels, count in counted.items() if "features" in labels) == 1, "one call for both keys"

    serve(folder, test)


def test_a_text_is_computed_once_for_all_who_ask_at_once_and_later(folder: Path) -> None:
    async def test(client: Client) -> None:
        before = len(asked(client))
        answers = await asyncio.gather(*(predict(client, "same") for _ in range(100)))
        assert {answer.status for answer in answers} == {200}
        assert (await predict(client, "same")).status == 200
        assert asked(client)[before:] == [["same"]]

    serve(folder, test)


def test_a_text_that_the_model_refuses_is_the_clients_error_and_hurts_no_other(folder: Path) -> None:
    async def test(client: Client) -> None:
        good, bad = await asyncio.gather(predict(client, "fine"), predict(client, "bad"))
        assert good.status == 200
        assert (bad.status, bad.json["code"]) == (400, "bad_request")
        assert 'feature group "text"' in bad.json["error"]
        assert "model 'child'" in bad.json["error"]

    serve(folder, test)


def test_a_burst_of_new_texts_gets_as_many_answers_as_the_model_has_room_for(folder: Path) -> None:
    """Given a queue of 2 rows, when 40 texts are missed at once, then some are answered and the others are 429."""
    manifest = folder / "child" / "tailcut.toml"
    manifest.write_text(f"{CHILD}[batching]\nmax_rows = 1\nmax_queue_rows = 2\n")

    async def test(client: Client) -> None:
        before = len(asked(client))
        answers = await asyncio.gather(*(predict(client, f"text {number}") for number in range(40)))
        assert {answer.status for answer in answers} == {200, 429}
        assert all(len(texts) == 1 for texts in asked(client)[before:]), "a call is one batch"
        shed = next(answer for answer in answers if answer.status == 429)
        assert (shed.json["code"], "retry-after" in shed.headers) == ("shed", True)
        assert 'feature group "text"' in shed.json["error"]
        text = f"text {answers.index(shed)}"
        assert (await predict(client, text)).status == 200, "nothing of it is kept"

    serve(folder, test)


def test_without_the_model_its_cached_values_answer_and_others_are_503(folder: Path) -> None:
    async def test(client: Client) -> None:
        assert (await predict(client, "known")).status == 200
        client.app.host.unload("child")
        known, new = await predict(client, "known"), await predict(client, "new")
        assert known.status == 200
        assert (new.status, new.json["code"]) == (503, "feature_unavailable")
        assert 'feature group "text"' in new.json["error"]
        await client.app.host.load("child")
        assert (await predict(client, "newer")).status == 200

    serve(folder, test)


def test_another_version_of_the_model_makes_cached_answers_unreachable(folder: Path) -> None:
    async def test(client: Client) -> None:
        first = await predict(client, "abc")
        scaled(folder / "child" / "model.onnx", 3.0, 3)
        client.app.host.unload("child")
        await client.app.host.load("child")
        second = await predict(client, "abc")
        assert [each.json["predictions"][0]["y"][0] for each in (first, second)] == [60, 90]

    serve(folder, test)


def test_the_model_has_the_callers_deadline_less_what_the_caller_needs_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    plain = LocalModel.predict

    async def predicted(self: LocalModel, rows: Any, deadline_s: float, tenant: str) -> list[Any]:
        seen.append(deadline_s - asyncio.get_running_loop().time())
        return await plain(self, rows, deadline_s, tenant)

    monkeypatch.setattr(LocalModel, "predict", predicted)
    manifest = folder / "parent" / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace("[features]", '[features]\ntimeout = "10s"\ncache = "off"'))

    async def test(client: Client) -> None:
        headers, body = {"x-tailcut-timeout-ms": "9000"}, {"entities": ["abc"]}
        assert (await client.post("/predict/parent", body, headers)).status == 200
        assert 8.0 < seen[-1] < 9.0
        costs = client.app.host.engine("parent").pipeline.dispatcher.costs
        for _ in range(50):
            costs.observe(1, 3_000_000_000)
        assert (await client.post("/predict/parent", {"entities": ["new"]}, headers)).status == 200
        assert 4.5 < seen[-1] <= 6.0

    serve(folder, test)


def test_circles_and_models_that_are_not_served_are_refused(folder: Path) -> None:
    manifest = folder / "child" / "tailcut.toml"
    group = '[features]\nentity = ["text"]\n[[features.groups]]\nname = "g"\nmodel = "parent"\n'
    manifest.write_text(f'{CHILD}{group}key = ["text"]\ncolumns = ["z"]\nttl = "1h"\n')
    with pytest.raises(ManifestError, match="child -> parent -> child"):
        load_host([folder], environment={})
    manifest.write_text(CHILD.replace('"child"', '"other"'))

    async def test(client: Client) -> None:
        answer = await predict(client, "abc")
        assert answer.status == 503
        assert "model 'child' is not served here" in answer.json["error"]

    serve(folder, test)


def test_a_circle_that_arises_by_loads_is_refused(folder: Path) -> None:
    """Each manifest is judged beside the others as they were loaded, not as they were at the start."""
    parent, child = folder / "parent" / "tailcut.toml", folder / "child" / "tailcut.toml"
    group = '[features]\nentity = ["text"]\n[[features.groups]]\nname = "g"\nmodel = "parent"\n'
    apart = PARENT.replace('model = "child"', 'function = "parent_features:embeddings"')
    (folder / "parent" / "parent_features.py").write_text(
        f"{PRIORS}def embeddings(keys, context):\n    return [{{'embedding': 1.0}} for _ in keys]\n"
    )

    async def test(client: Client) -> None:
        host = client.app.host
        scaled(folder / "parent" / "model.onnx", 10.0, 2)
        for name, file, text in (
            ("parent", parent, apart.replace("[-1, 4]", "[-1, 2]")),
            ("child", child, f'{CHILD}{group}key = ["text"]\ncolumns = ["z"]\nttl = "1h"\n'),
        ):
            host.unload(name)
            file.write_text(text)
            await host.load(name)
        host.unload("parent")
        parent.write_text(PARENT)
        with pytest.raises(ManifestError, match="in a circle"):
            await host.load("parent")

    serve(folder, test)
