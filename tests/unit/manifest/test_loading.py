"""Loading: precedence, origins, and values as they are written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.manifest_kit import refused, written

from tailcut.errors import ManifestError
from tailcut.manifest import Duration, Share, Size, load, with_overrides
from tailcut.manifest.loading import absolute


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return written(tmp_path)


def test_flag_wins_over_environment_over_file_over_default(manifest: Path) -> None:
    environment = {"TAILCUT_SLO__P95": "20ms", "TAILCUT_SERVER__PORT": "9000"}
    loaded = load(manifest, environment=environment, overrides=["server.port=9001"])
    assert loaded.deployment.slo.p95_s == 0.020
    assert loaded.deployment.server.port == 9001
    assert loaded.deployment.server.host == "127.0.0.1"
    assert loaded.origins["name"] == "file"
    assert loaded.origins["slo.p95"] == "environment"
    assert loaded.origins["server.port"] == "flag"
    assert "server.host" not in loaded.origins


def test_the_last_of_two_flags_wins(manifest: Path) -> None:
    assert load(manifest, environment={}, overrides=["server.port=1", "server.port=2"]).deployment.server.port == 2


def test_units_become_their_classes(manifest: Path) -> None:
    deployment = load(manifest, environment={}, overrides=["server.max_body=1MiB", "slo.errors=0.5%"]).deployment
    assert type(deployment.slo.p95_s) is Duration
    assert type(deployment.slo.timeout_s) is Duration
    assert type(deployment.server.max_body_bytes) is Size
    assert deployment.server.max_body_bytes == 1024 * 1024
    assert type(deployment.slo.errors) is Share
    assert deployment.slo.errors == 0.005


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("server.port=8800", "server.port", 8800),
        ("features.cache=off", "features.cache", "off"),
        ('features.cache="off"', "features.cache", "off"),
        ("features.timeout_s", None, None),
        ("cache.entity.enabled=true", "cache.entity.enabled", True),
        ('python_path=[".", "src"]', "python_path", (".", "src")),
        ("name=2024", "name", "2024"),
        ("server.tenant_header=true", "server.tenant_header", "true"),
        ("slo.rate=50", "slo.rate", 50.0),
        ("server.host=", "server.host", ""),
    ],
)
def test_texts_are_read_as_toml_where_they_fit(manifest: Path, override: str, path: str | None, value: Any) -> None:
    if path is None:
        assert "no value" in refused(manifest, override)[0]
        return
    found: Any = load(manifest, environment={}, overrides=[override]).deployment
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_elements_of_named_lists_are_set_by_name(manifest: Path) -> None:
    overrides = [
        "features.groups.weather-now.ttl=9s",
        'ladder.rungs."+ cache".variant=onnx',
        "model.inputs.x.allow_nan=true",
    ]
    loaded = load(manifest, environment={"TAILCUT_FEATURES__GROUPS__WEATHER_NOW__STALE_FOR": "1h"}, overrides=overrides)
    group = loaded.deployment.features.groups[0]
    assert (group.ttl, group.stale_for_s) == ("9s", 3600.0)
    assert loaded.deployment.ladder.rungs[0].variant == "onnx"
    assert loaded.deployment.model.inputs[0].allow_nan
    assert loaded.origins["features.groups.weather-now.stale_for"] == "environment"
    assert loaded.origins["features.groups.weather-now.ttl"] == "flag"


def test_keys_of_tables_with_free_names_are_set_one_by_one(manifest: Path) -> None:
    loaded = load(manifest, environment={"TAILCUT_QUALITY__BUDGET__AUC": "0.004"}, overrides=["quality.budget.f1=0.01"])
    assert loaded.deployment.quality.budget == {"auc": 0.004, "f1": 0.01}


def test_a_folder_stands_for_its_manifest_and_directory_is_absolute(
    manifest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(manifest.parent)
    assert load(Path(), environment={}).directory == manifest.parent.resolve()


def test_the_process_environment_is_read_where_none_is_given(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILCUT_SERVER__PORT", "9100")
    monkeypatch.setenv("TAILCUT_MANIFEST", str(manifest))
    assert load(manifest).deployment.server.port == 9100


def test_a_variable_may_have_a_default(manifest: Path) -> None:
    overrides = ["features.cache=${WHERE:-memory}", "features.redis=${REDIS:-}"]
    assert load(manifest, environment={}, overrides=overrides).deployment.features.cache == "memory"
    environment = {"WHERE": "redis", "REDIS": "redis://localhost:6379/0"}
    features = load(manifest, environment=environment, overrides=overrides).deployment.features
    assert (features.cache, features.redis) == ("redis", "redis://localhost:6379/0")


def test_addresses_are_filled_in_from_the_environment(manifest: Path) -> None:
    override = "features.database=postgresql://app:${DB_PASSWORD}@db/flights"
    loaded = load(manifest, environment={"DB_PASSWORD": "s3"}, overrides=[override])
    assert loaded.deployment.features.database == "postgresql://app:s3@db/flights"
    assert refused(manifest, override) == (
        "features.database: the environment variable DB_PASSWORD is not set",
        "export DB_PASSWORD=..., or give --set 'features.database=VALUE'",
    )
    kept = load(manifest, environment={}, overrides=["features.database=${DB}"], keep_unset=True)
    assert kept.deployment.features.database == "${DB}"


def test_with_overrides_leaves_the_first_manifest_as_it_was(manifest: Path) -> None:
    first = load(manifest, environment={}, overrides=["quality.budget.auc=0.004"])
    second = with_overrides(first, ["quality.budget.auc=0.01", "features.groups.weather-now.ttl=1s", "slo.p99=40ms"])
    assert first.deployment.quality.budget == {"auc": 0.004}
    assert first.deployment.features.groups[0].ttl == "5m"
    assert second.deployment.quality.budget == {"auc": 0.01}
    assert second.deployment.slo.p99_s == 0.040
    assert second.origins["slo.p99"] == "flag"
    assert "slo.p99" not in first.origins
    assert second.directory == first.directory


def test_with_no_overrides_nothing_changes(manifest: Path) -> None:
    first = load(manifest, environment={})
    assert with_overrides(first, []) == first


def test_with_overrides_refuses_what_load_refuses(manifest: Path) -> None:
    with pytest.raises(ManifestError, match=r"server\.kill: 1s is less than server\.drain = 3s"):
        with_overrides(load(manifest, environment={}), ["server.kill=1s"])


def test_the_folder_of_a_manifest_keeps_its_links_and_loses_dots(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to("deep/er")
    monkeypatch.chdir(tmp_path / "deep")
    assert absolute(Path("../link")) == tmp_path / "link"
    assert absolute(Path()) == tmp_path / "deep"
    above = tmp_path / "link" / ".." / ".."
    assert absolute(above / "x") == above / "x", "above what the link leads to, which is not above the link"
    assert absolute(tmp_path / "link" / "sub" / ".." / "x") == tmp_path / "link" / "x"
    assert absolute(Path("/../..")) == Path("/")
    assert load(above / manifest.name, environment={}).directory == above
