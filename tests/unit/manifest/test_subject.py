"""The model that a command is about, and the models that compute features for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.chain_kit import add_chain
from tests.host_kit import add_model

from tailcut.errors import ManifestError
from tailcut.load.serve_command import serve_arguments
from tailcut.manifest.host import load_host
from tailcut.manifest.subject import CommandSubject, find_subject


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a parent and the child that computes its features."""
    return add_chain(tmp_path / "models")


def found(*paths: Path, **more: object) -> CommandSubject:
    return find_subject(paths, environment={}, **more)  # type: ignore[arg-type]


def test_the_subject_is_the_model_that_computes_features_for_no_other(folder: Path) -> None:
    for paths in ([folder], [folder / "parent", folder / "child"], [folder / "child", folder / "parent"]):
        subject = found(*paths)
        assert subject.name == "parent"
        assert [hosted.name for hosted in subject.needed] == ["child"]
        subject.refuse_missing()


def test_a_model_that_is_named_comes_with_what_it_needs_and_nothing_else(folder: Path) -> None:
    add_model(folder, "other")
    child = found(folder, model="child")
    assert [hosted.name for hosted in child.host.models] == ["child"]
    parent = found(folder, model="parent")
    assert [hosted.name for hosted in parent.host.models] == ["child", "parent"]


def test_where_several_may_be_meant_they_are_named_with_the_flag(folder: Path) -> None:
    add_model(folder, "other")
    with pytest.raises(ManifestError, match=r"2 models compute features for no other.*'other', 'parent'") as error:
        found(folder)
    assert error.value.hint == "name it with --model NAME"
    with pytest.raises(ManifestError, match="--model nobody: there is no such model") as error:
        found(folder, model="nobody")
    assert error.value.hint == "the models are 'child', 'other', 'parent'"


def test_a_model_that_was_not_given_is_named_with_its_group_and_the_way_out(folder: Path) -> None:
    subject = found(folder / "parent")  # on its own that is no error: not every command needs the other
    with pytest.raises(ManifestError, match=r"model 'parent': features\.groups \"text\".*model 'child'") as error:
        subject.refuse_missing()
    assert error.value.hint == f"add -m {folder / 'child' / 'tailcut.toml'}"
    with pytest.raises(ManifestError, match="not given"):
        serve_arguments(subject)


def test_a_broken_manifest_ends_what_may_need_it(folder: Path) -> None:
    (folder / "child" / "tailcut.toml").write_text("name = 1\n")
    with pytest.raises(ManifestError, match="child"):
        found(folder)
    subject = found(folder, model="parent")
    with pytest.raises(ManifestError, match="child"):
        subject.refuse_missing()


def test_settings_of_one_model_leave_the_others_alone(folder: Path) -> None:
    subject = found(folder, overrides=["slo.rate=7", "child:slo.rate=8"], own=["batching.max_rows=4", "server.port=9"])
    parent, child = subject.manifest.deployment, subject.needed[0].manifest
    assert child is not None
    assert (parent.slo.rate, child.deployment.slo.rate) == (7, 8)
    assert (parent.batching.max_rows, child.deployment.batching.max_rows) == (4, 32)
    assert subject.host.server.port == 9


def test_a_setting_of_a_model_that_is_not_there_is_refused(folder: Path) -> None:
    with pytest.raises(ManifestError, match=r"--set nobody:slo\.rate: there is no model 'nobody' here") as error:
        load_host([folder], environment={}, overrides=["nobody:slo.rate=1"])
    assert "the models are 'child', 'parent'" in error.value.hint
    with pytest.raises(ManifestError, match=r"--set child:server\.port: \[server\] is of no model"):
        load_host([folder], environment={}, overrides=["child:server.port=1"])


def test_a_path_with_a_colon_inside_quotes_names_no_model(folder: Path) -> None:
    with pytest.raises(ManifestError, match="has no element named a:b"):
        load_host([folder / "child"], environment={}, overrides=['ladder.rungs."a:b".variant=x'])


def test_a_subject_is_served_with_what_it_needs_and_its_settings_are_its_own(folder: Path) -> None:
    add_model(folder, "other")
    (folder / "host.toml").write_text(
        "[server]\nmax_body = '1KiB'\ntokens = 'tokens'\n"
        "[[models]]\npath = 'child'\n[[models]]\npath = 'other'\n[[models]]\npath = 'parent'\n"
    )
    subject = found(folder, model="parent", overrides=["slo.rate=7", "other:slo.rate=8"])
    files, settings = serve_arguments(subject, before=["cache.entity.enabled=false"], settings=["serve.variant=int8"])
    assert files == [folder / "child" / "tailcut.toml", folder / "parent" / "tailcut.toml"]
    assert settings[0] == "cache.entity.enabled=false"
    assert settings[-1] == "parent:serve.variant=int8"
    assert 'server.max_body="1KB"' in settings or 'server.max_body="1KiB"' in settings
    assert not [text for text in settings if text.startswith(("other:", 'server.tokens="tokens'))]
    served = load_host(files, environment={}, overrides=settings)
    variants = {each.name: each.manifest.deployment.serve.variant for each in served.models if each.manifest}
    assert variants == {"child": "source", "parent": "int8"}
    assert (served.server.max_body_bytes, served.server.tokens) == (1024, "")


def test_one_manifest_keeps_its_own_server(folder: Path) -> None:
    path = folder / "child" / "tailcut.toml"
    path.write_text(path.read_text() + "[server]\nmax_body = '1KiB'\n")
    files, settings = serve_arguments(found(folder / "child"), settings=["serve.variant=int8"])
    assert files == [path]
    assert settings[-1] == "serve.variant=int8"
    assert not [text for text in settings if text.startswith("server.max_body")]
    served = load_host(files, environment={}, overrides=settings)
    assert served.server.max_body_bytes == 1024


def test_a_measurement_leaves_nothing_behind_and_sends_nothing_out(folder: Path) -> None:
    path = folder / "child" / "tailcut.toml"
    path.write_text(
        path.read_text()
        + "[observe.traces]\nendpoint = 'http://127.0.0.1:4318'\n"
        + "[observe.history]\npath = 'history.sqlite'\n[request_log]\npath = 'log'\n"
    )
    files, settings = serve_arguments(found(folder / "child"))
    served = load_host(files, environment={}, overrides=settings)
    (model,) = served.models
    assert model.manifest is not None
    assert served.observe.history.path == "off"
    assert not served.observe.alerts.enabled
    assert served.observe.traces.endpoint == "off"
    assert model.manifest.deployment.request_log.path == ""
