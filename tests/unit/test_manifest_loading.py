"""Loading: precedence, origins, and the text of every error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailcut.errors import ManifestError
from tailcut.manifest import Duration, Share, Size, load, with_overrides

TOML = """
name = "flight"

[model]
source = "flight:build"

[[model.inputs]]
name = "x"
shape = [-1, 2]
columns = ["temperature", "wind"]

[[model.outputs]]
name = "p"

[slo]
p95 = "25ms"

[features]
entity = ["airport"]
database = "sqlite:///features.db"

[[features.groups]]
name = "weather-now"
key = ["airport"]
columns = ["temperature", "wind"]
ttl = "5m"
sql = "SELECT 1"

[ladder]
[[ladder.rungs]]
name = "+ cache"
set = ["features.cache=memory", "cache.entity.enabled=true"]
"""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    file = tmp_path / "tailcut.toml"
    file.write_text(TOML)
    return file


def refused(manifest: Path, *overrides: str, **environment: str) -> tuple[str, str]:
    """The message and the hint with which a load is refused."""
    with pytest.raises(ManifestError) as caught:
        load(manifest, environment=environment, overrides=overrides)
    return caught.value.message, caught.value.hint


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


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("server.prot=1", "server.prot: no such key in [server]", "did you mean server.port?"),
        ("port=1", "port: no such key in the manifest", "did you mean server.port?"),
        ("server.max_body_bytes=1", "server.max_body_bytes: no such key in [server]", "did you mean server.max_body?"),
        ("pool.zzz=1", "pool.zzz: no such key in [pool]", "its keys are executor, executors, threads"),
        (
            "server.port=70000",
            "server.port: 70000 is not an integer from 0 to 65535",
            "for example --set 'server.port=8700'",
        ),
        (
            "server.port=true",
            "server.port: true is not an integer from 0 to 65535",
            "for example --set 'server.port=8700'",
        ),
        ("pool.threads=0", "pool.threads: 0 is not an integer of at least 1", "for example --set 'pool.threads=1'"),
        ("slo.rate=0", "slo.rate: 0 is not a number above 0", "for example --set 'slo.rate=100.0'"),
        (
            "features.cache=reddis",
            'features.cache: "reddis" is not one of "memory", "off", "redis"; did you mean "redis"?',
            "for example --set 'features.cache=memory'",
        ),
        (
            'features.timeout="5"',
            'features.timeout: "5" has no unit; write "5s" or "5ms"',
            "for example --set 'features.timeout=500ms'",
        ),
        ("slo.p95=5", 'slo.p95: 5 has no unit; write "5s" or "5ms"', "for example --set 'slo.p95=25ms'"),
        (
            "server.max_body=16 Mib",
            'server.max_body: "16 Mib" has the unknown unit "Mib"; the units are B, KB, MB, GB, KiB, MiB, GiB',
            "for example --set 'server.max_body=16MiB'",
        ),
        (
            "slo.errors=5",
            'slo.errors: 5 is not between 0 and 1; write a fraction, or a percentage such as "5%"',
            "for example --set 'slo.errors=0.1%'",
        ),
        (
            "cache.entity.enabled=yes",
            'cache.entity.enabled: "yes" is not true or false',
            "for example --set 'cache.entity.enabled=false'",
        ),
        (
            "features.entity=id",
            'features.entity: "id" is not an array of strings',
            "for example --set 'features.entity=[\"airport\"]'",
        ),
        ("quality.budget.auc=x", 'quality.budget: { auc = "x" } is not a table whose values are each a number', ""),
        ("model.inputs=[]", "model.inputs: [] is empty; at least one is needed", "write [[model.inputs]]"),
        ("server=3", "server: 3 is not a table", "write [server] and its keys below it"),
        ("server.port.x=3", "server.port.x: server.port is a value and has no keys below it", "set server.port itself"),
        (
            "features.groups.wether.ttl=1s",
            "features.groups.wether.ttl: features.groups has no element named wether",
            "",
        ),
        (
            "features.groups.weather-now=1",
            "features.groups.weather-now: a whole element cannot be set",
            "KEY is one of name, key",
        ),
        ("server..port=1", "'server..port' is not a path: a part is empty", "write for example server.port"),
        ('ladder.rungs."a.variant=1', '--set ladder.rungs."a.variant=1: no value', "write path=value"),
        ("name=a b", "name: \"a b\" is not a name (letters, digits, '_', '-' and '.', first a letter or digit)", ""),
    ],
)
def test_errors_name_path_value_limit_and_way_out(manifest: Path, override: str, message: str, hint: str) -> None:
    seen_message, seen_hint = refused(manifest, override)
    assert seen_message == message
    assert hint in seen_hint


def test_hints_speak_of_the_place_that_the_value_came_from(manifest: Path) -> None:
    assert refused(manifest, TAILCUT_SERVER__PORT="x")[1] == "for example TAILCUT_SERVER__PORT='8700'"
    manifest.write_text(TOML + '\n[server]\nport = "x"\n')
    assert refused(manifest) == (
        'server.port: "x" is not an integer from 0 to 65535',
        "for example port = 8700 in [server] of the manifest",
    )


def test_unknown_variables_are_refused_with_the_nearest_name(manifest: Path) -> None:
    message, hint = refused(manifest, TAILCUT_SERVER__PROT="1")
    assert message == "TAILCUT_SERVER__PROT: tailcut has no such setting"
    assert hint == "did you mean TAILCUT_SERVER__PORT?"
    assert refused(manifest, TAILCUT_PORT="1")[1] == "did you mean TAILCUT_SERVER__PORT?"
    assert refused(manifest, TAILCUT_QQQ="1")[1] == "docs/reference/manifest.md lists them all"
    message, _ = refused(manifest, TAILCUT_FEATURES__GROUPS__NOPE__TTL="1s")
    assert message == "TAILCUT_FEATURES__GROUPS__NOPE__TTL: features.groups has no element named nope"


def test_unknown_and_missing_keys_of_the_file(manifest: Path) -> None:
    manifest.write_text(TOML.replace('p95 = "25ms"', 'timeot = "25ms"'))
    assert refused(manifest) == ("slo.timeot: no such key in [slo]", "did you mean slo.timeout?")
    manifest.write_text(TOML.replace('ttl = "5m"', ""))
    assert refused(manifest) == (
        "features.groups.weather-now.ttl: missing, and it has no default",
        'for example ttl = "5m" in [features.groups.weather-now] of the manifest',
    )
    manifest.write_text(TOML.replace('name = "flight"', ""))
    assert refused(manifest)[0] == "name: missing, and it has no default"


def test_unreadable_files(manifest: Path) -> None:
    manifest.write_text("name = \n")
    message, _ = refused(manifest)
    assert message.startswith(f"{manifest}: not valid TOML: ")
    assert "line 1" in message
    manifest.write_bytes(b'name = "\xff"')
    assert "not UTF-8" in refused(manifest)[0]
    manifest.unlink()
    assert refused(manifest) == (
        f"{manifest}: there is no manifest",
        "write one with `tailcut init`, or name it with --manifest PATH",
    )


def test_rungs_are_tried_one_upon_the_other(manifest: Path) -> None:
    """The second rung is right only on top of the first."""
    rungs = '\n[[ladder.rungs]]\nname = "r1"\nset = ["features.redis=redis://h:1/0"]\n'
    rungs += '[[ladder.rungs]]\nname = "r2"\nset = ["features.cache=redis"]\n'
    manifest.write_text(TOML + rungs)
    assert len(load(manifest, environment={}).deployment.ladder.rungs) == 3
    manifest.write_text(TOML + rungs.replace("features.redis=redis://h:1/0", "server.port=1"))
    assert refused(manifest)[0] == 'ladder.rungs.r2.set: features.cache: "redis" needs features.redis, which is empty'


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("features.cahce=off", '"features.cahce=off": features.cahce: no such key in [features]'),
        ("server.port=x", 'server.port: "x" is not an integer from 0 to 65535'),
        ("server.port", '"server.port": --set server.port: no value'),
        ("ladder.pilot_path=/x", '"ladder.pilot_path=/x": a rung cannot change the ladder itself'),
    ],
)
def test_a_wrong_rung_is_refused_by_name(manifest: Path, setting: str, message: str) -> None:
    manifest.write_text(TOML + f"\n[[ladder.rungs]]\nname = 'bad'\nset = ['{setting}']\n")
    assert refused(manifest)[0] == f"ladder.rungs.bad.set: {message}"


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
    with pytest.raises(ManifestError, match=r"server\.kill: 1s is before server\.drain = 3s"):
        with_overrides(load(manifest, environment={}), ["server.kill=1s"])
