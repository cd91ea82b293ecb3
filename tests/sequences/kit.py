"""A deployment of which everything can change, and servers of it that start quickly, in a forked child.

The model gives ``weight * x0 + x1 + 1000 * x2``. ``x0`` is the age divided by a helper's constant, ``x1`` contains a
bonus that a feature function takes from a constant of its own, ``x2`` is a number of a data file. Every part of an
answer shows from which state of the code, the data and the model it was computed.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psycopg
from onnx import TensorProto, helper, numpy_helper
from tests.app_kit import Client

from tailcut.builder.code_snapshot import WrittenCode, write_down
from tailcut.manifest import load
from tailcut.serving.engine import Engine

MANIFEST = """
name = "m"

[model]
source = "model.onnx"
preprocess = "hooks:preprocess"
files = ["offsets.json"]
inputs = [{{ name = "x", shape = [-1, 3] }}]
outputs = [{{ name = "y", shape = [-1] }}]

[serve]
follow = "1h"

[features]
entity = ["user_id"]
database = "{database}"
refresh_ahead = false
{store}

[[features.groups]]
name = "person"
key = ["user_id"]
columns = ["age", "visits"]
ttl = "1h"
sql = "SELECT people.* FROM keys JOIN people USING (user_id)"

[[features.groups]]
name = "bonus"
key = ["user_id"]
columns = ["bonus"]
ttl = "1h"
function = "bonuses:of"

[cache.entity]
enabled = true
auto = false
ttl = "1h"
shared = {shared}

[cache.tensor]
enabled = true
auto = false
ttl = "1h"
shared = {shared}
"""
FILES = {
    "hooks.py": """
import json
from pathlib import Path

import numpy as np
from lib import scaling

OFFSET = json.loads((Path(__file__).parent / "offsets.json").read_text())["offset"]


def preprocess(rows):
    x = [[scaling.scaled(row["age"]), row["bonus"] + row["visits"], OFFSET] for row in rows]
    return {{"x": np.array(x, np.float32)}}
""",
    "lib/__init__.py": "",
    "lib/scaling.py": "from .constants import DIVISOR\n\n\ndef scaled(age):\n    return age / DIVISOR\n",
    "lib/constants.py": "DIVISOR = {divisor}\n",
    "bonuses.py": """
BONUS = {bonus}


def of(keys, context):
    return [{{"bonus": BONUS + key[0]}} for key in keys]
