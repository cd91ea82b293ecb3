"""Values that one model has from another: one number, a vector of one, infinity."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.app_kit import Client
from tests.chain_kit import scaled
from tests.host_kit import serve

from tailcut.errors import StartError

CHILD = """
name = "child"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 1], columns = ["id"] }]
outputs = [{ name = "y", shape = [-1, 1] }]
[serve]
variant = "source"
"""
PARENT = """
name = "parent"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 2], columns = ["y", "id"] }]
outputs = [{ name = "p", shape = [-1, 2] }]
[serve]
variant = "source"
[features]
entity = ["id"]
[[features.groups]]
name = "c"
model = "child"
key = ["id"]
columns = ["y"]
ttl = "1h"
"""

FEATURES = """
[features]
entity = ["id"]
[[features.groups]]
name = "v"
function = "child_features:v"
key = ["id"]
columns = ["v"]
ttl = "1h"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two models without hooks: the child answers 10 times the id, the parent twice that and the id."""
    for name, manifest, factor, width, output in (("child", CHILD, 10.0, 1, "y"), ("parent", PARENT, 2.0, 2, "p")):
        (tmp_path / name).mkdir()
        scaled(tmp_path / name / "model.onnx", factor, width, output)
        (tmp_path / name / "tailcut.toml").write_text(manifest)
    return tmp_path


def edit(folder: Path, name: str, *changes: tuple[str, str]) -> None:
    file = folder / name / "tailcut.toml"
    text = file.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)


def test_an_output_of_width_1_is_a_column_beside_numbers(folder: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post("/predict/parent", {"entities": [5, 6]})
        assert answer.json["predictions"] == [{"p": [100, 10]}, {"p": [120, 12]}]

    serve(folder, test)


@pytest.mark.parametrize("cached", ["false", "true"])
def test_infinity_that_the_model_may_answer_reaches_the_caller(folder: Path, cached: str) -> None:
    """Given a model with a cache, whose answers are JSON there, then infinity is read as it was written."""
    edit(folder, "child", ("[-1, 1] }]\n[serve]", "[-1, 1], allow_nan = true }]\n[serve]"))
    edit(
        folder, "child", ("[serve]", f"[cache.entity]\nenabled = {cached}\n{FEATURES}[serve]"), ('["id"] }', '["v"] }')
    )
    edit(
        folder,
        "parent",
        ('"id"] }', '"id"], allow_nan = true }'),
        ("[-1, 2] }]\n[s", "[-1, 2], allow_nan = true }]\n[s"),
    )
    (folder / "child" / "child_features.py").write_text(
        "def v(keys, context):\n    return [{'v': 3e38 * key[0]} for key in keys]\n"
    )

    async def test(client: Client) -> None:
        for entity, says in ((1, b"1e999"), (-1, b"-1e999")):
            for _ in range(2):
                answer = await client.post("/predict/parent", {"entities": [entity]})
                assert answer.status == 200, answer.body
                assert says in answer.body

    serve(folder, test)


def per_tenant(folder: Path) -> None:
    """Give the child values per tenant: the length of the tenant's name beside the id."""
    edit(folder, "child", ("[serve]", f"{FEATURES}per_tenant = true\n[serve]"), ('["id"] }', '["v"] }'))
    (folder / "child" / "child_features.py").write_text(
        "def v(keys, context):\n    return [{'v': key[0] + 100 * len(context.tenant)} for key in keys]\n"
    )


@pytest.mark.parametrize("at", ["start", "load"])
def test_a_group_of_all_tenants_is_refused_where_its_model_has_values_per_tenant(folder: Path, at: str) -> None:
    says = "by all tenants, but those of model 'child' are of one tenant each, because of its group \"v\""
    per_tenant(folder)
    if at == "load":
        edit(folder, "parent", ('ttl = "1h"', 'ttl = "1h"\nper_tenant = true'))

    async def test(client: Client) -> None:
        if at == "load":
            client.app.host.unload("parent")
            edit(folder, "parent", ("per_tenant = true", ""))
            with pytest.raises(StartError, match=re.escape(says)) as caught:
                await client.app.host.load("parent")
            assert caught.value.hint == 'set per_tenant = true on group "c"'
        answer = await client.post("/predict/parent", {"entities": [5]}, {"x-tenant": "abc"})
        assert answer.status == 503
        assert says in answer.json["error"]

    serve(folder, test, ["server.tenant_header=x-tenant"])


def test_a_group_per_tenant_has_the_models_values_of_its_tenant(folder: Path) -> None:
    per_tenant(folder)
    edit(folder, "parent", ('ttl = "1h"', 'ttl = "1h"\nper_tenant = true'))

    async def test(client: Client) -> None:
        for tenant, value in (("a", 2_100), ("abc", 6_100), ("a", 2_100)):
            answer = await client.post("/predict/parent", {"entities": [5]}, {"x-tenant": tenant})
            assert answer.json["predictions"] == [{"p": [value, 10]}]

    serve(folder, test, ["server.tenant_header=x-tenant"])


def test_a_model_that_is_asked_by_its_rows_may_have_values_per_tenant(folder: Path) -> None:
    """What it has of each tenant plays no part then."""
    per_tenant(folder)
    edit(folder, "parent", ('key = ["id"]', 'key = ["v"]'), ('entity = ["id"]', 'entity = ["id", "v"]'))

    async def test(client: Client) -> None:
        answer = await client.post("/predict/parent", {"entities": [{"id": 5, "v": 7}]}, {"x-tenant": "abc"})
        assert answer.json["predictions"] == [{"p": [140, 10]}]

    serve(folder, test, ["server.tenant_header=x-tenant"])


def test_no_value_of_a_version_before_the_last_is_a_hit_while_the_model_is_unloaded(folder: Path) -> None:
    """Given a cached value of the first version, when the second was served but not asked, then there is no value."""

    async def test(client: Client) -> None:
        host = client.app.host
        assert (await client.post("/predict/parent", {"entities": [5]})).status == 200
        host.unload("child")
        assert (await client.post("/predict/parent", {"entities": [5]})).status == 200, "what answered last"
        scaled(folder / "child" / "model.onnx", 30.0, 1)
        await host.load("child")
        host.unload("child")
        answer = await client.post("/predict/parent", {"entities": [5]})
        assert (answer.status, answer.json["code"]) == (503, "feature_unavailable")
        await host.load("child")
        answer = await client.post("/predict/parent", {"entities": [5]})
        assert answer.json["predictions"] == [{"p": [300, 10]}]

    serve(folder, test)
