"""Servers and a warm process of builds that all files of one test process share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from tests.integration.servers import PostgresServer, RedisServer, postgres_server, redis_server

from tailcut.builder import builder
from tailcut.builder.children import StepRunner


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


@pytest.fixture(scope="session")
def session_runner() -> Iterator[StepRunner]:
    """The steps of builds, as forks of one warm process for all tests of this process."""
    with StepRunner() as runner:
        yield runner


@pytest.fixture(scope="module")
def warm_builds(session_runner: StepRunner) -> Iterator[None]:
    """Share one warm process between the builds that a module's tests run in this process.

    A build imports torch or scikit-learn for several seconds; here the first one does. The steps have the environment
    and the working folder of the first build.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "StepRunner", lambda: nullcontext(session_runner))
        yield
