"""Keys that the model behind a feature group cannot answer: each is the error of its own request, and of no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.app_kit import Client
from tests.chain_kit import HOOKS, add_chain, scaled
from tests.host_kit import serve
from tests.wait_kit import until

HUGE, ODD = "huge", "odd"
FAILING = HOOKS.replace("[len(row", f'[{{"{HUGE}": 3e38, "{ODD}": -1}}.get(row["text"]) or len(row').replace(
    "    return [{", "    if (outputs['y'] < 0).any():\n        raise OSError('odd')\n    return [{"
)
"""The model answers the one text with infinity, and the hook fails for the other."""
SOURCE = """
[features]
entity = ["text"]
[[features.groups]]
name = "known"
function = "child_features:known"
key = ["text"]
columns = ["known"]
ttl = "1h"
"""
KNOWN = """
def known(keys, context):
    if any(text == "away" for (text,) in keys):
        raise ValueError("away")
    return [None if text.startswith("unknown") else {"known": 1} for (text,) in keys]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of both models."""
    add_chain(tmp_path)
    (tmp_path / "child" / "child_hooks.py").write_text(FAILING)
    return tmp_path


def add(folder: Path, name: str, before: str, more: str) -> None:
    file = folder / name / "tailcut.toml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, more + before))


def add_source(folder: Path) -> None:
    """Have the child asked by entity."""
    add(folder, "child", "[serve]", SOURCE)
    (folder / "child" / "child_features.py").write_text(KNOWN)


async def statuses(client: Client, texts: list[str]) -> dict[str, int]:
    """Ask the parent for all texts at once, each in a request of its own."""
    answers = await asyncio.gather(*(predict(client, text) for text in texts))
    return {text: answer.status for text, answer in zip(texts, answers, strict=True)}


async def predict(client: Client, text: str) -> Any:
    return await client.post("/predict/parent", {"entities": [text]})


def among_64(*texts: str) -> list[str]:
    """Spread texts among others, of 64 in all."""
    found = [f"text {number}" for number in range(64)]
    found[3 :: 64 // len(texts)] = texts
    return found


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        (HUGE, "model 'child': the model returned NaN or infinity in output 'y'", "allow_nan"),
        (ODD, "model 'child': postprocess failed (OSError)", "fix model.postprocess"),
    ],
)
def test_a_key_on_which_the_model_fails_hurts_no_other(folder: Path, text: str, says: str, hint: str) -> None:
    async def test(client: Client) -> None:
        found = await statuses(client, among_64(text))
        assert found.pop(text) == 503
        assert set(found.values()) == {200}
        alone = await predict(client, text)
        assert (alone.status, alone.json["code"]) == (503, "feature_unavailable")
        assert 'feature group "text"' in alone.json["error"]
        assert says in alone.json["error"]
        assert hint in alone.json["hint"]

    serve(folder, test)


def test_a_key_on_which_the_model_fails_makes_no_others_value_stale(folder: Path) -> None:
    """Given a value past its TTL, when the model fails on another key, then the value is fetched anew."""
    manifest = folder / "parent" / "tailcut.toml"
    short = manifest.read_text().replace('ttl = "1h"', 'ttl = "1ms"\nstale_for = "1h"')
    manifest.write_text(short.replace("[features]", "[features]\nrefresh_ahead = false"))

    async def test(client: Client) -> None:
        assert (await predict(client, "fine")).status == 200
        for _ in range(3):
            assert (await predict(client, HUGE)).status == 503
        began_s = monotonic()
        await until(lambda: monotonic() > began_s + 0.002)  # past the TTL
        fine = await predict(client, "fine")
        assert (fine.status, fine.headers["x-tailcut-cache"]) == (200, "miss")

    serve(folder, test)


def test_any_number_of_refused_keys_hurts_no_other(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    hooks = folder / "child" / "child_hooks.py"
    hooks.write_text(hooks.read_text().replace('row["text"] == "bad"', 'row["text"].startswith("bad")'))

    async def test(client: Client) -> None:
        found = await statuses(client, among_64(*(f"bad {number}" for number in range(8))))
        assert {text: status for text, status in found.items() if status != 200} == {
            f"bad {number}": 400 for number in range(8)
        }
        assert "invalid rows" not in caplog.text, "what a client sent is not for the operator"

    serve(folder, test)


def test_a_key_on_which_the_models_own_source_fails_hurts_no_other(folder: Path) -> None:
    add_source(folder)

    async def test(client: Client) -> None:
        found = await statuses(client, among_64("away"))
        assert found.pop("away") == 503
        assert set(found.values()) == {200}

    serve(folder, test)


def test_an_entity_that_the_model_does_not_know_has_no_row(folder: Path) -> None:
    add_source(folder)

    async def test(client: Client) -> None:
        found = await statuses(client, among_64(*(f"unknown {number}" for number in range(8))))
        assert {text: status for text, status in found.items() if status != 200} == {
            f"unknown {number}": 404 for number in range(8)
        }
        alone = await predict(client, "unknown")
        assert (alone.status, alone.json["code"]) == (404, "unknown_entity")
        assert alone.json["error"] == "feature group \"text\" has no row for text='unknown'"

    serve(folder, test)


def test_an_entity_that_the_model_does_not_know_has_the_groups_defaults(folder: Path) -> None:
    add_source(folder)
    hooks = folder / "child" / "child_hooks.py"
    hooks.write_text(hooks.read_text().replace('{"embedding": row}', '{"embedding": row[0]}'))
    add(folder, "parent", '[[features.groups]]\nname = "priors"', "defaults = { embedding = -1.0 }\n")
    manifest = folder / "parent" / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace("[-1, 4]", "[-1, 2]"))
    scaled(folder / "parent" / "model.onnx", 10.0, 2)

    async def test(client: Client) -> None:
        found = await statuses(client, among_64(*(f"unknown {number}" for number in range(8))))
        assert set(found.values()) == {200}
        answer = await predict(client, "unknown")
        assert answer.json["predictions"] == [{"y": [-10, 1000]}]

    serve(folder, test)
