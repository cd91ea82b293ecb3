"""A model whose features another model of the same server computes."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.app_kit import Client, counters
from tests.chain_kit import CHILD, HOOKS, PARENT, PRIORS, add_chain, scaled
from tests.host_kit import serve
from tests.wait_kit import until

from tailcut.errors import ManifestError, StartError
from tailcut.manifest.host import load_host
from tailcut.protocol.local_model import LocalModel

WORDS = "def words(keys, context):\n    return [{'words': 1} for _ in keys]\n"
PRIOR_GROUP = """
[[features.groups]]
name = "prior"
function = "child_features:words"
key = ["text"]
columns = ["words"]
ttl = "1h"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of both models."""
    add_chain(tmp_path)
    (tmp_path / "child" / "child_features.py").write_text(WORDS)
    return tmp_path


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

    async def predicted(self: LocalModel, rows: Any, deadline_s: float, tenant: str, *more: Any) -> Any:
        seen.append(deadline_s - asyncio.get_running_loop().time())
        return await plain(self, rows, deadline_s, tenant, *more)

    monkeypatch.setattr(LocalModel, "predict", predicted)
    manifest = folder / "parent" / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace("[features]", '[features]\ntimeout = "10s"\ncache = "off"'))

    async def test(client: Client) -> None:
        headers, body = {"x-tailcut-timeout-ms": "9000"}, {"entities": ["abc"]}
        assert (await client.post("/predict/parent", body, headers)).status == 200
        assert 8.0 < seen[-1] < 9.0
        costs = client.app.host.engine("parent").pipeline.serving.dispatcher.costs
        for _ in range(50):
            costs.observe(1, 3_000_000_000)
        assert (await client.post("/predict/parent", {"entities": ["new"]}, headers)).status == 200
        assert 4.5 < seen[-1] <= 6.0

    serve(folder, test)


def test_a_model_that_loads_beside_others_has_the_version_that_it_has_alone(folder: Path) -> None:
    """The modules of the others are none of its code."""

    async def test(client: Client) -> None:
        engines = client.app.host.engines
        beside = {name: engine.pipeline.serving.own_version for name, engine in engines.items()}
        for name in engines:
            client.app.host.unload(name)
        for name in engines:
            await client.app.host.load(name)
        assert {name: engine.pipeline.serving.own_version for name, engine in engines.items()} == beside

    serve(folder, test)


def test_an_answer_made_while_the_model_was_switched_is_not_kept_under_the_version_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given keys of the first version and a value of the second, when the first is back, then it computes anew."""
    slow = '[slo]\ntimeout = "10s"\n[features]\ntimeout = "10s"'
    edit(folder, "parent", ("[features]", slow))
    plain, factors = LocalModel.predict, [3.0]

    async def switch(client: Client, factor: float) -> None:
        scaled(folder / "child" / "model.onnx", factor, 3)
        client.app.host.unload("child")
        await client.app.host.load("child")

    async def test(client: Client) -> None:
        async def predicted(self: LocalModel, *arguments: Any) -> Any:
            if factors:
                await switch(client, factors.pop())
            return await plain(self, *arguments)

        monkeypatch.setattr(LocalModel, "predict", predicted)
        assert (await predict(client, "abc")).status == 200
        await switch(client, 2.0)
        again = await predict(client, "abc")
        assert again.json["predictions"][0]["y"][0] == 60
        assert again.headers["x-tailcut-cache"] == "miss"

    serve(folder, test)


def test_what_the_model_made_from_stale_features_is_not_kept(folder: Path) -> None:
    """Given a model whose own source is down, then its answers are passed on, and asked for again."""
    group = PRIOR_GROUP.replace('ttl = "1h"', 'ttl = "1ms"\nstale_for = "1h"')
    edit(folder, "child", ("[serve]", f"[features]\nentity = ['text']\nrefresh_ahead = false\n{group}[serve]"))
    (folder / "child" / "child_features.py").write_text(
        "down = []\n\ndef words(keys, context):\n    if down:\n        raise OSError('away')\n"
        "    return [{'words': 1} for _ in keys]\n"
    )

    async def test(client: Client) -> None:
        child = client.app.host.engine("child")
        assert (await client.post("/predict/child", {"entities": ["abc"]})).status == 200  # in its feature cache
        modules = [module for name, module in sys.modules.items() if name == "child_features"]
        modules[-1].down.append(True)
        began_s = monotonic()
        await until(lambda: monotonic() > began_s + 0.002)  # past the TTL
        before = len(asked(client))
        for number in (1, 2):
            answer = await predict(client, "abc")
            assert (answer.status, answer.headers["x-tailcut-cache"]) == (200, "stale")
            assert len(asked(client)) == before + number, "each time anew"
        groups = client.app.host.engine("parent").pipeline.features.statistics().groups
        assert [group.stale_served for group in groups] == [2, 0]
        assert child.state == "ready"

    serve(folder, test)


