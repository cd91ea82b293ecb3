"""A model whose features come from another version of a model than its build judged it with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from tests.chain_kit import add_chain, scaled
from tests.host_kit import HostClient, host_of

from tailcut.cli.app import run
from tailcut.manifest import load
from tailcut.registry import NewVariant, Registry, VersionEvidence

Test = Callable[[HostClient], Awaitable[None]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A parent and the child that computes its features, both served from their registries."""
    add_chain(tmp_path)
    for name in ("child", "parent"):
        path = tmp_path / name / "tailcut.toml"
        path.write_text(path.read_text().replace('variant = "source"', 'follow = "1h"'))
    return tmp_path


def promote(folder: Path, name: str, factor: float, models: Mapping[str, str] | None = None) -> str:
    """Add a version and promote it; return how it is named in records."""
    manifest = load(folder / name, environment={})
    path = folder / f"{name}-{factor:g}.onnx"
    scaled(path, factor, 3 if name == "child" else 4)
    registry = Registry.of(manifest)
    version = registry.add(
        name,
        source="onnx",
        inputs=manifest.deployment.model.inputs,
        outputs=manifest.deployment.model.outputs,
        variants=[NewVariant("onnx", "onnxruntime", path)],
        evidence=VersionEvidence(feature_models=dict(models or {})),
    )
    registry.promote(name, version.id, "onnx")
    return f"{version.id} (onnx)"


def serve(folder: Path, test: Test, *overrides: str) -> None:
    async def main() -> None:
        client = host_of(folder, overrides=overrides)
        await client.app.start()
        try:
            await test(client)
        finally:
            await client.app.stop()

    asyncio.run(main())


async def verdict(client: HostClient) -> str:
    """What the readiness says of the parent, which the index says too."""
    ready = (await client.get("/v2/health/ready")).json["models"]["parent"].get("unjudged", "")
    assert (await client.index())["parent"] == ("READY", f"unjudged: {ready}" if ready else "")
    return str(ready)


async def look(client: HostClient, name: str) -> None:
    """Let a model follow its registry at once."""
    follower = client.host.engine(name).follower
    assert follower is not None
    await follower.look()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "unjudged" in record.getMessage()]


def test_a_model_that_was_judged_with_what_answers_is_served_without_a_word(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    promote(folder, "parent", 10, {"child": promote(folder, "child", 2)})

    async def test(client: HostClient) -> None:
        assert await verdict(client) == ""

    serve(folder, test, "serve.strict=true")
    assert warnings(caplog) == []


def test_another_version_at_the_start_is_told_with_both_and_the_way_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = promote(folder, "child", 2)
    promote(folder, "parent", 10, {"child": old})
    new = promote(folder, "child", 3)
    why = f"it was judged with features of model 'child' version {old}, and {new} answers now"

    async def test(client: HostClient) -> None:
        assert await verdict(client) == why
        assert (await client.post("/predict/parent", {"entities": ["abc"]})).status == 200

    serve(folder, test)
    (said,) = warnings(caplog)
    assert said.endswith(f"is served unjudged: {why}; `tailcut build -m parent -m child` judges it")


def test_a_promotion_while_it_is_served_makes_it_unjudged_until_it_is_built_and_loaded_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    promote(folder, "parent", 10, {"child": promote(folder, "child", 2)})

    async def test(client: HostClient) -> None:
        assert await verdict(client) == ""
        new = promote(folder, "child", 3)
        await look(client, "child")
        assert new in await verdict(client)
        assert len(warnings(caplog)) == 1
        promote(folder, "parent", 10, {"child": new})  # the same artifacts: only the record is another
        assert (await client.load("parent")).status == 200
        assert await verdict(client) == ""

    serve(folder, test)
    assert len(warnings(caplog)) == 1


def test_a_build_without_a_record_is_unjudged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    promote(folder, "child", 2)
    promote(folder, "parent", 10)

    async def test(client: HostClient) -> None:
        said = "its build recorded no version of model 'child', which computes its features"
        assert await verdict(client) == said

    serve(folder, test)
    assert len(warnings(caplog)) == 1


def test_a_file_that_is_served_without_a_build_has_no_verdict_to_lose(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    promote(folder, "child", 2)

    async def test(client: HostClient) -> None:
        assert await verdict(client) == ""

    serve(folder, test, "parent:serve.variant=source", "serve.strict=true")
    assert warnings(caplog) == []


@pytest.mark.parametrize("recorded", [True, False])
def test_strict_refuses_to_load_it_and_serves_the_other(folder: Path, recorded: bool) -> None:
    old = promote(folder, "child", 2)
    promote(folder, "parent", 10, {"child": old} if recorded else None)
    promote(folder, "child", 3)

    async def test(client: HostClient) -> None:
        assert await client.states() == {"child": "ready", "parent": "failed"}
        reason = (await client.reasons())["parent"]
        assert "of model 'parent'" in reason
        assert "is unjudged here" in reason
        assert (old in reason) is recorded

    serve(folder, test, "serve.strict=true")


def test_strict_refuses_what_it_cannot_compare(folder: Path) -> None:
    promote(folder, "parent", 10, {"child": promote(folder, "child", 2)})

    async def test(client: HostClient) -> None:
        reason = (await client.reasons())["parent"]
        assert "model 'child', which computes its features, is not loaded" in reason

    async def main() -> None:
        client = host_of(folder, overrides=["serve.strict=true"])
        (folder / "child" / "child_hooks.py").write_text("raise RuntimeError('broken')\n")
        with pytest.raises(Exception, match="broken"):
            await client.app.start()
        await test(client)
        await client.app.stop()

    asyncio.run(main())


def test_strict_refuses_a_promotion_and_keeps_what_is_served(folder: Path) -> None:
    child = promote(folder, "child", 2)
    promote(folder, "parent", 10, {"child": child})

    async def test(client: HostClient) -> None:
        served = client.host.engine("parent").opened.variant.version
        promote(folder, "parent", 20, {"child": "another (onnx)"})
        await look(client, "parent")
        assert client.host.engine("parent").opened.variant.version == served
        failed = (await client.get("/v2/health/ready")).json["models"]["parent"]["promotion"]
        assert "another (onnx)" in failed["error"]
        assert "tailcut build -m parent -m child" in failed["hint"]

    serve(folder, test, "serve.strict=true")


def test_a_check_says_what_the_model_was_judged_with(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = promote(folder, "child", 2)
    promote(folder, "parent", 10, {"child": child})
    assert run(["check", "-m", str(folder)]) == 0
    assert "unjudged" not in capsys.readouterr().out
    new = promote(folder, "child", 3)
    assert run(["check", "-m", str(folder)]) == 0
    assert f"unjudged: it was judged with features of model 'child' version {child}, and {new}" in (
        capsys.readouterr().out
    )
