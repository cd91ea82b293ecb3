"""Edits, builds, promotions, rollbacks and restarts in any order: each answer is that of the code that is loaded.

All sequences share one Redis, and nothing is ever flushed: an answer of other code would be found there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.app_kit import Client
from tests.code_kit import SITE_MANIFEST, Site, imported
from tests.integration.servers import RedisServer, redis_server
from tests.scale import sized

from tailcut.errors import ArtifactError
from tailcut.registry import Promotion
from tailcut.transport.asgi import ASGIApplication

pytestmark = pytest.mark.integration

SEQUENCES, AT_ONCE, STEPS = sized(20, 60), 20, 12
FEATURES = """
[slo]
timeout = "10s"
[features]
entity = ["id"]
cache = "redis"
redis = "{url}"
redis_timeout = "1s"
refresh_ahead = false
[[features.groups]]
name = "user"
key = ["id"]
columns = ["a"]
ttl = "1h"
function = "groups:user"
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
GROUPS = "import years\ndef user(keys, context): return [{'a': years.base(key)} for key in keys]\n"
LIVE = 7


@pytest.fixture(scope="module")
def store() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@dataclass
class Disk:
    """What the files say: a cold computation uses these."""

    factor: int = 1
    years: int = 0

    def answer(self, id_: int, model: float) -> float:
        return (id_ + self.years) * self.factor * model


@dataclass
class Sequence:
    """One deployment, and a server of it that is stopped and started anew."""

    site: Site
    random: Random
    disk: Disk = field(default_factory=Disk)
    loaded: Disk = field(default_factory=Disk)
    models: dict[str, float] = field(default_factory=dict)
    built: dict[str, Disk] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    app: ASGIApplication | None = None
    context: ExitStack = field(default_factory=ExitStack)

    def edit_helper(self) -> None:
        self.disk.factor = self.random.choice([1, 2, 5])
        self.site.write("scaling.py", f"F = {self.disk.factor}\n")

    def edit_feature_helper(self) -> None:
        self.disk.years = self.random.choice([0, 1])
        self.site.write("years.py", f"YEARS = {self.disk.years}\ndef base(key): return key[0] + YEARS\n")

    def edit_training(self) -> None:
        self.site.write("layers.py", f"N = {LIVE}  # {self.random.randrange(3)}\n")

    def build(self) -> None:
        model = float(self.random.choice([1, 3, 4]))
        version = self.site.build(model)
        self.models[version.id] = model
        self.built[version.id] = Disk(self.disk.factor, self.disk.years)
        self.promote()

    def promote(self) -> None:
        version = self.random.choice(list(self.models))
        self.site.registry.promote("m", version, self.random.choice(["onnx", "onnx", "own"]))

    def rollback(self) -> None:
        try:
            found: Promotion = self.site.registry.rollback("m")
        except ArtifactError:
            self.seen["nothing to go back to"] += 1
            return
        assert found.version in self.models

    async def restart(self) -> None:
        await self.stop()
        self.context = ExitStack()
        self.context.enter_context(imported(self.site.folder))
        self.app = ASGIApplication(self.site.manifest)
        await self.app.start()
        self.loaded = Disk(self.disk.factor, self.disk.years)

    async def stop(self) -> None:
        if self.app is not None:
            await self.app.stop()
        self.context.close()

    async def follow(self) -> None:
        """Let the server look, then ask: by the version that answers, what a cold computation gives."""
        assert self.app is not None
        follower = self.app.engine.follower
        assert follower is not None
        before = self.app.engine.opened.variant.version
        await follower.look()
        variant = self.app.engine.opened.variant
        if variant.version != before:
            assert self.built[variant.version] == self.loaded, "switched to a version of other code"
            self.seen["switched"] += 1
        self.seen["refused"] += follower.failure is not None
        client = Client(self.app)
        for id_ in (1, 2):
            reply = await client.post("/predict/m", {"entities": [id_]})
            assert reply.status == 200, reply.json
            model = LIVE if reply.headers["x-tailcut-variant"] == "own" else self.models[variant.version]
            assert reply.json["predictions"][0]["y"] == self.loaded.answer(id_, model), (self, reply.headers)
            self.seen[reply.headers["x-tailcut-cache"]] += 1


async def play(site: Site, random: Random) -> Counter[str]:
    sequence = Sequence(site, random)
    sequence.edit_feature_helper()
    sequence.build()
    await sequence.restart()
    steps = [
        sequence.edit_helper,
        sequence.edit_feature_helper,
        sequence.edit_training,
        sequence.build,
        sequence.promote,
        sequence.rollback,
        sequence.restart,
    ]
    try:
        for _ in range(STEPS):
            done = random.choice(steps)()
            if done is not None:
                await done
            await sequence.follow()
    finally:
        await sequence.stop()
    return sequence.seen


@pytest.mark.parametrize("first", range(0, SEQUENCES, AT_ONCE))
def test_every_answer_of_any_sequence_is_that_of_a_cold_computation(
    tmp_path: Path, store: RedisServer, first: int
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + AT_ONCE):
        with imported():
            site = Site(tmp_path / str(seed))
            site.write("tailcut.toml", SITE_MANIFEST + FEATURES.format(url=store.url))
            site.write("groups.py", GROUPS)
            seen += asyncio.run(play(site, Random(seed)))
    assert min(seen["hit"], seen["switched"], seen["refused"]) > 0, seen