""",
    "offsets.json": '{{"offset": {offset}}}',
}


@dataclass(frozen=True)
class State:
    """What an answer is computed from, but for the model."""

    divisor: int = 2
    bonus: int = 0
    offset: int = 1

    def write(self, folder: Path) -> None:
        (folder / "lib").mkdir(exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text.format(**vars(self)))

    def answer(self, weight: float, user: int) -> float:
        """What a cold computation gives for a user of ``people``."""
        return weight * 10 * user / self.divisor + self.bonus + user + user % 3 + 1000 * self.offset


def save_model(path: Path, weight: float) -> Path:
    """Save x (n, 3) -> y (n): weight * x0 + x1 + 1000 * x2."""
    weights = np.array([[weight], [1], [1000]], np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weights"], ["column"]),
            helper.make_node("Squeeze", ["column", "axis"], ["y"]),
        ],
        "sum",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(np.array([1], np.int64), "axis")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


class Table:
    """``people`` in SQLite or PostgreSQL: ten users, and migrations that keep every value.

    Args:
        database: the address, as the manifest takes it.
    """

    MIGRATIONS = ("add", "drop", "move age", "move visits", "make anew")

    def __init__(self, database: str) -> None:
        self._database = database
        self._run("DROP TABLE IF EXISTS people")
        self._run("CREATE TABLE people (user_id INTEGER PRIMARY KEY, age INT, visits INT)")
        for user in range(10):
            self._run(f"INSERT INTO people VALUES ({user}, {10 * user}, {user % 3})")
        self._extra = 0

    def migrate(self, how: str) -> None:
        if how == "add":
            self._extra += 1
            self._run(f"ALTER TABLE people ADD COLUMN extra{self._extra} INT DEFAULT 77")
        elif how == "drop" and self._extra:
            self._run(f"ALTER TABLE people DROP COLUMN extra{self._extra}")
            self._extra -= 1
        elif how.startswith("move "):
            name = how.removeprefix("move ")
            self._run(
                "ALTER TABLE people ADD COLUMN fresh INT",
                f"UPDATE people SET fresh = {name}",
                f"ALTER TABLE people DROP COLUMN {name}",
                f"ALTER TABLE people RENAME COLUMN fresh TO {name}",
            )
        elif how == "make anew":
            self._extra = 0
            self._run(
                "CREATE TABLE others (visits INT, user_id INTEGER PRIMARY KEY, age INT)",
                "INSERT INTO others SELECT visits, user_id, age FROM people",
                "DROP TABLE people",
                "ALTER TABLE others RENAME TO people",
            )

    def _run(self, *statements: str) -> None:
        path = self._database.removeprefix("sqlite:///")
        connection: Any = (
            sqlite3.connect(path, timeout=20) if path != self._database else psycopg.connect(self._database)
        )
        with closing(connection), connection:
            for statement in statements:
                connection.execute(statement)


_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["tailcut.transport.asgi", "tailcut.builder.code_snapshot", "onnxruntime", "tests.sequences.kit"]
)


def written_code(folder: Path) -> WrittenCode:
    """Write the user's code down as a build does, in a process that imports it anew."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_write_down, args=(folder, theirs), daemon=True)
    process.start()
    theirs.close()
    found: WrittenCode = ours.recv()
    process.join()
    return found


def _write_down(folder: Path, pipe: Connection) -> None:
    os.chdir(folder)
    sys.dont_write_bytecode = True  # it is valid for a second, and edits of one size follow each other faster
    pipe.send(write_down(load(folder, environment={}), folder, source=False))


class Running:
    """A server in a child that was forked from a process with everything imported; it starts in a tenth of a second."""

    def __init__(self, folder: Path) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(folder, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._ask(None)

    def ask(self, user: int) -> Any:
        """Ask for a user: status, and the answer or the error's text."""
        return self._ask(("ask", user))

    def follow(self) -> Any:
        """Let the server look at what is promoted: whether it serves that, and if not why."""
        return self._ask(("follow", 0))

    def stop(self) -> None:
        self._pipe.close()
        self._process.join(20)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, message: object) -> Any:
        if message is not None:
            self._pipe.send(message)
        assert self._pipe.poll(60), "the server does not answer"
        return self._pipe.recv()


def _serve(folder: Path, pipe: Connection) -> None:
    """Serve in this process and answer the commands of a pipe until it is closed."""
    os.chdir(folder)
    sys.dont_write_bytecode = True
    logging.disable(logging.CRITICAL)  # a switch that is refused is logged, and there are many
    asyncio.run(_answer(folder, pipe))


async def _answer(folder: Path, pipe: Connection) -> None:
    from tailcut.transport.asgi import ASGIApplication  # the process that was forked has it

    app = ASGIApplication(load(folder, environment={}))
    await app.start()
    client = Client(app)
    loop = asyncio.get_running_loop()
    try:
        pipe.send("")
        while True:
            what, user = await loop.run_in_executor(None, pipe.recv)
            if what == "ask":
                reply = await client.post("/predict/m", {"entities": [user]})
                found = reply.json["predictions"][0]["y"] if reply.status == 200 else reply.body.decode()
                pipe.send((reply.status, found))
            else:
                pipe.send(await _followed(app.engine))
    except EOFError:
        pass
    finally:
        await app.stop()


async def _followed(engine: Engine) -> tuple[bool, str]:
    """Look at the registry now; whether what is promoted is served, and if not why."""
    follower = engine.follower
    assert follower is not None
    async with follower.switching:
        await follower.look()
    failure = follower.failure
    return failure is None, "" if failure is None else f"{failure.message}; {failure.hint}"
