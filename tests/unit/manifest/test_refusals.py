"""Loading: the text of every error, and rungs that cannot be climbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.manifest_kit import TOML, refused, written

from tailcut.manifest import load


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.mark.parametrize(
    ("override", "message", "hint"),
    [
        ("server.prot=1", "server.prot: no such key in [server]", "did you mean server.port?"),
        ("port=1", "port: no such key in the manifest", "did you mean server.port?"),
        ('SLO.p95="5ms"', "SLO: no such key in the manifest", "did you mean slo.p95?"),
        ("server.max_body_bytes=1", "server.max_body_bytes: no such key in [server]", "did you mean server.max_body?"),
        ("pool.zzz=1", "pool.zzz: no such key in [pool]", "its keys are executor, executors, max_executors, recycle_"),
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
        ("pool.threads=-1", "pool.threads: -1 is not an integer of at least 0", "for example --set 'pool.threads=0'"),
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
        ("server.port.x=3", "server.port.x: server.port is a value and has no keys", "set server.port itself"),
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
        ('ladder.rungs."a.variant=1', 'ladder.rungs."a.variant: the quotes do not close', "write for example"),
        (
            "name=a b",
            "name: \"a b\" is not a name (letters, digits, '_', '-' and '.', starting with a letter or digit)",
            "",
        ),
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
    assert refused(manifest, TAILCUT_QQQ="1")[1] == "see docs/reference/manifest.md for all settings"
    message, _ = refused(manifest, TAILCUT_FEATURES__GROUPS__NOPE__TTL="1s")
    assert message == "TAILCUT_FEATURES__GROUPS__NOPE__TTL: features.groups has no element named nope"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("TAILCUT_SERVER_PORT", "TAILCUT_SERVER__PORT"),
        ("TAILCUT_SERVER___PORT", "TAILCUT_SERVER__PORT"),
        ("TAILCUT_SERVR_PRT", "TAILCUT_SERVER__PORT"),
        ("TAILCUT_FEATURE__CACHE", "TAILCUT_FEATURES__CACHE"),
        ("TAILCUT_CACHE_ENTITY_STALE_FOR", "TAILCUT_CACHE__ENTITY__STALE_FOR"),
        ("TAILCUT_LADDER__PILOT__PATH", "TAILCUT_LADDER__PILOT_PATH"),
        ("TAILCUT_QUALITY_BUDGET_LOG_LOSS", "TAILCUT_QUALITY__BUDGET__LOG_LOSS"),
        ("TAILCUT_FEATURES_GROUPS_WEATHER_NOW_TTL", "TAILCUT_FEATURES__GROUPS__WEATHER_NOW__TTL"),
        ("TAILCUT_FEATURES__GROUPS__WEATHER_NOW_STALE_FOR", "TAILCUT_FEATURES__GROUPS__WEATHER_NOW__STALE_FOR"),
        ("TAILCUT_FEATURES__GROUPS__WETHER_NOW__TTL", "TAILCUT_FEATURES__GROUPS__WEATHER_NOW__TTL"),
        ("TAILCUT_MODEL_INPUTS_X_MAX", "TAILCUT_MODEL__INPUTS__X__MAX"),
    ],
)
def test_a_variable_with_wrong_underscores_is_refused_with_the_right_one(
    manifest: Path, written: str, meant: str
) -> None:
    message, hint = refused(manifest, **{written: "1"})
    assert message.startswith(f"{written}: ")
    assert hint == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("server_port", "server.port"),
        ("SERVER__PORT", "server.port"),
        ("TAILCUT_SERVER__PORT", "server.port"),
        ("servr.port", "server.port"),
        ("slo.p-95", "slo.p95"),
        ("quality_budget.auc", "quality.budget.auc"),
        ("features.groups.weather_now.ttl", "features.groups.weather-now.ttl"),
        ("features.groups.weather-now_ttl", "features.groups.weather-now.ttl"),
        ('ladder.rungs."+cache".variant', 'ladder.rungs."+ cache".variant'),
    ],
)
def test_a_flag_with_wrong_separators_is_refused_with_the_right_path(manifest: Path, written: str, meant: str) -> None:
    assert refused(manifest, f"{written}=1")[1] == f"did you mean {meant}?"


def test_a_key_of_the_file_with_wrong_separators_is_refused_with_the_right_path(manifest: Path) -> None:
    manifest.write_text(f"server_port = 1\n{TOML}")
    assert refused(manifest) == ("server_port: no such key in the manifest", "did you mean server.port?")


KUBERNETES = {
    "SERVICE_HOST": "10.96.0.12",
    "SERVICE_PORT": "8700",
    "SERVICE_PORT_HTTP": "8700",
    "SERVICE_PORT_GRPC_ADMIN": "8701",
    "PORT": "tcp://10.96.0.12:8700",
    "PORT_8700_TCP": "tcp://10.96.0.12:8700",
    "PORT_8700_TCP_ADDR": "10.96.0.12",
    "PORT_8700_TCP_PORT": "8700",
    "PORT_8700_TCP_PROTO": "tcp",
    "PORT_53_UDP": "udp://10.96.0.12:53",
    "PORT_53_UDP_PROTO": "udp",
}


@pytest.mark.parametrize("service", ["TAILCUT", "TAILCUT_FLIGHT_RISK", "TAILCUT_SERVER", "TAILCUT_2", "TAILCUT_A__B"])
def test_variables_that_kubernetes_sets_for_a_service_are_ignored(manifest: Path, service: str) -> None:
    """Its Services are named by people: one called tailcut-server must not keep a pod from starting."""
    environment = {f"{service}_{name}": text for name, text in KUBERNETES.items()}
    environment["TAILCUT_SERVER__PORT"] = "9000"
    loaded = load(manifest, environment=environment)
    assert loaded.deployment.server.port == 9000
    assert [path for path, origin in loaded.origins.items() if origin == "environment"] == ["server.port"]


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("TAILCUT_PORT", "8700"),
        ("TAILCUT_SERVER_PORT", "8700"),
        ("TAILCUT_SERVER__PRT", "tcp://10.96.0.12:8700"),
        ("TAILCUT_SERVER__PORT_8700_TCP", "tcp://10.96.0.12:8700"),
        ("TAILCUT_SERVICE", "x"),
        ("TAILCUT_SERVICE_HOSTS", "10.96.0.12"),
        ("TAILCUT_PORT_TCP", "tcp://10.96.0.12:8700"),
    ],
)
def test_variables_that_only_look_like_those_of_kubernetes_are_refused(
    manifest: Path, variable: str, text: str
) -> None:
    assert refused(manifest, **{variable: text})[0] == f"{variable}: tailcut has no such setting"


def test_a_setting_whose_last_part_looks_like_one_of_kubernetes_is_set(manifest: Path) -> None:
    """A budget's name is the user's."""
    manifest.write_text(f'{TOML}\n[quality.metrics]\na_service_port = "m:f"\n')
    loaded = load(manifest, environment={"TAILCUT_QUALITY__BUDGET__A_SERVICE_PORT": "0.5"})
    assert loaded.deployment.quality.budget == {"a_service_port": 0.5}


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
        f"{manifest}: no manifest found",
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
