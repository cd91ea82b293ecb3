from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailcut.engine.version import deployment_version
from tailcut.manifest import Deployment, Duration, FeatureGroup, Features, Model, Server, Slo, Tensor

BASE = Deployment(
    name="m",
    model=Model(source="m:m", inputs=(Tensor(name="x"),), outputs=(Tensor(name="y"),)),
    features=Features(
        entity=("id",),
        database="sqlite:///a.db",
        groups=(FeatureGroup(name="g", key=("id",), columns=("a",), ttl="5s", sql="SELECT id, a FROM t"),),
    ),
)
SHA = "0" * 64


def replaced(path: str, value: Any) -> Deployment:
    """BASE with the value at a dotted path replaced."""
    head, _, rest = path.partition(".")
    inner = getattr(BASE, head)
    return msgspec.structs.replace(BASE, **{head: msgspec.structs.replace(inner, **{rest: value}) if rest else value})


def test_the_same_deployment_has_the_same_version() -> None:
    assert deployment_version(BASE, SHA, []) == deployment_version(copy.deepcopy(BASE), SHA, [])
    assert len(deployment_version(BASE, SHA, [])) == 16


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", "other"),
        ("model.preprocess", "m:pre"),
        ("model.postprocess", "m:post"),
        ("model.outputs", (Tensor(name="z"),)),
        ("features.entity", ("key",)),
        ("features.groups", (msgspec.structs.replace(BASE.features.groups[0], sql="SELECT id, b AS a FROM t"),)),
        ("features.groups", (msgspec.structs.replace(BASE.features.groups[0], defaults={"a": 1}),)),
    ],
)
def test_what_an_answer_depends_on_changes_it(path: str, value: Any) -> None:
    assert deployment_version(replaced(path, value), SHA, []) != deployment_version(BASE, SHA, [])


@pytest.mark.parametrize(
    ("path", "value"), [("server", Server(port=1)), ("slo", Slo(p95_s=Duration(1.0))), ("features.max_bytes", 1)]
)
def test_what_no_answer_depends_on_does_not(path: str, value: Any) -> None:
    assert deployment_version(replaced(path, value), SHA, []) == deployment_version(BASE, SHA, [])


def test_another_artifact_changes_it() -> None:
    assert deployment_version(BASE, "1" * 64, []) != deployment_version(BASE, SHA, [])


def loaded(path: Path, source: str) -> Callable[..., Any]:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("some_hook", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    hook: Callable[..., Any] = module.hook
    return hook


def test_an_edit_of_a_helper_beside_the_hook_changes_it(tmp_path: Path) -> None:
    source = "def helper(x):\n    return x\n\ndef hook(rows):\n    return helper(rows)\n"
    before = deployment_version(BASE, SHA, [loaded(tmp_path / "a.py", source)])
    assert before == deployment_version(BASE, SHA, [loaded(tmp_path / "b.py", source)])
    after = deployment_version(BASE, SHA, [loaded(tmp_path / "a.py", source.replace("return x", "return x + 1"))])
    assert before != after


def passed_on(hook: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(hook)
    def wrapper(rows: Any) -> Any:
        return hook(rows)

    return wrapper


def test_hooks_that_are_wrapped_bound_or_without_a_file_are_told_apart(tmp_path: Path) -> None:
    hook = loaded(tmp_path / "a.py", "def hook(rows):\n    return rows\n")
    other = loaded(tmp_path / "b.py", "def hook(rows):\n    return rows + 1\n")
    hooks = [
        hook,
        other,
        functools.partial(hook, 1),
        functools.partial(other, 1),
        functools.partial(hook, 2),
        passed_on(hook),
        passed_on(other),
        eval("lambda rows: rows"),
        eval("lambda rows: rows + 1"),
        eval("lambda rows: rows + 2"),
    ]
    assert len({deployment_version(BASE, SHA, [made]) for made in hooks}) == len(hooks)
