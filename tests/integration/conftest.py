"""Servers that all files of one test process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.integration.servers import PostgresServer, RedisServer, postgres_server, redis_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL in which each file or test makes a database of its own; a test that stops it starts it again."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis(_redis: RedisServer) -> RedisServer:
    """A Redis that is empty where a file of tests begins; a test that stops it starts it again."""
    _redis.empty()
    return _redis
