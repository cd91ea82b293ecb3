"""Edited code and what Redis holds: over the socket, every answer is that of the code that lies on the disk."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
import redis
from tests.app_kit import samples, save_model
from tests.integration.servers import RedisServer, postgres_server, redis_server
from tests.integration.serving import Served

pytestmark = pytest.mark.integration

MANIFEST = """
name = "m"
[model]
source = "model.onnx"
preprocess = "hooks:preprocess"
inputs = [{ name = "x", shape = [-1, 2] }]
outputs = [{ name = "y", shape = [-1] }, { name = "z", shape = [-1, 2] }]
"""
SERVED = """
[serve]
variant = "source"
[batching]
max_rows = 4
[slo]
timeout = "10s"
[features]
entity = ["id"]
cache = "redis"
redis = "REDIS"
redis_timeout = "1s"
refresh_ahead = false
[[features.groups]]
name = "user"
key = ["id"]
columns = ["age"]
ttl = "1h"
"""
CACHES = """
[cache.entity]
enabled = true
auto = false
ttl = "1h"
shared = true
[cache.tensor]
enabled = true
auto = false
ttl = "1h"
shared = true
"""
FUNCTION = 'function = "groups:user"\n'
GROUPS = "def user(keys, context): return [{'age': 30} for key in keys]\n"
AGED = "import years\n" + GROUPS.replace("30", "30 + years.YEARS")
ENTITY = {"entities": [42]}


def hooks(imports: str, factor: str) -> str:
    return (
        f"import numpy as np\n{imports}\n"
        f"def preprocess(rows): return {{'x': np.array([[row['age'] * {factor}, 0] for row in rows], np.float32)}}\n"
    )


class Case(NamedTuple):
    """Files of the first deploy, what the second one edits, and the right answers to both."""

    files: dict[str, str]
    edits: dict[str, str]
    before: float = 30.0
    after: float = 60.0
    more: str = ""


CASES = {
    "a helper": Case({"hooks.py": hooks("from scaling import F", "F"), "scaling.py": "F = 1"}, {"scaling.py": "F = 2"}),
    "a constant of a helper's helper": Case(
        {"hooks.py": hooks("from one import F", "F"), "one.py": "from two import F", "two.py": "F = 1"},
        {"two.py": "F = 2"},
    ),
    "a relative import of a package": Case(
        {
            "hooks.py": hooks("from lib.steps import F", "F"),
            "lib/__init__.py": "",
            "lib/steps.py": "from .tables import F",
            "lib/tables.py": "F = 1",
        },
        {"lib/tables.py": "F = 2"},
    ),
    "an import inside of a function": Case(
        {
            "hooks.py": hooks("def f():\n    import later\n    return later.F", "f()"),
            "later.py": "F = 1",
        },
        {"later.py": "F = 2"},
    ),
    "a plugin": Case(
        {
            "hooks.py": hooks(
                "import importlib, json\nfrom pathlib import Path\n"
                "names = json.loads(Path(__file__).with_name('plugins.json').read_text())\n"
                "plugins = [importlib.import_module(name) for name in names]",
                "plugins[0].F",
            ),
            "plugins.json": '["plugins.double"]',
            "plugins/double.py": "F = 1",
        },
        {"plugins/double.py": "F = 2"},
    ),
    "a data file": Case(
        {
            "hooks.py": hooks(
                "import json\nfrom pathlib import Path\nT = json.loads(Path(__file__).with_name('t.json').read_text())",
                "T['f']",
            ),
            "t.json": '{"f": 1}',
        },
        {"t.json": '{"f": 2}'},
        more='files = ["*.json"]\n',
    ),
    "an editable install": Case(
        {"hooks.py": hooks("from ours_y.core import F", "F"), "../editable/ours_y/core.py": "F = 1"},
        {"../editable/ours_y/core.py": "F = 2"},
    ),
    "an upgraded distribution": Case(
        {
            "hooks.py": hooks("from theirs_y import F", "F"),
            "../lib/site-packages/theirs_y.py": "F = 1",
            "../lib/site-packages/theirs_y-1.0.dist-info/RECORD": "theirs_y.py,,\n",
        },
        {
            "../lib/site-packages/theirs_y.py": "F = 2",
            "../lib/site-packages/theirs_y-1.0.dist-info": "",
            "../lib/site-packages/theirs_y-2.0.dist-info/RECORD": "theirs_y.py,,\n",
        },
    ),
    "a constant of a feature function's helper": Case(
        {"hooks.py": hooks("", "1"), "years.py": "YEARS = 0", "groups.py": AGED},
        {"years.py": "YEARS = 5"},
        after=35.0,
    ),
}


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files; an empty text where a folder lies removes it.

    Python knows an edit by the second and the size of its file: compiled modules are removed, since a server may have
    started and stopped within the second of the first text.
    """
    for name, text in files.items():
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)


