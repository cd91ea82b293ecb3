"""``tailcut parity`` on the examples: a planted off-by-one is named, and nothing else; without one nothing is found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("pandas")
pytest.importorskip("fastapi")

import torch
from tests.integration.flight_sample import AT, flight_sample

from flight_risk import clock
from flight_risk.model import load as load_flight_risk
from tailcut.manifest import load
from tailcut.manifest.subject import find_subject
from tailcut.parity.analysis.mapping import parse_pair
from tailcut.parity.plan import ParityPlan
from tailcut.parity.run import run
from tailcut.registry import NewVariant, Registry
from tailcut.report.parity.document import reasons
from tailcut.report.parity.file import VariantParity

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
REQUESTS = 40


def registered(manifest: Path, module: torch.nn.Module, folder: Path) -> tuple[str, ...]:
    """Keep a module as the promoted variant of a registry in ``folder``; return the setting that names it."""
    deployment = load(manifest).deployment
    torch.save(module.state_dict(), folder / "model.pt")
    registry = Registry(folder / "registry")
    version = registry.add(
        deployment.name,
        source="torch",
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        variants=[NewVariant("torch", "torch", folder / "model.pt")],
    )
    registry.promote(deployment.name, version.id, "torch")
    return (f"registry.path={folder / 'registry'}",)


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """The flight_risk example on some weeks of flights, with its clock stopped; yields settings."""
    folder = tmp_path_factory.mktemp("parity")
    with flight_sample(tmp_path_factory.mktemp("flight-risk")), pytest.MonkeyPatch.context() as patch:
        patch.setenv(clock.REPLAY, str(AT))
        patch.setenv("FLIGHT_RISK_STACK", "embedded")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]))
        clock.anchor.cache_clear()
        yield registered(EXAMPLES / "flight_risk" / "tailcut.toml", load_flight_risk(), folder)


def compared(settings: tuple[str, ...], manifest: Path, **more: object) -> VariantParity:
    given = {"pilot": "parity_flight_pilot:app", "path": "/predict", "directory": HERE, "requests": REQUESTS, **more}
    plan = ParityPlan(**given)  # type: ignore[arg-type]
    (found,) = run(find_subject([manifest], overrides=settings, keep_unset=True), plan, tell=lambda _: None).variants
    return found


def test_flight_risk_answers_as_its_pilot_does(flights: tuple[str, ...]) -> None:
    found = compared(flights, EXAMPLES / "flight_risk" / "tailcut.toml")
    assert (found.differing_requests, found.status_differences, found.notes) == (0, 0, ())
    assert found.both_answered == REQUESTS
    assert found.inputs is not None
    assert (found.inputs.columns, found.inputs.differing, found.inputs.problem) == (30, (), "")


@pytest.mark.parametrize("feature", [pytest.param("origin_waiting", marks=pytest.mark.whole), "wind_speed"])
def test_an_off_by_one_in_the_pilot_is_named_and_nothing_else(
    flights: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, feature: str
) -> None:
    """wind_speed fills three of the model's inputs, two of them with wind_dir; origin_waiting fills one."""
    monkeypatch.setenv("PARITY_PLANT", feature)
    found = compared(flights, EXAMPLES / "flight_risk" / "tailcut.toml")
    assert found.differing_requests > 0
    assert found.inputs is not None
    assert set.intersection(*(set(one.features) for one in found.inputs.differing)) == {feature}
    assert feature in reasons(found)[0]


def test_an_off_by_one_in_the_deployment_is_named_and_nothing_else(flights: tuple[str, ...], tmp_path: Path) -> None:
    text = (EXAMPLES / "flight_risk" / "tailcut.toml").read_text()
    changed = text.replace("ELSE 0 END), 0) AS origin_next", "ELSE 0 END), 0) + 1 AS origin_next")
    assert changed != text
    (tmp_path / "tailcut.toml").write_text(changed.replace('python_path = [".."]', f'python_path = ["{EXAMPLES}"]'))
    found = compared(flights, tmp_path / "tailcut.toml")
    assert found.differing_requests > 0
    assert found.inputs is not None
    assert [one.features for one in found.inputs.differing] == [("origin_next",)]


@pytest.mark.whole  # loads transformers in three processes, for the same path as above
def test_minilm_embeds_as_its_pilot_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minilm.model")
    from minilm.model import load as load_minilm

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]))
    manifest = EXAMPLES / "minilm" / "tailcut.toml"
    found = compared(
        (*registered(manifest, load_minilm(), tmp_path), "batching.max_rows=1"),
        manifest,
        pilot="minilm.pilot:app",
        path="",
        payloads="minilm.pilot:traffic",
        directory=EXAMPLES,
        requests=4,
        pairs=(parse_pair("embeddings[]=prediction"),),
    )
    assert (found.both_answered, found.differing_requests, found.notes) == (4, 0, ())
    assert found.inputs is not None
    assert (found.inputs.columns, found.inputs.differing, found.inputs.problem) == (2, (), "")
