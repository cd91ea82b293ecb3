"""The hooks on the libraries themselves, not on stand-ins: each call is a model's, or another service's, and named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.profile_asking import Said
from tests.integration.test_profile_frameworks import driven, least_ns, stages

from tailcut.profiler.records import Stage

pytestmark = [pytest.mark.integration, pytest.mark.quiet]
"""What real libraries do beside the call that is timed takes longer with a neighbour, and so do calls that compute."""

MODELS = {
    "/sklearn": "RandomForestClassifier.predict_proba",
    "/pipeline": "Pipeline.predict",
    "/onnxruntime": "InferenceSession",
    "/openvino": "CompiledModel",
    "/xgboost": "Booster.predict",
    "/xgboost-sklearn": "XGBClassifier.predict_proba",
    "/lightgbm": "Booster.predict",
    "/lightgbm-sklearn": "LGBMClassifier.predict_proba",
}
CALLS = ["/requests", "/urllib3", "/urllib", "/httpx", "/httpx-async"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Said]:
    folder: Path = tmp_path_factory.mktemp("real")
    return driven(folder, "real", ["real:app"], [*MODELS, *CALLS])


@pytest.mark.parametrize("path", MODELS)
def test_what_a_model_takes_is_the_models(real: dict[tuple[str, str], Said], path: str) -> None:
    said = real["real:app", path]
    took = stages(said)
    assert 0.9 * least_ns(said) <= took[Stage.MODEL] <= 1.1 * said.naps_ns, took
    longest = max(
        [span for span in said.request.spans if span.stage is Stage.MODEL], key=lambda one: one.end_ns - one.start_ns
    )
    assert longest.label == MODELS[path]
    assert said.notes == []


@pytest.mark.parametrize("path", CALLS)
def test_what_another_service_takes_is_its(real: dict[tuple[str, str], Said], path: str) -> None:
    said = real["real:app", path]
    took = stages(said)
    assert 0.9 * least_ns(said) <= took[Stage.HTTP] <= 1.1 * said.naps_ns, took
    label = next(span.label for span in said.request.spans if span.stage is Stage.HTTP)
    assert label.startswith("GET http://127.0.0.1")
    assert said.notes == []