def test_a_group_that_all_tenants_share_asks_its_model_without_a_tenant(folder: Path) -> None:
    async def test(client: Client) -> None:
        reply = await client.post("/predict/parent", {"entities": ["abc"]}, {"x-tenant": "acme"})
        assert reply.status == 200, reply.body

    serve(folder, test, ["server.tenant_header=x-tenant"])


# -- What does not fit ---------------------------------------------------------------------------------------------

PLAIN_CHILD = """
name = "child"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 3], columns = ["a", "b", "c"] }]
outputs = [{ name = "embedding", shape = [-1, 3] }]
[serve]
variant = "source"
"""
PLAIN_PARENT = """
name = "parent"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4], columns = ["embedding", "a"] }]
outputs = [{ name = "y", shape = [-1, 4] }]
[serve]
variant = "source"
[features]
entity = ["a", "b", "c", "d"]
[[features.groups]]
name = "text"
model = "child"
key = ["a", "b", "c"]
columns = ["embedding"]
ttl = "1h"
"""


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder of two models without hooks, one of which takes the other's output."""
    for name, manifest, width, output in (("child", PLAIN_CHILD, 3, "embedding"), ("parent", PLAIN_PARENT, 4, "y")):
        (tmp_path / name).mkdir()
        scaled(tmp_path / name / "model.onnx", 2.0, width, output)
        (tmp_path / name / "tailcut.toml").write_text(manifest)
    return tmp_path


def edit(folder: Path, name: str, *changes: tuple[str, str]) -> None:
    file = folder / name / "tailcut.toml"
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


ENTITY = {"entities": [{"a": 1, "b": 2, "c": 3, "d": 4}]}
MISFITS = [
    (("parent", 'key = ["a", "b", "c"]', 'key = ["a", "b", "d"]'), "the key has 'd', but a row of model 'child'"),
    (("parent", 'key = ["a", "b", "c"]', 'key = ["a", "b"]'), "the key lacks 'c', but a row of model 'child'"),
    (("parent", '"embedding"', '"embeding"'), "model 'child' answers with 'embedding', not with column 'embeding'"),
    (
        ("parent", "shape = [-1, 4], columns", "shape = [-1, 3], columns"),
        "input 'x' takes 3 values per row, its columns have 4 or more: 'embedding' of model 'child' has 3",
    ),
    (
        ("parent", '4], columns = ["embedding", "a"]', '4], columns = ["embedding"]'),
        "input 'x' takes 4 values per row, its columns have 3: 'embedding' of model 'child' has 3",
    ),
]


