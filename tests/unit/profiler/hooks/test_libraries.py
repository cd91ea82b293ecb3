"""What a model runs on: said by the hook on its call, not by what else is imported."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.unit.profiler.levers import test_levers as levers

from tailcut.profiler.hooks import estimators, models
from tailcut.profiler.levers.advice import advise
from tailcut.profiler.levers.known import know
from tailcut.profiler.recording.model_libraries import ModelLibraries
from tailcut.profiler.recording.tracing import Trace
from tailcut.profiler.records import ProfiledProcess, RecordedSpan, Recording, Stage

pytestmark = pytest.mark.slow

_TORCH = "torch.nn.modules.module"
OWN_RUNTIME = "not worth it: the model already runs on its own runtime"
_ONNX = "onnxruntime.capi.onnxruntime_inference_collection"


@pytest.fixture
def said(request_: Trace, monkeypatch: pytest.MonkeyPatch) -> ModelLibraries:
    """What the hooks say in one test."""
    fresh = ModelLibraries()
    monkeypatch.setattr(models, "libraries", fresh)
    monkeypatch.setattr(estimators, "libraries", fresh)
    return fresh


def module(hook: str, **classes: type) -> None:
    """A library with these classes, hooked."""
    library = ModuleType(hook)
    vars(library).update(classes)
    models.HOOKS[hook](library)


def answering(name: str, *methods: str) -> Any:
    """A class whose methods answer; the class is the library's."""
    return type(name, (), dict.fromkeys(methods, lambda self, *args, **kwargs: 1))


@pytest.mark.parametrize(
    ("hook", "name", "method", "label", "library"),
    [
        ("openvino._ov_api", "CompiledModel", "__call__", "CompiledModel", "openvino"),
        ("openvino._ov_api", "InferRequest", "infer", "InferRequest", "openvino"),
        ("xgboost.core", "Booster", "inplace_predict", "Booster.predict", "xgboost"),
        ("lightgbm.basic", "Booster", "predict", "Booster.predict", "lightgbm"),
        ("keras.src.models.model", "Model", "predict", "Model", "keras"),
    ],
)
def test_a_hook_says_which_library_answers(
    said: ModelLibraries, hook: str, name: str, method: str, label: str, library: str
) -> None:
    """That torch is imported, too, says nothing."""
    owner = answering(name, method)
    module(hook, **{name: owner})
    assert getattr(owner(), method)() == 1
    assert said.found() == {label: library}


def test_wrappers_in_scikit_learns_form_are_no_scikit_learn(said: ModelLibraries) -> None:
    boosted = answering("XGBClassifier", "predict", "predict_proba")
    boosted.__module__ = "xgboost.sklearn"
    wrappers = ModuleType("xgboost.sklearn")
    vars(wrappers)["XGBClassifier"] = boosted
    estimators.HOOKS["xgboost.sklearn"](wrappers)
    cats = {name: answering(name, "predict") for name in ("CatBoost", "CatBoostClassifier", "CatBoostRegressor")}
    module("catboost.core", **cats)
    own = answering("Ridge", "predict")
    own.__module__ = "sklearn.ridge"
    library = ModuleType("sklearn.ridge")
    vars(library)["Ridge"] = own
    estimators.PREFIXES["sklearn."](library)
    assert boosted().predict() + cats["CatBoostClassifier"]().predict() + own().predict() == 3
    assert said.found() == {
        "XGBClassifier.predict": "xgboost", "CatBoostClassifier.predict": "catboost", "Ridge.predict": "sklearn",
    }  # fmt: skip


def session(path: str) -> Any:
    """onnxruntime's, with a model of that file."""
    made = answering("Session", "run", "run_with_iobinding")
    module(_ONNX, Session=made, InferenceSession=made)
    found = made()
    found._model_path = path
    return found


def test_a_model_of_onnxruntime_may_have_any_name(said: ModelLibraries) -> None:
    assert session("/models/model.ort").run(None, {}) == 1
    assert said.found() == {"model.ort": "onnxruntime"}


