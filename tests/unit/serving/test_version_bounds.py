"""Bounds that a build found in its model: they come with the version, and go with it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.app_kit import INFER, Client, running
from tests.bounds_kit import SHOP, deployed, shops

from tailcut.common.bounds import Bound
from tailcut.errors import ArtifactError
from tailcut.manifest import Manifest
from tailcut.registry import NewVariant, Registry, Version, VersionEvidence
from tailcut.serving.engine import Engine

NEVER = 'serve.follow="1h"'
GENERATE = "/v2/models/m/generate"
HOOKS = """
import numpy as np

def places(keys, context):
    return [{"shop": key[0], "a": 0.0, "b": 0.0} for key in keys]
"""
FEATURES = """
[features]
entity = ["customer"]

[[features.groups]]
name = "places"
key = ["customer"]
columns = ["shop", "a", "b"]
ttl = "1h"
function = "version_hooks:places"
"""


def bound(rows: int) -> Bound:
    return Bound(input="shop", min=0, max=rows - 1, why=f"embedding e.weight has {rows} rows")


class Versions:
    """A registry whose versions know another number of shops each."""

    def __init__(self, directory: Path, more: str = "", overrides: Sequence[str] = ()) -> None:
        toml = SHOP.format(limits='columns = ["shop"]').replace('variant = "source"', "") + more
        self.manifest: Manifest = deployed(directory, toml, HOOKS, (NEVER, *overrides), "version_hooks")
        self.registry = Registry.of(self.manifest)

    def promote(self, rows: int | None, scale: float) -> Version:
        """Add and promote a version; ``rows`` None: one whose model proves no bounds."""
        model = self.manifest.deployment.model
        found = () if rows is None else (bound(rows),)
        path = shops(self.manifest.directory / f"{scale}.onnx", scale)
        other = shops(self.manifest.directory / f"{scale}-other.onnx", scale + 100)
        version = self.registry.add(
            "m",
            source="onnx",
            inputs=model.inputs,
            outputs=model.outputs,
            variants=[
                NewVariant("onnx", "onnxruntime", path, base=True),
                NewVariant("other", "onnxruntime", other, base=True),
            ],
            evidence=VersionEvidence(bounds=found),
        )
        self.registry.promote("m", version.id, "onnx")
        return version


async def look(client: Client) -> None:
    follower = client.app.engine.follower
    assert follower is not None
    await follower.look()


def tensors(shop: int) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": "shop", "shape": [1], "datatype": "INT64", "data": [shop]},
            {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]},
        ]
    }


async def told(client: Client, shop: int) -> dict[str, Any]:
    """What each way to ask for a shop answers: a number, or the error."""
    infer = await client.post(INFER, tensors(shop))
    generate = await client.post(GENERATE, {"shop": shop, "x": [0, 0]})
    rows = await client.post("/predict/m", {"rows": [{"shop": shop, "a": 0, "b": 0}]})
    return {
        "infer": infer.json["outputs"][0]["data"][0] if infer.status == 200 else (infer.status, infer.json["error"]),
        "generate": generate.json["y"] if generate.status == 200 else (generate.status, generate.json["error"]),
        "rows": rows.json["predictions"][0]["y"] if rows.status == 200 else (rows.status, rows.json["error"]),
    }


def refused(shop: int, rows: int) -> dict[str, Any]:
    limit = f"allowed are 0 to {rows - 1} (embedding e.weight has {rows} rows)"
    tensor = f"input 'shop' holds {shop} in row 0, {limit}"
    return {"infer": (400, tensor), "generate": (400, tensor), "rows": (400, f"row 0: field 'shop' is {shop}, {limit}")}


def answered(value: float) -> dict[str, Any]:
    return {"infer": value, "generate": value, "rows": value}


def serve(versions: Versions, test: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with running(versions.manifest) as client:
            await test(client)

    asyncio.run(main())


def test_bounds_follow_a_promotion_and_a_rollback(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    versions.promote(50, 1.0)

    async def test(client: Client) -> None:
        for _ in range(2):
            assert await told(client, 40) == answered(40)
        assert await told(client, 50) == refused(50, 50)
        versions.promote(30, 2.0)
        await look(client)
        assert await told(client, 29) == answered(58)
        assert await told(client, 40) == refused(40, 30)
        versions.registry.rollback("m")
        await look(client)
        assert await told(client, 40) == answered(40)

    serve(versions, test)


def test_a_version_without_bounds_has_the_manifests_limits_only(tmp_path: Path) -> None:
    versions = Versions(tmp_path, overrides=("model.inputs.shop.max=45",))
    versions.promote(None, 1.0)

    async def test(client: Client) -> None:
        assert await told(client, 45) == answered(45)
        assert (await told(client, 46))["infer"] == (
            400,
            "input 'shop' holds 46 in row 0, allowed are values of at most 45",
        )
        assert await told(client, -1) == answered(49), "no limit refuses -1 yet"
        versions.promote(50, 2.0)
        await look(client)
        assert await told(client, -1) == refused(-1, 50)
        assert (await told(client, 46))["rows"][0] == 400

    serve(versions, test)


def test_loading_another_variant_keeps_the_bounds_of_the_version(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    versions.promote(50, 1.0)

    async def test(client: Client) -> None:
        await client.app.engine.repository.load(variant="other")
        assert await told(client, 1) == answered(101)
        assert await told(client, 50) == refused(50, 50)

    serve(versions, test)


def test_a_fallback_is_never_asked_what_the_version_refuses(tmp_path: Path) -> None:
    versions = Versions(tmp_path, overrides=('serve.fallback=["other"]',))
    versions.promote(50, 1.0)

    async def test(client: Client) -> None:
        engine: Engine = client.app.engine
        await engine.fallbacks.loaded()
        while engine.opened.fallback is None:
            await asyncio.sleep(0)
        fallback = engine.opened.fallback.served
        assert [spec.limits is not None for spec in fallback.specs] == [True, True]
        assert await told(client, 50) == refused(50, 50)

    serve(versions, test)


def test_features_are_held_to_the_bounds_of_the_version(tmp_path: Path) -> None:
    versions = Versions(tmp_path, FEATURES)
    versions.promote(50, 1.0)

    async def test(client: Client) -> None:
        good = await client.post("/predict/m", {"entities": [40]})
        assert good.json["predictions"] == [{"y": 40.0}]
        versions.promote(30, 2.0)
        await look(client)
        answer = await client.post("/predict/m", {"entities": [40]})
        assert answer.status == 503, "the feature is cached, and of another version"
        assert answer.json["error"].endswith(
            'in column "shop" that the model cannot take: allowed are 0 to 29 (embedding e.weight has 30 rows)'
        )

    serve(versions, test)


def test_the_description_has_the_bounds_of_what_is_served(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    versions.promote(50, 1.0)

    async def largest(client: Client) -> tuple[int, int]:
        schemas = (await client.get("/openapi.json")).json["components"]["schemas"]
        tensor = schemas["InferenceRequest"]["properties"]["inputs"]["items"]["oneOf"][0]["properties"]
        row = schemas["PredictionRequest"]["properties"]["rows"]["items"]["properties"]
        return tensor["data"]["items"]["maximum"], row["shop"]["maximum"]

    async def test(client: Client) -> None:
        assert await largest(client) == (49, 49)
        versions.promote(30, 2.0)
        await look(client)
        assert await largest(client) == (29, 29)

    serve(versions, test)


def test_bounds_that_cannot_be_read_are_not_left_out(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    version = versions.promote(50, 1.0)
    folder = versions.registry.root / "models" / "m" / "versions" / version.id
    (evidence,) = folder.glob("evidence-*.json")
    content = evidence.read_bytes().replace(b'"max": 49', b'"max": "many"')
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / f"evidence-{sha256[:12]}.json").write_bytes(content)
    header = msgspec.json.decode((folder / "version.json").read_bytes())
    (folder / "version.json").write_bytes(msgspec.json.encode(header | {"evidence_sha256": sha256}))
    with pytest.raises(ArtifactError, match=r"is corrupt: .*got `str` - at `\$\.evidence\.bounds\[0\]\.max`"):
        versions.registry.version("m")


def test_limits_do_not_rename_a_version(tmp_path: Path) -> None:
    plain = Versions(tmp_path)
    first = plain.promote(50, 1.0)
    (tmp_path / "limited").mkdir()
    limited = Versions(tmp_path / "limited", overrides=("model.inputs.shop.max=45",))
    assert limited.promote(None, 1.0).id == first.id