def deploy(folder: Path, store: RedisServer, case: Case, group: str = FUNCTION) -> Path:
    """Write a deployment."""
    client = redis.Redis.from_url(store.url)
    client.flushdb()
    client.close()
    write(folder, {"groups.py": GROUPS, **case.files})
    manifest = MANIFEST + case.more + SERVED.replace("REDIS", store.url) + group + CACHES
    (folder / "tailcut.toml").write_text(manifest)
    save_model(folder / "model.onnx")
    return folder


def fetched(metrics: str) -> float:
    """How often the source of features was called."""
    return sum(samples(metrics, "tailcut_feature_source_calls_total").values())


def ask(folder: Path, store: RedisServer, *settings: str) -> tuple[float, str, str]:
    """Start a server, ask it once; the answer, whether a cache gave it, and the metrics. What it keeps is in Redis."""
    client = redis.Redis.from_url(store.url)
    with Served(folder, settings=settings, prepared=True) as server:
        before = client.dbsize()
        status, headers, body = server.request("POST", "/predict/m", ENTITY)
        assert status == 200, body
        metrics = server.metrics()
        # What it computed: the entity's answer, that of the tensors and, where they were not there, the features.
        computed = 0 if headers["x-tailcut-cache"] == "hit" else 2 + int(fetched(metrics) > 0)
        server.wait_until(lambda: client.dbsize() >= before + computed)
    client.close()
    return json.loads(body)["predictions"][0]["y"], headers["x-tailcut-cache"], metrics


ELSEWHERE = {"a helper", "a relative import of a package"}
"""Of the cases, those that the test below and test_code_processes.py have too."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.whole if each in ELSEWHERE else ()) for each in CASES]
)
def test_edited_code_never_meets_an_answer_of_before(
    tmp_path: Path, store: RedisServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    folder = deploy(tmp_path / "app", store, case)
    places = (tmp_path / "editable", tmp_path / "lib" / "site-packages")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")]))
    assert ask(folder, store)[:2] == (case.before, "miss")
    shutil.copytree(folder, tmp_path / "replica")
    assert ask(tmp_path / "replica", store)[:2] == (case.before, "hit"), "a server of the same code, in another folder"
    write(folder, case.edits)
    assert ask(folder, store)[:2] == (case.after, "miss")
    assert ask(folder, store)[:2] == (case.after, "hit")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the age of one user."""
    make = "CREATE TABLE users (id INTEGER PRIMARY KEY, age INTEGER)", "INSERT INTO users VALUES (42, 30)"
    if request.param == "sqlite":
        connection = sqlite3.connect(tmp_path / "users.db")
        for statement in make:
            connection.execute(statement)
        connection.commit()
        connection.close()
        yield f"sqlite:///{tmp_path / 'users.db'}"
        return
    with postgres_server() as server:
        with psycopg.connect(server.url, autocommit=True) as connected:
            for statement in make:
                connected.execute(statement)
        yield server.url


def test_features_stay_warm_where_only_a_hook_was_edited(tmp_path: Path, store: RedisServer, database: str) -> None:
    """The prediction is computed anew, from values that Redis still holds."""
    case = CASES["a helper"]
    sql = "SELECT id, age FROM keys JOIN users USING (id)"
    folder = deploy(tmp_path / "app", store, case, f'sql = "{sql}"\n')
    setting = f"features.database={database}"

    answer, cache, metrics = ask(folder, store, setting)
    assert (answer, cache) == (case.before, "miss")
    assert fetched(metrics) == 1
    write(folder, case.edits)
    answer, cache, metrics = ask(folder, store, setting)
    assert (answer, cache) == (case.after, "miss")
    assert fetched(metrics) == 0
