"""Combinations that cannot work are refused, each by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailcut.errors import ManifestError
from tailcut.manifest import Manifest, load
from tailcut.manifest.keys import to_toml

GROUP: dict[str, Any] = {"name": "g", "key": ["id"], "columns": ["a", "b"], "ttl": "5m", "sql": "SELECT 1"}


def loaded(tmp_path: Path, *, groups: list[dict[str, Any]] | None = None, overrides: tuple[str, ...] = ()) -> Manifest:
    """A small deployment that is right, with what the test changes."""
    lines = [
        'name = "m"',
        '[model]\nsource = "m:build"\ninputs = [{ name = "x", shape = [-1, 2], columns = ["a", "b"] }]',
        'outputs = [{ name = "y" }]',
        '[features]\nentity = ["id"]\ndatabase = "sqlite:///f.db"',
        f"groups = {to_toml([GROUP] if groups is None else groups)}",
    ]
    file = tmp_path / "tailcut.toml"
    file.write_text("\n".join(lines))
    return load(file, environment={}, overrides=overrides)


def changed(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in (GROUP | values).items() if value is not None}


def test_the_starting_point_is_right(tmp_path: Path) -> None:
    assert loaded(tmp_path).deployment.features.groups[0].name == "g"


GROUPS = [
    ([changed(sql=None)], "features.groups.g: has no source", "give it sql, function or model"),
    ([changed(function="m:f")], "features.groups.g: has both sql and function", "keep one source"),
    ([changed(sql=None, preload_sql="S", function="m:f")], "features.groups.g: has both preload_sql and function", ""),
    ([changed(sql=None, preload_sql="S")], "features.groups.g: has no source", ""),
    (
        [changed(preload=True)],
        "features.groups.g.preload: true needs preload_sql or function, but neither is set",
        "",
    ),
    (
        [changed(key=["zip"])],
        "features.groups.g.key: zip is neither a field of the entity nor a column of a group",
        "known are: id, a, b",
    ),
    ([changed(key=["a"])], "features.groups.g.key: a is a column of this group itself", ""),
    (
        [GROUP, changed(name="h", key=["d"], columns=["c"]), changed(name="i", key=["c"], columns=["d"])],
        "features.groups: h, i depend on each other: the key of each has a column of another",
        "give one of them a key of entity fields only",
    ),
    ([GROUP, changed(name="h", columns=["b"])], "features.groups.h.columns: b also belongs to group g", "AS h_b"),
    ([GROUP, changed(columns=["c"])], "features.groups: two groups are named g", "give each its own name"),
    ([changed(columns=["a", "b", "id"])], "features.groups.g.columns: id is already a field of the entity", "AS g_id"),
    ([changed(columns=["a", "b", "a"])], "features.groups.g.columns: a is listed twice", ""),
    ([changed(key=["id", "id"])], "features.groups.g.key: id is listed twice", ""),
    ([changed(defaults={"a": 1})], "features.groups.g.defaults: b have no default, but other columns have", "404"),
    (
        [changed(defaults={"a": 1, "b": 2, "bb": 3})],
        "features.groups.g.defaults: bb is not a column of this group",
        "mean b?",
    ),
    (
        [changed(preload=True, preload_sql="S", per_tenant=True)],
        "features.groups.g.preload: a preloaded table has no values per tenant",
        "remove per_tenant",
    ),
    (
        [changed(preload=True, preload_sql="S", ttl="m:f")],
        "features.groups.g.ttl: a function, but a preloaded table has one TTL",
        "30s",
    ),
    ([changed(ttl="5")], 'features.groups.g.ttl: "5" has no unit; write "5s" or "5ms"', "package.module:callable"),
    ([changed(ttl="0s")], "features.groups.g.ttl: 0s would never be fresh", 'features.cache = "off"'),
    (
        [changed(sql=None, function="f")],
        'features.groups.g.function: "f" is not a reference',
        "package.module:callable",
    ),
    ([changed(columns=["a"])], "model.inputs.x.columns: no feature group yields b", "known columns are: id, a"),
]


@pytest.mark.parametrize(("groups", "message", "hint"), GROUPS, ids=[one[1] for one in GROUPS])
def test_feature_groups(tmp_path: Path, groups: list[dict[str, Any]], message: str, hint: str) -> None:
    with pytest.raises(ManifestError) as caught:
        loaded(tmp_path, groups=groups)
    assert caught.value.message == message
    assert hint in caught.value.hint


OVERRIDES = [
    ("features.entity=[]", "features.entity: empty, but there are feature groups", 'entity = ["id"]'),
    ("features.database=", "features.database: empty, but g read with SQL", "sqlite:///"),
    (
        "features.database=mysql://x",
        'features.database: tailcut cannot open a URL that begins with "mysql:"',
        "sqlite:///",
    ),
    (
        "features.cache=redis",
        'features.cache: "redis" needs features.redis, which is empty',
        "redis://localhost:6379/0",
    ),
    ("features.timeout=0s", "features.timeout: 0s leaves no time", ""),
    ("cache.entity.ttl=0s", "cache.entity.ttl: 0s leaves no time", ""),
    (
        "cache.tensor={enabled=true, shared=true}",
        "cache.tensor.shared: true, but features.redis is empty, so there is nothing to share through",
        "redis://localhost:6379/0",
    ),
    (
        "cache.tensor.ttl_jitter=1.0",
        "cache.tensor.ttl_jitter: 100% is not from 0% to below 100%",
        '"10%"',
    ),
    ("cache.tensor.round_digits={z=2}", "cache.tensor.round_digits.z: the model has no such input", "x"),
    ("cache.tensor.round_digits={x=16}", "cache.tensor.round_digits.x: 16 is not from 0 to 15", "such as 4"),
    (
        "serve.fallback=['stale']",
        'serve.fallback: "stale" needs a prediction cache that keeps expired answers',
        'stale_for = "1m"',
    ),
    ("serve.fallback=['a', 'a']", "serve.fallback: a is listed twice", "once"),
    (
        "server.kill=3s",
        "server.kill: 3s is less than server.drain = 3s plus slo.timeout = 1s; "
        "requests would be killed before their deadline",
        "at least 4s",
    ),
    ("server.max_timeout=500ms", "server.max_timeout: 500ms is below slo.timeout = 1s", "at least 1s"),
    ("server.backlog=127", "server.backlog: 127 is not an integer of at least 128", ""),
    (
        "pool={executor='inline', executors=2}",
        "pool.executors: 2 inline executors cannot run in parallel; they share the event loop's thread",
        '"thread"',
    ),
    (
        "pool.executors=100000",
        "pool.executors: 100000 is more than 1024; each executor holds a copy of the model and runs one batch at a "
        "time",
        "about the number of cores",
    ),
    ("slo.p95=2s", "slo.timeout: 1s is below slo.p95 = 2s", "raise slo.timeout to at least 2s"),
    ("slo={p95 = '50ms', p99 = '20ms'}", "slo.p99: 20ms is below slo.p95 = 50ms", "raise slo.p99 to at least 50ms"),
    ("slo.p50=0s", "slo.p50: 0s can never be met", ""),
    (
        "batching.max_queue_rows=8",
        "batching.max_rows: 32 is more than batching.max_queue_rows = 8; a full batch could never be queued",
        "set batching.max_queue_rows to at least 32",
    ),
    ("quality.budget.acu=0.1", "quality.budget.acu: unknown metric", "did you mean auc?"),
    (
        "quality.budget.auc=-0.1",
        "quality.budget.auc: -0.1 is not above 0; a budget is the maximum loss, "
        "and no number of rows can prove a loss of zero",
        "",
    ),
    (
        "quality.budget.auc=nan",
        "quality.budget.auc: nan is not above 0; a budget is the maximum loss, "
        "and no number of rows can prove a loss of zero",
        "",
    ),
    ("model.inputs.x.shape=[2, 2]", "model.inputs.x.shape: the first dimension of [2, 2] is 2, not -1", "[-1, 2]"),
    ("model.inputs.x.shape=[-1, 0]", "model.inputs.x.shape: [-1, 0] has a dimension below 1", "-1"),
    ("model.inputs.x.shape=[-1, 3]", "model.inputs.x.columns: 2 columns do not fill the shape [-1, 3]", "[-1, 2]"),
    (
        "model.inputs.x.columns=[]",
        "model.inputs.x.columns is empty and there is no model.preprocess, so nothing fills this tensor",
        "",
    ),
    ("model.inputs=[{name='x'}, {name='x'}]", "model.inputs: two tensors are named x", ""),
    ("model.source=model.pt", 'model.source: "model.pt" is neither a reference nor a path to an .onnx file', ".onnx"),
    ("model.preprocess=prep", 'model.preprocess: "prep" is not a reference', "write 'package.module:callable'"),
    ("ladder.rungs=[{name='r'}, {name='r'}]", "ladder.rungs: two rungs are named r", ""),
    (
        "observe.history.path=history.db",
        'observe.history.path is "history.db", which does not end in .sqlite',
        'or write "off"',
    ),
    ("observe.history.keep=1m", "observe.history.keep is 1m, below 1h", '"5w"'),
    ("observe.history.size=1KiB", "observe.history.size is 1KiB, below 1MiB", '"1GiB"'),
    ("observe.alerts.window=90d", "observe.alerts.window is 90d; it must be between 1m and 1h", "15m"),
    ("observe.alerts.p95_growth=0", "observe.alerts.p95_growth is 0, which every fluctuation exceeds", "0.1"),
    ("observe.alerts.leak_growth=0", "observe.alerts.leak_growth is 0, which every fluctuation exceeds", "0.1"),
    (
        "drift.window=10ms",
        "drift.window: 10ms is below 1s: too few rows for a distribution",
        'write the period of your traffic\'s rhythm, such as "1d" or "7d"',
    ),
    ("drift.psi=1e400", "drift.psi: inf is not a number above 0 and at most 10", ""),
    (
        "request_log.rotate_size=1",
        "request_log.rotate_size is 1B, below 64KiB: few requests would fit into a file",
        '"64MiB"',
    ),
    ("request_log.rotate_age=1ms", "request_log.rotate_age is 1ms, below 1s", '"1h"'),
]


@pytest.mark.parametrize(("override", "message", "hint"), OVERRIDES, ids=[one[0] for one in OVERRIDES])
def test_other_combinations(tmp_path: Path, override: str, message: str, hint: str) -> None:
    with pytest.raises(ManifestError) as caught:
        loaded(tmp_path, overrides=(override,))
    assert caught.value.message == message
    assert hint in caught.value.hint


def test_a_cache_by_entity_needs_feature_groups(tmp_path: Path) -> None:
    overrides = ("features={}", "cache.entity.enabled=true")
    with pytest.raises(ManifestError, match=r"cache\.entity\.enabled: true, but without feature groups") as caught:
        loaded(tmp_path, overrides=overrides)
    assert "cache.tensor.enabled" in caught.value.hint


@pytest.mark.parametrize(
    "groups",
    [
        [changed(sql=None, function="m:f")],
        [changed(sql=None, preload=True, preload_sql="S")],
        [changed(preload_sql="S")],
        [changed(preload=True, sql=None, function="m:f")],
        [changed(ttl="m:ttl")],
        [changed(defaults={"a": 1, "b": "x"})],
        [GROUP, changed(name="h", key=["a", "id"], columns=["c"])],
    ],
)
def test_combinations_that_work(tmp_path: Path, groups: list[dict[str, Any]]) -> None:
    assert loaded(tmp_path, groups=groups).deployment.features.groups[0].name == "g"


@pytest.mark.parametrize(
    "override",
    [
        "model.source=model.onnx",
        "slo.p95=1s",
        "server={drain='100ms', kill='1.1s'}",
        "server.max_timeout=1s",
        "pool={executor='inline', executors=1}",
        "pool={executor='thread', executors=2}",
        "quality.budget.log_loss=0.001",
        "model.inputs.x.shape=[-1, -1]",
        "features={}",
        "model={source='m:b', preprocess='m:p', inputs=[{name='x', shape=[-1, 3, 4]}], outputs=[{name='y'}]}",
    ],
)
def test_settings_that_work(tmp_path: Path, override: str) -> None:
    assert loaded(tmp_path, overrides=(override,)).origins[override.partition("=")[0]] == "flag"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["webhook='http://hooks.example.com/'", "secret_file='s'"], "expected https://"),
        (["webhook='https:///path'", "secret_file='s'"], "a host, and"),
        (["webhook='https://[::1'", "secret_file='s'"], "a host, and"),
        (["webhook='https://hooks.example:99999/x'", "secret_file='s'"], "a port up to 65535"),
        (["webhook='https://127.0.0.1:9/'", "secret_file='s'"], "the host 127.0.0.1, which is not public"),
        (["webhook='https://[::ffff:10.0.0.1]/'", "secret_file='s'"], "the host ::ffff:10.0.0.1, which is not public"),
        (["webhook='https://localhost/'", "secret_file='s'"], "the host localhost, which is not public"),
        (["webhook='https://hooks.example.com/'"], "none is named"),
        (["webhook='https://hooks.example.com/'", "secret_file='s'", "secret_env='S'"], "two are named"),
        (["window='30s'"], "between 1m and 1h"),
        (["off=['p95']"], "p95_growth"),
    ],
)
def test_alert_settings_that_cannot_work_are_refused(settings: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as refused:
        loaded(tmp_path, overrides=tuple(f"observe.alerts.{each}" for each in settings))
    assert says in str(refused.value)
