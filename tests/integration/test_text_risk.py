"""examples/text_risk: an encoder and a classifier on its embeddings in one server, beside the pilot."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("fastapi")

from tests.app_kit import Answer, Client, samples
from tests.host_kit import serve

from text_risk import data
from text_risk.pilot import Service, Ticket
from text_risk.prepare import DATABASE, prepare
from text_risk.traffic import board

pytestmark = pytest.mark.integration

EXAMPLE = Path(data.__file__).parent
TOLERANCE = 2e-5
"""The encoder's answers have six digits."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The example in a folder of its own, and its metrics."""
    folder = tmp_path_factory.mktemp("example") / "text_risk"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.py"))
    return folder, prepare(folder / ".artifacts")


@pytest.fixture
def folder(prepared: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A copy whose manifests and database a test may change; the models are links.

    Its timeouts are long: a stall of the machine must not end a call.
    """
    copy = tmp_path / "text_risk"
    shutil.copytree(prepared[0], copy, copy_function=os.link)
    for path in (*copy.glob("*/tailcut.toml"), copy / ".artifacts" / DATABASE):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    for path in copy.glob("*/tailcut.toml"):
        text = path.read_text().replace("[features]", '[features]\ntimeout = "9s"')
        path.write_text(text.replace('timeout = "1s"', 'timeout = "10s"'))
    return copy


async def ask(client: Client, text: str, customer: int) -> Answer:
    return await client.post("/predict/text-risk", {"entities": [{"text": text, "customer": customer}]})


def risk(answer: Answer) -> float:
    assert answer.status == 200, answer.body
    return float(answer.json["predictions"][0]["risk"])


async def embedded(client: Client) -> float:
    """Rows that the encoder has computed."""
    text = (await client.get("/metrics")).body.decode()
    of_encoder = "\n".join(line for line in text.splitlines() if line[:1] == "#" or 'model="minilm"' in line)
    return sum(samples(f"{of_encoder}\n", "tailcut_batch_rows_sum").values())


def test_text_and_each_column_are_needed(prepared: tuple[Path, dict[str, Any]]) -> None:
    accuracy = prepared[1]["accuracy"]
    whole = accuracy.pop("text and both columns")
    assert whole > 0.85
    assert max(accuracy.values()) < whole - 0.04


def test_training_and_holdout_share_no_customer_and_no_sentence() -> None:
    train, held_out = (data.tickets(each) for each in (False, True))
    assert set(train.customers.tolist()).isdisjoint(held_out.customers.tolist())
    assert set(train.texts).isdisjoint(held_out.texts)
    for subject in data.SUBJECTS.values():
        assert not any(sentence in text for sentence in subject.held_out for text in train.texts)


def test_the_same_seed_gives_the_same_traffic_and_most_texts_come_again() -> None:
    first, again, other = ([next(bodies) for _ in range(1000)] for bodies in map(board, (1, 1, 2)))
    assert first == again != other
    assert 20 < len(set(first)) < 200


def test_the_answers_are_the_pilots(folder: Path) -> None:
    """Given held-out tickets, when pilot and server are asked, then their risks agree."""
    pilot = Service(folder / ".artifacts")
    held_out = data.tickets(held_out=True)
    asked = [(held_out.texts[at], int(held_out.customers[at])) for at in range(0, 1500, 50)]
    (unknown,) = [data.CUSTOMERS]
    expected = [pilot.predict([Ticket(text=text, customer=customer)])[0] for text, customer in asked]

    async def test(client: Client) -> None:
        answers = [await ask(client, *each) for each in asked]
        assert [risk(each) for each in answers] == pytest.approx([each.risk for each in expected], abs=TOLERANCE)
        assert [each.json["predictions"][0]["call"] for each in answers] == [each.call for each in expected]
        assert (await ask(client, "Hello", unknown)).status == 404

    serve(folder, test)
    with pytest.raises(KeyError):
        pilot.predict([Ticket(text="Hello", customer=unknown)])
    assert {each.call for each in expected} == {True, False}


def test_a_text_is_embedded_once_for_a_hundred_at_once_and_for_later_ones(folder: Path) -> None:
    text = "Do you have gift wrapping?"

    async def test(client: Client) -> None:
        before = await embedded(client)
        answers = await asyncio.gather(*(ask(client, text, customer) for customer in range(100)))
        assert len({risk(each) for each in answers}) > 50, "each customer's own columns count"
        assert await embedded(client) == before + 1
        risk(await ask(client, text, 777))
        assert await embedded(client) == before + 1
        risk(await ask(client, "Do you have no gift wrapping?", 777))
        assert await embedded(client) == before + 2

    serve(folder, test)


def test_both_columns_come_from_the_database(folder: Path) -> None:
    text = "It stopped working after two days."
    with closing(sqlite3.connect(folder / ".artifacts" / DATABASE)) as connection, connection:
        late = [(9002, data.TODAY - 5, data.TODAY - 1)] * 3
        on_time = [(9002, data.TODAY - 1, data.TODAY - 5), (9002, data.TODAY - data.WINDOW_S, data.TODAY)]
        joined = {9001: data.TODAY - 40 * 30 * data.DAY_S, 9003: data.TODAY - 4 * 30 * data.DAY_S}
        joined[9002] = joined[9001]
        connection.executemany("INSERT INTO customers VALUES (?, ?)", joined.items())
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", [*late, *on_time])
    pilot = Service(folder / ".artifacts")

    async def test(client: Client) -> None:
        plain, with_late_orders, new = [risk(await ask(client, text, customer)) for customer in (9001, 9002, 9003)]
        assert with_late_orders > plain + 0.2
        assert new > plain + 0.2
        for customer, found in ((9001, plain), (9002, with_late_orders), (9003, new)):
            (expected,) = pilot.predict([Ticket(text=text, customer=customer)])
            assert found == pytest.approx(expected.risk, abs=TOLERANCE)

    serve(folder, test)


def test_without_the_encoder_known_texts_are_answered_and_others_are_503(folder: Path) -> None:
    async def test(client: Client) -> None:
        known = risk(await ask(client, "known", 1))
        client.app.host.unload("minilm")
        assert risk(await ask(client, "known", 1)) == known
        refused = await ask(client, "new", 1)
        assert (refused.status, refused.json["code"]) == (503, "feature_unavailable")
        assert 'feature group "text"' in refused.json["error"]
        await client.app.host.load("minilm")
        risk(await ask(client, "new", 1))

    serve(folder, test)


def test_where_the_encoder_sheds_the_client_gets_429_and_known_texts_are_answered(folder: Path) -> None:
    manifest = folder / "encoder" / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace("max_rows = 16", "max_rows = 1\nmax_queue_rows = 2"))

    async def test(client: Client) -> None:
        known = risk(await ask(client, "known", 1))
        *answers, again = await asyncio.gather(
            *(ask(client, f"new text {number}", 1) for number in range(60)), ask(client, "known", 1)
        )
        assert risk(again) == known
        assert {each.status for each in answers} == {200, 429}
        shed = next(each for each in answers if each.status == 429)
        assert shed.json["code"] == "shed"
        assert 'feature group "text"' in shed.json["error"]
        assert int(shed.headers["retry-after"]) >= 1

    serve(folder, test)
