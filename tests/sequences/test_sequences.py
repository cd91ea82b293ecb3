"""Sequences of edits, builds, promotions, rollbacks, restarts and migrations, drawn at random.

``python -m tests.sequences`` runs as many as one likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.servers import PostgresServer, RedisServer, postgres_server, redis_server
from tests.scale import sized
from tests.sequences.running import STEPS_OF_ONE, Sequence

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.mark.parametrize("seed", range(sized(2, 100)))
def test_answers_are_right_with_sqlite_and_caches_in_memory(tmp_path: Path, seed: int) -> None:
    Sequence(tmp_path, seed).run(STEPS_OF_ONE)


@pytest.mark.parametrize("seed", range(sized(2, 100)))
def test_answers_are_right_with_postgresql_and_caches_in_redis(
    tmp_path: Path, postgres: PostgresServer, redis: RedisServer, seed: int
) -> None:
    Sequence(tmp_path, seed, database=postgres.url, redis=redis.url).run(STEPS_OF_ONE)
