"""What the build measured of a variant is known before its first batch: to ``tailcut simulate``, and to admission."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import INFER, PATIENT, Client, running
from tests.promotion_kit import deployment, save_model
from tests.registry_kit import AVX2

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.manifest import Manifest
from tailcut.models import variant_loader
from tailcut.models.runtimes import open_runtime
from tailcut.registry import NewVariant, Registry, VariantEvidence
from tailcut.registry.evidence import BatchCost, Setting, Timing, Tuning
from tailcut.testing.runtimes import FaultyRuntime

ONE = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}


def tuned(ms: dict[int, float], *, p50: float = 1.0, p95: float = 1.0) -> VariantEvidence:
    """Evidence of a tuning: means of batches by rows, and percentiles as shares of them."""
    costs = [
        BatchCost(rows=rows, mean_ms=each, p50_ms=each * p50, p95_ms=each * p95, calls=9) for rows, each in ms.items()
    ]
    return VariantEvidence(tuning=Tuning(settings={"threads": 1, "executors": 1}, costs=costs))


MINUTES = tuned({1: 60_000.0, 4: 400_000.0})


def promoted(
    folder: Path, evidence: VariantEvidence, *, elsewhere: bool = False, overrides: tuple[str, ...] = ()
) -> Manifest:
    """A deployment whose variant was judged here, or on a machine of another kind."""
    manifest = deployment(folder, overrides=overrides)
    registry, model = Registry.of(manifest, machine=AVX2 if elsewhere else None), manifest.deployment.model
    artifact = save_model(folder / "m.onnx", 1.0)
    variants = [NewVariant("onnx", "onnxruntime", artifact, base=True, evidence=evidence)]
    version = registry.add("m", source="onnx", inputs=model.inputs, outputs=model.outputs, variants=variants)
    registry.promote("m", version.id, "onnx")
    return manifest


def simulated(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    out = folder / "out.json"
    arguments = ["simulate", "--manifest", str(folder), "--rate", "20", "--duration", "2s", "--json", str(out), *more]
    code = run(arguments)
    return code, json.loads(out.read_text()) if out.exists() else {}


def test_simulate_takes_the_costs_from_the_evidence_of_the_setting_that_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promoted(tmp_path, tuned({1: 3.0, 4: 5.0}))
    code, found = simulated(tmp_path, "--noise", "0", "--request-cpu", "0us")
    assert code == ExitCode.OK
    assert found["assumed"]["cost_ms"] == {"1": 3.0, "4": 5.0}
    assert "(evidence of variant onnx)" in capsys.readouterr().out
    assert found["lines"][0]["p50_ms"] == pytest.approx(3.0, abs=0.5)


def test_simulate_takes_every_size_and_the_spread_that_the_build_measured(tmp_path: Path) -> None:
    """Lognormal: the p95 is exp(1.645 * 0.8) = 3.73 times the median, the mean exp(0.8 ** 2 / 2) = 1.377 times."""
    promoted(tmp_path, tuned({1: 3.0, 2: 4.0, 4: 9.0}, p50=1 / 1.377, p95=3.73 / 1.377))
    code, found = simulated(tmp_path, "--request-cpu", "0us", "--duration", "60s")
    assert code == ExitCode.OK
    assert found["assumed"]["cost_ms"] == {"1": 3.0, "2": 4.0, "4": 9.0}
    assert found["assumed"]["sigma"] == pytest.approx(0.8, abs=0.01)
    assert found["lines"][0]["p50_ms"] == pytest.approx(3.0 / 1.377, rel=0.15)
    assert simulated(tmp_path, "--noise", "0.5")[1]["assumed"]["sigma"] == 0.5


@pytest.mark.parametrize(("evidence", "elsewhere", "says"), [
    (VariantEvidence(), False, "has no timings in its evidence"),
    (tuned({1: 3.0}), True, "do not hold on this machine"),
])  # fmt: skip
def test_simulate_says_where_the_evidence_does_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], evidence: VariantEvidence, elsewhere: bool, says: str
) -> None:
    promoted(tmp_path, evidence, elsewhere=elsewhere)
    code, found = simulated(tmp_path)
    assert code not in {ExitCode.OK, ExitCode.FAILED, ExitCode.BUG}
    assert not found
    said = capsys.readouterr().err
    assert says in said
    assert "tailcut build" in said


def test_simulate_takes_what_chose_the_settings_where_the_sizes_could_not_be_timed(tmp_path: Path) -> None:
    """The largest batch that may be served did not run: a lone row, and batches at the best rate, are known anyhow."""
    chosen, other = Setting(threads=1), Setting(threads=2)
    table = [
        Timing(setting=other, ms=1.0, cpu_ms=2.0, rows_per_s=1e6),
        Timing(setting=chosen, ms=3.0, cpu_ms=3.0, rows_per_s=800.0),
    ]
    tuning = Tuning(settings=chosen.plain, table=table, batch_rows=4, costs_failed="no memory for 1024 rows")
    promoted(tmp_path, VariantEvidence(tuning=tuning, bare_ms={1: [9.0]}))
    code, found = simulated(tmp_path, "--noise", "0", "--request-cpu", "0us")
    assert code == ExitCode.OK
    assert found["assumed"]["cost_ms"] == {"1": 3.0, "4": 5.0}


def test_simulate_takes_the_bare_timings_of_a_variant_without_settings_to_tune(tmp_path: Path) -> None:
    """The build races every variant, scikit-learn's too: medians of its rounds, by rows."""
    promoted(tmp_path, VariantEvidence(bare_ms={1: [2.0, 3.0, 9.0], 8: [10.0, 11.0, 12.0]}))
    code, found = simulated(tmp_path, "--noise", "0", "--request-cpu", "0us")
    assert code == ExitCode.OK
    assert found["assumed"]["cost_ms"] == {"1": 3.0, "8": 11.0}
    assert found["assumed"]["cost_from"] == "evidence of variant onnx"
    assert found["lines"][0]["p50_ms"] == pytest.approx(3.0, abs=0.5)


@pytest.mark.parametrize(("evidence", "elsewhere", "status"), [
    (MINUTES, False, 429),
    (MINUTES, True, 504),
    (VariantEvidence(), False, 504),
])  # fmt: skip
def test_admission_knows_from_the_evidence_what_a_batch_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evidence: VariantEvidence, elsewhere: bool, status: int
) -> None:
    """The build saw batches of a minute: who comes behind one with half a second is refused at once, not late."""
    opened: list[FaultyRuntime] = []

    def open_faulty(variant: Any, **options: Any) -> FaultyRuntime:
        opened.append(FaultyRuntime(open_runtime(variant, **options)))
        return opened[-1]

    monkeypatch.setattr(variant_loader, "open_runtime", open_faulty)
    overrides = ('pool={executor="thread", executors=1}', *PATIENT)
    manifest = promoted(tmp_path, evidence, elsewhere=elsewhere, overrides=overrides)

    async def test(client: Client) -> None:
        opened[0].hang()
        first = asyncio.create_task(client.post(INFER, ONE))
        assert await asyncio.to_thread(opened[0].entered.wait, 10)
        second = await client.post(INFER, ONE, {"x-tailcut-timeout-ms": "500"})
        assert second.status == status, second.body
        opened[0].release()
        assert (await first).status == 200

    async def main() -> None:
        async with running(manifest) as client:
            await test(client)

    asyncio.run(main())
