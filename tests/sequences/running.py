"""One sequence: whatever happened before, an answer is what a cold computation gives, or the switch was refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from tests.sequences.kit import MANIFEST, Running, State, Table, save_model, written_code

from tailcut.builder.code_snapshot import files_of
from tailcut.manifest import load
from tailcut.registry import NewVariant, Registry, Version, VersionEvidence
from tailcut.registry.history import earlier

STEPS = (
    *("edit divisor", "edit bonus", "edit offset", "edit back"),
    *("retrain", "build", "build", "promote", "promote", "roll back"),
    *("restart", "restart", "migrate", "ask", "ask"),
)
STEPS_OF_ONE = 25
USERS = range(10)


class Sequence:
    """A deployment in a folder, the server of it, and what it has to answer.

    Args:
        folder: empty; everything but tables and caches lies there.
        seed: of the steps.
        database: address of a database that is this sequence's own; a SQLite file where empty.
        redis: address of a Redis for features and predictions; they are cached in memory where empty.

    Attributes:
        log: every step that was taken, for whoever reads a failure.
        refused, switched: switches that were refused, and made.
        answers: answers that were checked.
    """

    def __init__(self, folder: Path, seed: int, *, database: str = "", redis: str = "") -> None:
        self.log: list[str] = []
        self.refused = self.switched = self.answers = 0
        self._random = random.Random(seed)
        self._folder = folder
        database = database or f"sqlite:///{folder}/app.db"
        self._table = Table(database)
        store = f'cache = "redis"\nredis = "{redis}"\nredis_timeout = "5s"' if redis else ""
        text = MANIFEST.format(database=database, store=store, shared="true" if redis else "false")
        (folder / "tailcut.toml").write_text(text)
        self._disk = State()
        self._earlier = [self._disk]
        self._disk.write(folder)
        self._weight = 1.0
        self._manifest = load(folder, environment={})
        self._registry = Registry.of(self._manifest)
        self._served, self._served_weight, self._loaded = "", 1.0, self._disk
        self._built: dict[str, tuple[Version, float, State]] = {}
        self._do("build")
        self._registry.promote("m", next(iter(self._built)), "onnx")
        self._server: Running | None = None
        self._do("restart")

    def run(self, steps: int) -> None:
        """Take steps at random, and check an answer after each."""
        try:
            for _ in range(steps):
                self._do(self._random.choice(STEPS))
                self._check()
        finally:
            if self._server is not None:
                self._server.stop()

    def _do(self, step: str) -> None:
        self.log.append(step)
        name, _, what = step.partition(" ")
        if step == "edit back":
            self._write(self._random.choice(self._earlier))
        elif name == "edit":
            self._write(replace(self._disk, **{what: getattr(self._disk, what) + self._random.randint(1, 3)}))
        elif name == "retrain":
            self._weight = float(self._random.randint(1, 9))
        elif name == "build":
            self._build()
        elif name == "promote":
            self._promote(self._random.choice(list(self._built)))
        elif name == "roll":
            self._roll_back()
        elif name == "restart":
            self._restart()
        elif name == "migrate":
            self._table.migrate(self._random.choice(Table.MIGRATIONS))

    def _write(self, state: State) -> None:
        state.write(self._folder)
        self._disk = state
        self._earlier.append(state)

    def _build(self) -> None:
        """Add a version as the build does; building in earnest would take seconds for each."""
        model = self._manifest.deployment.model
        written = written_code(self._folder)
        artifact = save_model(self._folder / "model.onnx", self._weight)
        version = self._registry.add(
            "m",
            source="onnx",
            inputs=model.inputs,
            outputs=model.outputs,
            variants=[NewVariant("onnx", "onnxruntime", artifact, base=True)],
            evidence=VersionEvidence(code=written.code),
            files=files_of(written, self._folder),
        )
        self._built[version.id] = (version, self._weight, self._disk)

    def _promote(self, version: str) -> None:
        self._registry.promote("m", version, "onnx")
        self._follow()

    def _roll_back(self) -> None:
        promotion = self._registry.promotion("m")
        if promotion is not None and next(earlier(promotion), None) is not None:
            self._registry.rollback("m")
            self._follow()

    def _follow(self) -> None:
        """The server switches where it has loaded the code that the version was built with, and only there."""
        assert self._server is not None
        promotion = self._registry.promotion("m")
        assert promotion is not None
        _, weight, state = self._built[promotion.version]
        done, why = self._server.follow()
        if promotion.version == self._served:
            assert done, why
            return
        assert done == (state == self._loaded), (state, self._loaded, why, self.log)
        if done:
            self._served, self._served_weight = promotion.version, weight
            self.switched += 1
        else:
            assert "restart to serve it" in why, why
            self.refused += 1

    def _restart(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._server = Running(self._folder)
        promotion = self._registry.promotion("m")
        assert promotion is not None
        self._served, self._loaded = promotion.version, self._disk
        self._served_weight = self._built[promotion.version][1]

    def _check(self) -> None:
        assert self._server is not None
        for user in self._random.sample(USERS, 2):
            expected = self._loaded.answer(self._served_weight, user)
            status, answer = self._server.ask(user)
            self.answers += 1
            assert status == 200, (status, answer, self.log)
            assert abs(answer - expected) < 1e-3 * max(abs(expected), 1), (user, answer, expected, self.log)
