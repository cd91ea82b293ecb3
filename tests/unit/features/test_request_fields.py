"""Fields of an entity that are in no group's key: the example of docs/how-to/features.md, as it is printed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import Client, running, save_model
from tests.docs.pages import ROOT, blocks

from tailcut.manifest import load

PAGE = ROOT / "docs" / "how-to" / "features.md"
MANIFEST = """
name = "payments"

[model]
source = "model.onnx"
{filled}

[[model.inputs]]
name = "x"
shape = [-1, 2]
{columns}

[[model.outputs]]
name = "y"

[serve]
variant = "source"
"""
HOOK = 'preprocess = "payment_hooks:preprocess"'

Ask = Callable[[Client], Coroutine[Any, Any, None]]


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., None]:
    """Serve the page's feature group with a model that adds its two inputs, and ask it."""

    def serve(test: Ask, filled: str = HOOK, columns: str = "", more: str = "", declared: str = "number") -> None:
        example = next(text for language, text in blocks(PAGE) if language == "toml" and "amount" in text)
        assert 'type = "number"' in example
        example = example.replace('type = "number"', f'type = "{declared}"')
        code = next(text for language, text in blocks(PAGE) if language == "python")
        save_model(tmp_path / "model.onnx")
        (tmp_path / "payment_hooks.py").write_text(code)
        (tmp_path / "tailcut.toml").write_text(MANIFEST.format(filled=filled, columns=columns) + example + more)

        async def run() -> None:
            async with running(load(tmp_path, environment={})) as client:
                await test(client)

        asyncio.run(run())

    return serve


async def predictions(client: Client, *entities: Any) -> list[Any]:
    reply = await client.post("/predict/payments", {"entities": list(entities)})
    assert reply.status == 200, reply.body
    return [each["y"] for each in reply.json["predictions"]]


def test_a_field_that_is_no_key_reaches_the_hook(ask: Callable[..., None]) -> None:
    async def test(client: Client) -> None:
        assert await predictions(client, {"user_id": 2, "amount": 60.0}) == [61.5]
        # The features of user 2 are cached by now; the amount is not theirs.
        assert await predictions(client, {"user_id": 2, "amount": 80.0}) == [82.0]

    ask(test)


def test_a_field_that_is_no_key_fills_a_column(ask: Callable[..., None]) -> None:
    async def test(client: Client) -> None:
        assert await predictions(client, {"user_id": 2, "amount": 60.5}) == [100.5]

    ask(test, filled="", columns='columns = ["amount", "mean_amount"]')


def test_a_field_that_is_no_key_is_a_part_of_the_cached_entity(ask: Callable[..., None]) -> None:
    async def test(client: Client) -> None:
        for amount in (60.0, 80.0, 60.0):
            assert await predictions(client, {"user_id": 2, "amount": amount}) == [amount + amount / 40]

    ask(test, more="\n[cache.entity]\nenabled = true\n")


def test_an_entity_has_exactly_the_fields_and_plain_values(ask: Callable[..., None]) -> None:
    async def test(client: Client) -> None:
        for entity, said in (
            ({"user_id": 2}, "amount"),
            ({"user_id": 2, "amount": 1, "currency": "USD"}, "currency"),
            ({"user_id": 2, "amount": None}, "amount"),
            ({"user_id": 2, "amount": -1}, "amount"),
        ):
            reply = await client.post("/predict/payments", {"entities": [entity]})
            assert (reply.status, said in reply.json["error"]) == (400, True), reply.body

    ask(test)


@pytest.mark.parametrize(("declared", "seen"), [("any", 1.0), ("number", 2.0)])
def test_a_whole_float_is_an_integer_unless_a_number_is_declared(
    ask: Callable[..., None], tmp_path: Path, declared: str, seen: float
) -> None:
    hook = "import numpy as np\n\ndef preprocess(rows):\n    "
    hook += "return {'x': np.array([[{'int': 1, 'float': 2}[type(row['amount']).__name__], 0] for row in rows])}\n"
    (tmp_path / "typed_hooks.py").write_text(hook)

    async def test(client: Client) -> None:
        assert await predictions(client, {"user_id": 2, "amount": 60.0}) == [seen]

    ask(test, filled='preprocess = "typed_hooks:preprocess"', declared=declared)


def test_a_row_of_the_request_looks_nothing_up(ask: Callable[..., None]) -> None:
    async def test(client: Client) -> None:
        lacking = await client.post("/predict/payments", {"rows": [{"user_id": 2, "amount": 60.0}]})
        assert (lacking.status, "mean_amount" in lacking.json["error"]) == (400, True), lacking.body
        whole = await client.post("/predict/payments", {"rows": [{"amount": 60.0, "mean_amount": 30.0}]})
        assert whole.json["predictions"][0]["y"] == 62.0

    ask(test)