def test_a_chain_without_hooks_fits(plain: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/predict/parent", ENTITY)
        assert answer.json["predictions"] == [{"y": [4, 8, 12, 2]}]

    serve(plain, test)


def test_an_entity_of_several_fields_is_asked_for_in_any_order(folder: Path) -> None:
    edit(folder, "child", ("[serve]", f"[features]\nentity = ['text', 'prior']\n{PRIOR_GROUP}[serve]"))
    edit(folder, "parent", ('entity = ["text"]', 'entity = ["text", "prior"]'))
    edit(folder, "parent", ('model = "child"\nkey = ["text"]', 'model = "child"\nkey = ["prior", "text"]'))
    edit(
        folder,
        "parent",
        ('columns = ["prior"]', 'columns = ["other"]'),
        ('"embedding", "prior"]', '"embedding", "other"]'),
    )
    (folder / "parent" / "parent_features.py").write_text(PRIORS.replace("'prior'", "'other'"))

    async def test(client: Client) -> None:
        answer = await client.post("/predict/parent", {"entities": [{"text": "abc", "prior": 1}]})
        assert answer.status == 200, answer.json

    serve(folder, test)


@pytest.mark.parametrize(("change", "says"), MISFITS)
@pytest.mark.parametrize("at", ["start", "load"])
def test_what_the_other_model_can_never_answer_is_refused_at_the_load(
    plain: Path, change: tuple[str, str, str], says: str, at: str
) -> None:
    name, old, new = change
    if at == "start":
        edit(plain, name, (old, new))

    async def test(client: Client) -> None:
        if at == "load":
            client.app.host.unload("parent")
            edit(plain, name, (old, new))
            with pytest.raises(StartError, match=re.escape(says)):
                await client.app.host.load("parent")
        answer = await client.post("/predict/parent", ENTITY)
        assert answer.status == 503
        assert f'features.groups "text": {says}' in answer.json["error"]
        assert "model 'parent' failed to load" in answer.json["error"]
        edit(plain, name, (new, old))
        await client.app.host.load("parent")
        assert (await client.post("/predict/parent", ENTITY)).status == 200

    serve(plain, test)


def test_what_a_model_that_is_not_loaded_takes_is_not_known(plain: Path) -> None:
    async def test(client: Client) -> None:
        host = client.app.host
        for name in ("child", "parent"):
            host.unload(name)
        edit(plain, "child", ('"c"]', '"d"]'))
        edit(plain, "parent", ('key = ["a", "b", "c"]', 'key = ["a", "b", "d"]'))
        await host.load("parent")
        refused = await client.post("/predict/parent", ENTITY)
        assert (refused.status, refused.json["hint"]) == (503, "load it: POST /v2/repository/models/child/load")
        await host.load("child")
        assert (await client.post("/predict/parent", ENTITY)).status == 200

    serve(plain, test)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            '"c"]',
            '"d"]',
            "does not take the key ['a', 'b', 'c']: the rows cannot be turned into inputs: row 0: the field 'd'",
        ),
        ('name = "embedding"', 'name = "other"', "does not answer with the columns ['embedding'], but with ['other']"),
    ],
)
def test_a_model_that_changes_below_another_one_is_the_operators_fault(
    plain: Path, old: str, new: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        client.app.host.unload("child")
        edit(plain, "child", (old, new))
        scaled(plain / "child" / "model.onnx", 2.0, 3, "other" if "other" in new else "embedding")
        await client.app.host.load("child")
        assert "its feature groups no longer fit model child" in caplog.text
        answer = await client.post("/predict/parent", ENTITY)
        assert (answer.status, answer.json["code"]) == (500, "feature_failed")
        assert answer.json["error"].startswith('feature group "text" does not fit its source')
        assert f"model 'child' {says}" in answer.json["error"]
        assert "load this model again" in answer.json["hint"]

    serve(plain, test)


@pytest.mark.parametrize(
    ("hooks", "says"),
    [
        (HOOKS.replace('row["text"]', 'row["words"]'), "does not take the key ['text']: row 0 has no field 'words'"),
        (
            HOOKS.replace('{"embedding"', '{"embeding"'),
            "does not answer with the columns ['embedding'], but with ['embeding']",
        ),
    ],
)
def test_what_hooks_take_and_give_shows_when_they_are_asked(folder: Path, hooks: str, says: str) -> None:
    (folder / "child" / "child_hooks.py").write_text(hooks)

    async def test(client: Client) -> None:
        answer = await predict(client, "abc")
        assert (answer.status, answer.json["code"]) == (500, "feature_failed")
        assert f"model 'child' {says}" in answer.json["error"]

    serve(folder, test)


def test_a_vector_of_another_width_is_named_with_its_column(folder: Path) -> None:
    (folder / "child" / "child_hooks.py").write_text(HOOKS.replace('{"embedding": row}', '{"embedding": row[:2]}'))

    async def test(client: Client) -> None:
        answer = await predict(client, "abc")
        assert (answer.status, answer.json["code"]) == (500, "hook_failed")
        said = "input 'x' takes 4 values per row, its columns have 3: 'embedding' 2, 'prior' 1"
        assert answer.json["error"] == f"feature rows cannot be turned into inputs: row 0: {said}"

    serve(folder, test)


@pytest.mark.parametrize(
    ("slo", "own", "hint"),
    [
        ("50ms", "5s", "features.timeout and slo.timeout of model 'child' (0.05 s)"),
        ("5s", "50ms", "features.timeout"),
    ],
)
def test_a_model_that_is_too_slow_is_told_with_the_limits(folder: Path, slo: str, own: str, hint: str) -> None:
    edit(folder, "child", ("[serve]", f'[slo]\ntimeout = "{slo}"\n[serve]'))
    edit(folder, "parent", ("[features]", f'[features]\ntimeout = "{own}"'))
    gate = "import threading\ngate = threading.Event()\n"
    held = HOOKS.replace("    calls.append", "    gate.wait(30)\n    calls.append")
    (folder / "child" / "child_hooks.py").write_text(gate + held)

    async def test(client: Client) -> None:
        hook: Any = client.app.host.engine("child").opened.code.preprocess
        answer = await predict(client, "abc")
        hook.__globals__["gate"].set()
        assert (answer.status, answer.json["code"]) == (503, "feature_unavailable")
        assert hint in answer.json["hint"]

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
            ("child", child, f'{CHILD}{group}key = ["text"]\ncolumns = ["y"]\nttl = "1h"\n'),
        ):
            host.unload(name)
            file.write_text(text)
            await host.load(name)
        host.unload("parent")
        parent.write_text(PARENT)
        with pytest.raises(ManifestError, match="in a circle"):
            await host.load("parent")

    serve(folder, test)
