"""Variants that the gate refused: for their answers they are served with force only, for their speed as any other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.promotion_kit import deployment, save_model

from tailcut.errors import NotServable, TailcutError
from tailcut.registry import NewVariant, Registry, VariantEvidence
from tailcut.serving.engine import Engine

WORSE = "accuracy fell by 0.06, allowed is 0.01"
SLOWER = "not faster here: p95 3 ms under load, 1.20 of onnx"
WRONG = VariantEvidence(quality_refusal=WORSE)


def started(directory: Path, *overrides: str, promote: str = "onnx") -> str:
    """Serve a version with variants that the gate judged; return the name of the one that is opened."""
    manifest = deployment(directory, overrides=overrides)
    registry = Registry.of(manifest)

    def variant(name: str, factor: float, refused: str = "", **more: VariantEvidence) -> NewVariant:
        path = save_model(directory / f"{name}.onnx", factor)
        return NewVariant(name, "onnxruntime", path, refused=refused, base=True, **more)

    version = registry.add(
        "m",
        source="onnx",
        inputs=manifest.deployment.model.inputs,
        outputs=manifest.deployment.model.outputs,
        variants=[variant("onnx", 1.0), variant("slow", 2.0, SLOWER), variant("worse", 3.0, WORSE, evidence=WRONG)],
    )
    registry.promote("m", version.id, promote, force=promote != "onnx")

    async def main() -> str:
        engine = Engine(manifest)
        try:
            await engine.start()
            return engine.opened.variant.name
        finally:
            await engine.stop(1.0)

    return asyncio.run(main())


def test_a_variant_that_was_refused_for_its_answers_needs_force(tmp_path: Path) -> None:
    with pytest.raises(NotServable) as refused:
        started(tmp_path, "serve.variant=worse")
    assert f"was refused by the quality gate: {WORSE}" in refused.value.message
    assert "'onnx' or 'slow'" in refused.value.hint
    assert "serve.force = true" in refused.value.hint
    assert "--force" in refused.value.hint
    assert started(tmp_path, "serve.variant=worse", "serve.force=true") == "worse"


def test_a_variant_that_was_refused_for_its_speed_needs_none(tmp_path: Path) -> None:
    assert started(tmp_path, "serve.variant=slow") == "slow"


@pytest.mark.parametrize("name", ["promoted", "worse"])
def test_what_was_promoted_with_force_is_served_without(tmp_path: Path, name: str) -> None:
    assert started(tmp_path, f"serve.variant={name}", promote="worse") == "worse"


@pytest.mark.parametrize(("overrides", "loads"), [((), False), (("serve.force=true",), True)])
def test_a_client_loads_what_the_manifest_would_serve(tmp_path: Path, overrides: tuple[str, ...], loads: bool) -> None:
    started(tmp_path)
    manifest = deployment(tmp_path, overrides=overrides)

    async def main() -> None:
        engine = Engine(manifest)
        await engine.start()
        try:
            await engine.repository.load(variant="slow")
            assert engine.opened.variant.name == "slow"
            if loads:
                await engine.repository.load(variant="worse")
                assert engine.opened.variant.name == "worse"
            else:
                with pytest.raises(TailcutError, match="was refused by the quality gate"):
                    await engine.repository.load(variant="worse")
        finally:
            await engine.stop(1.0)

    asyncio.run(main())
