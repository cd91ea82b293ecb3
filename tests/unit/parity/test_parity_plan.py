"""Parity: URLs of both sides, what is kept of them, and the plan that is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tailcut.errors import ManifestError
from tailcut.manifest import Manifest, load
from tailcut.parity.matching import NothingCompared, check_pilot
from tailcut.parity.payloads import Payload
from tailcut.parity.plan import ParityPlan, check_plan
from tailcut.parity.run import open_pilot

MANIFEST = """
name = "m"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4] }]
outputs = [{ name = "y" }]
"""
CLOSED = "http://127.0.0.1:1/predict?api_key=k3y"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    return load(tmp_path)


@pytest.mark.parametrize(
    ("path", "kept"), [("", "http://127.0.0.1:1/predict?…"), ("/a?k=k3y", "http://127.0.0.1:1/a?…")]
)
def test_the_pilots_name_has_no_secret_of_its_url(manifest: Manifest, path: str, kept: str) -> None:
    with open_pilot(ParityPlan(pilot=CLOSED, path=path), manifest, {}, lambda _: None) as pilot:
        assert pilot.name == kept
        assert pilot.asker.url.endswith("k3y")


def test_a_pilot_that_does_not_answer_is_named_without_its_secrets(manifest: Manifest) -> None:
    payload = Payload("", b"{}", {})
    with (
        open_pilot(ParityPlan(pilot=CLOSED), manifest, {}, lambda _: None) as pilot,
        pytest.raises(NothingCompared, match="the pilot answered none") as caught,
    ):
        check_pilot([payload], pilot.asker)
    assert "k3y" not in caught.value.message
    assert "--path" in caught.value.hint


@pytest.mark.parametrize(
    ("plan", "hint"),
    [
        (ParityPlan(pilot="http://bob:s3cret@h/predict"), "give --header 'Authorization: ...'"),
        (ParityPlan(deployment="http://bob:s3cret@h/"), "give --deployment-header 'Authorization: ...'"),
        (ParityPlan(pilot="http://h:port/"), "give a full URL"),
        (ParityPlan(deployment="h:8700"), "give a full URL"),
    ],
)
def test_a_url_that_cannot_be_asked_is_refused_with_the_flag_to_give(plan: ParityPlan, hint: str) -> None:
    with pytest.raises(ManifestError) as caught:
        check_plan(plan)
    assert hint in caught.value.hint
    assert "s3cret" not in caught.value.message


def test_an_application_is_no_url() -> None:
    plan = ParityPlan(pilot="app:app", deployment="http://h:8700")
    check_plan(plan)
    with pytest.raises(ManifestError, match="--requests is 0"):
        check_plan(replace(plan, requests=0))


def test_a_header_for_a_deployment_that_is_not_given_is_refused() -> None:
    with pytest.raises(ManifestError, match="--deployment-header without --deployment"):
        check_plan(ParityPlan(deployment_headers=(("Authorization", "Bearer t"),)))