def test_a_module_around_a_runtime_runs_on_that(said: ModelLibraries) -> None:
    """As sentence-transformers has one of torch's around onnxruntime, and optimum a loop of transformers'."""
    inner = session("model.onnx")
    base = answering("Module")
    base.__call__ = lambda self: inner.run(None, {}) if type(self).__name__ == "Embedder" else 1
    module(_TORCH, Module=base)
    for name in ("Net", "Embedder"):
        assert type(name, (base,), {})()() == 1
    assert said.found() == {"Net": "torch", "Embedder": "onnxruntime"}


def test_a_loop_that_generates_runs_on_torch_only_where_its_model_is_a_module(
    said: ModelLibraries, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Module:
        pass

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(nn=SimpleNamespace(Module=Module)))
    loop = answering("GenerationMixin", "generate")
    module("transformers.generation.utils", GenerationMixin=loop)
    for name, bases in (("GPT2LMHeadModel", (Module, loop)), ("OVModelForCausalLM", (loop,))):
        type(name, bases, {})().generate()
    assert said.found() == {"GPT2LMHeadModel.generate": "torch"}


def test_a_name_that_two_libraries_have_tells_nothing(said: ModelLibraries) -> None:
    for library in ("xgboost", "lightgbm", "xgboost"):
        said.tell("Booster.predict", library)
    assert said.found() == {}


def recorded(label: str, library: str) -> Recording:
    """Requests whose model takes 4 ms, in a process that has imported torch and scikit-learn."""
    recording = levers.pilot(model_ms=4.0)

    def named(span: RecordedSpan) -> RecordedSpan:
        return msgspec.structs.replace(span, label=label) if span.stage is Stage.MODEL else span

    requests = tuple(msgspec.structs.replace(one, spans=tuple(map(named, one.spans))) for one in recording.requests)
    pilot = ProfiledProcess(
        threads=40, versions={"torch": "2", "scikit-learn": "1"}, libraries={label: library} if library else {}
    )
    recording = msgspec.structs.replace(recording, requests=requests, pilot=pilot)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(recording), type=Recording)


@pytest.mark.parametrize(
    ("label", "library", "reason"),
    [
        pytest.param("CompiledModel", "openvino", OWN_RUNTIME),
        pytest.param("model.ort", "onnxruntime", OWN_RUNTIME),
        ("XGBClassifier.predict", "xgboost", OWN_RUNTIME),
        ("Functional", "keras", "not known: what leaving keras wins; `tailcut build` measures it"),
        ("Thing.predict", "", "not known: the runtime that the model runs on; `tailcut build` measures it"),
    ],
)
def test_a_runtime_wins_only_where_it_is_known_what(label: str, library: str, reason: str) -> None:
    recording = recorded(label, library)
    known = know(recording, (), None, recording.rate)
    assert known.family == library
    found = advise(recording, known=known)
    assert found is not None
    (runtime,) = [one for one in found.levers if one.lever == "runtime"]
    assert runtime.reason == reason
    is_known = reason.startswith("not worth it")
    assert runtime.p95_ms == (pytest.approx((found.p95_ms, found.p95_ms)) if is_known else None)
    assert bool(runtime.basis) == is_known


def test_the_library_that_takes_most_time_is_the_models() -> None:
    """Not the one that is called most: two quick calls prepare what a slow one answers."""
    recording = recorded("CompiledModel", "openvino")
    one = recording.requests[0]
    quick = [
        RecordedSpan(stage=Stage.MODEL, label="Scaler.transform", start_ns=at, end_ns=at + 10, parent=0)
        for at in (1, 20)
    ]
    requests = (msgspec.structs.replace(one, spans=(*one.spans, *quick)),)
    pilot = ProfiledProcess(libraries={**recording.pilot.libraries, "Scaler.transform": "sklearn"})
    recording = msgspec.structs.replace(recording, requests=requests, pilot=pilot)
    assert know(recording, (), None, recording.rate).family == "openvino"
