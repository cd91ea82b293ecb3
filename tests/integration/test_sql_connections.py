"""Poolers, restarts, failovers and changed sessions: every answer is right, and what has to fail is over at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import asyncpg
import psycopg
import pytest
from tests.features_kit import group
from tests.integration.servers import PostgresServer, pgbouncer, postgres_server
from tests.integration.sql_kit import Postgres, ask, postgres_database, serve

from tailcut.errors import FeatureTimeout, FeatureUnavailable, StartError
from tailcut.features.sources import postgres_connections
from tailcut.features.sources.postgres_connections import PostgresDatabase, QuerySelection

USERS = (
    "CREATE TABLE users(id bigint PRIMARY KEY, age int, name varchar(9))",
    "INSERT INTO users SELECT g, g % 80, 'n' || g FROM generate_series(1, 500) g",
)
AGE = group("age", columns=("age",), ttl="1ms", sql="SELECT id, age FROM keys JOIN users USING (id)")
NAME = group("name", columns=("name",), ttl="1ms", sql="SELECT k.id, u.name FROM keys k JOIN users u ON u.id = k.id")
# Nothing tells the type of its key, so that it is prepared for each that is sent.
NEXT = group("next", columns=("next",), ttl="1ms", sql="SELECT keys.id, keys.id + 1 AS next FROM keys")
OLD = "SELECT id, age > 40 AS old FROM users"
TABLE = group("table", columns=("old",), ttl="50ms", stale_for_s=60.0, preload=True, preload_sql=OLD)


@pytest.fixture(scope="module")
def standby_server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def database(postgres) -> Iterator[Postgres]:
    with postgres_database(postgres, "pooled") as found:
        found.run(*USERS)
        yield found


async def all_right(service, rounds: int = 15, at_once: int = 12) -> None:
    """Many requests at a time, for other users every time, so that every one asks the database."""
    for start in range(rounds):
        users = [1 + (start * at_once + offset) % 500 for offset in range(at_once)]
        for user, (row,) in zip(users, await asyncio.gather(*(ask(service, user) for user in users)), strict=True):
            expected = {"id": user, "age": user % 80, "name": f"n{user}", "next": user + 1, "old": user % 80 > 40}
            assert row == {name: expected[name] for name in row}
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("mode", ["session", "transaction", "statement"])
def test_all_answers_come_through_a_pooler_and_so_does_a_second_start(database, mode) -> None:
    async def test(service) -> None:
        await all_right(service)
        assert sum(one.errors for one in service.statistics().groups) == 0

    # In session mode every connection of the service keeps one of the server's.
    with pgbouncer(database.direct, mode, 2) as url:
        for _ in range(2):
            serve(url, test, AGE, NAME, NEXT, TABLE, connections=2 if mode == "session" else 6)


def test_several_services_with_other_queries_share_a_pooler(database) -> None:
    async def test(service) -> None:
        await asyncio.gather(
            all_right(service),
            asyncio.to_thread(lambda: serve(url, all_right, NAME, NEXT, connections=4)),
            asyncio.to_thread(lambda: serve(url, all_right, NEXT, AGE, connections=4)),
        )

    with pgbouncer(database.direct, "transaction", 3) as url:
        serve(url, test, AGE, NEXT, connections=4)


@pytest.mark.parametrize("reset", [0, 1])
def test_a_pooler_that_does_not_show_itself_costs_no_answer(database, reset, monkeypatch) -> None:
    """It gives its clients the server's process ids. What is prepared is lost, between two queries or at once."""

    async def same(self, *_: object, **__: object) -> int:
        return self.get_server_pid()

    monkeypatch.setattr(asyncpg.Connection, "fetchval", same)

    async def test(service) -> None:
        await all_right(service)
        assert sum(one.errors for one in service.statistics().groups) == 0

    settings = {"server_reset_query_always": reset, "server_reset_query": "DISCARD ALL"}
    with pgbouncer(database.direct, "transaction", 2, **settings) as url:
        serve(url, test, AGE, NAME, TABLE, connections=6)


def test_on_a_straight_connection_a_query_is_prepared_once(database) -> None:
    """Seen from inside: the query itself counts what its session has prepared, and by which message."""
    prepared = "(SELECT count(*) FROM pg_prepared_statements WHERE NOT from_sql AND statement LIKE '%users%')"
    sql = f"SELECT id, {prepared} AS value FROM keys JOIN users USING (id)"

    async def test(service) -> None:
        for user in range(1, 20):
            assert (await ask(service, user))[0]["value"] == 1

    serve(database.direct, test, group(sql=sql), connections=1)


def test_a_close_after_a_query_that_failed_asks_for_no_cancellation(database) -> None:
    """PgBouncer 1.18 can end on such a request; others may have its connections."""

    async def fail() -> None:
        opened = await PostgresDatabase.open(url, 2)
        with pytest.raises(asyncpg.DivisionByZeroError):
            await opened.fetch(QuerySelection("SELECT 1 / 0 AS a", ("a",)), ())
        await opened.close()

    output: list[str] = []
    with pgbouncer(database.direct, "transaction", output=output) as url:
        for _ in range(20):
            asyncio.run(fail())
    assert [line for line in output if "cancel" in line] == []


@pytest.mark.parametrize("through", ["straight", "transaction", pytest.param("session", marks=pytest.mark.whole)])
def test_a_restarted_server_is_found_again_by_the_next_request(postgres, through) -> None:
    async def test(service) -> None:
        await all_right(service, rounds=2)
        postgres.stop()
        try:
            with pytest.raises((FeatureUnavailable, FeatureTimeout)):
                await ask(service, 400)
        finally:
            postgres.start()
        if through != "straight":
            await pooler_is_well()
        await all_right(service)

    async def pooler_is_well() -> None:
        """A pooler tells its clients that there is no server, until it has tried again."""
        async with asyncio.timeout(30):
            while True:
                try:
                    with psycopg.connect(url, autocommit=True) as connection:
                        connection.execute("SELECT 1")
                    return
                except psycopg.OperationalError:
                    await asyncio.sleep(0.05)

    with postgres_database(postgres, "restarted") as database:
        database.run(*USERS)
        if through == "straight":
            serve(database.direct, test, AGE, NAME, connections=4)
            return
        with pgbouncer(database.direct, through, 6, server_login_retry=1) as url:
            serve(url, test, AGE, NAME, connections=4, timeout_s=2.0)


def test_connections_that_the_server_ends_cost_no_answer(database) -> None:
    async def test(service) -> None:
        for _ in range(5):
            await all_right(service, rounds=2)
            database.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = 'pooled' AND pid <> pg_backend_pid()"
            )
        await all_right(service)
        assert sum(one.errors for one in service.statistics().groups) == 0

    serve(database.direct, test, AGE, NAME, NEXT, connections=4)


@pytest.mark.parametrize("attributes", ["", "?target_session_attrs=read-write"])
def test_a_failover_to_another_host_costs_no_answer(postgres, standby_server, attributes) -> None:
    """The other server has an empty plan cache, and the columns in another order."""
    moved = "CREATE TABLE users AS SELECT name, age, id FROM (SELECT g::bigint AS id, g % 80 AS age, 'n' || g AS name "
    moved += "FROM generate_series(1, 500) g) s"
    every = group("g", columns=("age", "name"), ttl="1ms", sql="SELECT users.* FROM keys JOIN users USING (id)")
    with postgres_database(postgres, "first") as first, postgres_database(standby_server, "first") as standby:
        first.run(*USERS)
        standby.run(moved)

        async def test(service) -> None:
            await all_right(service, rounds=3)
            postgres.stop()
            try:
                await all_right(service)
                assert sum(one.errors for one in service.statistics().groups) == 0
            finally:
                postgres.start()

        hosts = f"127.0.0.1:{postgres.port},127.0.0.1:{standby_server.port}"
        serve(f"postgresql://tailcut@{hosts}/first{attributes}", test, every, connections=3)


def test_a_host_that_never_answers_does_not_take_the_others_time(database, monkeypatch) -> None:
    async def test(service) -> None:
        await all_right(service, rounds=2)

    monkeypatch.setattr(postgres_connections, "CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as dead:
        hosts = f"127.0.0.1:{dead.getsockname()[1]},{database.direct.rpartition('@')[2]}"
        serve(f"postgresql://tailcut@{hosts}", test, AGE, NAME)


def test_a_connection_that_has_rested_for_long_is_made_anew(database, monkeypatch) -> None:
    sql = "SELECT id, pg_backend_pid() AS value FROM keys JOIN users USING (id)"

    async def test(service) -> None:
        assert len({(await ask(service, user))[0]["value"] for user in range(1, 9)}) == 1
        monkeypatch.setattr(postgres_connections, "MAX_IDLE_S", -1.0)
        assert len({(await ask(service, user))[0]["value"] for user in range(9, 13)}) == 4

    serve(database.direct, test, group(sql=sql), connections=1)


@asynccontextmanager
async def one_connection(database) -> AsyncIterator[tuple[PostgresDatabase, Callable[[], int]]]:
    """Connections without a service around them, and how many sessions the server has for them."""
    url = f"{database.direct}?application_name=counted"
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'counted'"
    opened = await PostgresDatabase.open(url, 1)
    try:
        yield opened, lambda: database.ask(count)
    finally:
        await opened.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():
            await asyncio.sleep(0.01)


def test_a_connection_whose_caller_gives_up_is_the_next_ones_and_none_is_left_behind(database) -> None:
    async def main() -> None:
        wanted = QuerySelection("SELECT 1 AS a", ("a",))
        async with one_connection(database) as (opened, sessions):
            for _ in range(3):
                database.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'counted'"
                )
                await until(lambda: sessions() == 0)
                task = asyncio.create_task(opened.fetch(wanted, []))
                await asyncio.sleep(0)  # it has begun to connect
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert [row["a"] for row in await opened.fetch(wanted, [])] == [1]
            await until(lambda: sessions() == 1)
        await until(lambda: sessions() == 0)

    asyncio.run(main())


def test_a_query_that_waits_for_a_connection_opens_none_after_the_end(database) -> None:
    async def main() -> None:
        async with one_connection(database) as (opened, sessions):
            slow = asyncio.create_task(opened.fetch(QuerySelection("SELECT pg_sleep(60)::text AS a", ("a",)), []))
            await until(lambda: database.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == 1)
            waiting = asyncio.create_task(opened.fetch(QuerySelection("SELECT 2 AS a", ("a",)), []))
            await asyncio.sleep(0)
        _, second = await asyncio.gather(slow, waiting, return_exceptions=True)
        assert isinstance(second, asyncpg.InterfaceError)
        assert "closed" in str(second)
        await until(lambda: sessions() == 0)

    asyncio.run(main())


def test_what_only_libpq_knows_in_a_url_of_a_hosting_provider_is_left_out_and_said(database, caplog) -> None:
    async def test(service) -> None:
        await all_right(service, rounds=1)

    url = f"{database.direct}?sslmode=prefer&channel_binding=require&application_name=a%26b&connect_timeout=10"
    with caplog.at_level("WARNING"):
        serve(url, test, AGE)
    assert "channel_binding, connect_timeout is ignored" in caplog.text


@pytest.mark.parametrize(
    ("url", "readable"),
    [
        ("postgresql://app:s3cret@127.0.0.1:1/db", True),
        ("postgresql://app@127.0.0.1:1/db?password=s3cret", True),
        ("postgresql://127.0.0.1:1/db?user=app&password=x@s3cret", True),
        ("postgresql://app:p%2Fs3cret@127.0.0.1:1,127.0.0.1:2/db", True),
        ("postgresql://app:s3cret/x@127.0.0.1:1/db", False),
        ("postgresql://app:1/s3cret@127.0.0.1:1/db", False),
        ("postgresql://app:1?s3cret@127.0.0.1:1/db", False),
        ("postgresql://app:1#s3cret@127.0.0.1:1/db", False),
        ("postgresql://app:[s3cret@127.0.0.1:1/db", False),
    ],
)
def test_a_refused_start_says_no_password(url, readable) -> None:
    said = "cannot connect to" if readable else "cannot read"
    with pytest.raises(StartError, match=f"{said} postgresql://…") as caught:
        asyncio.run(PostgresDatabase.open(url, 1))
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
    assert ("percent-encode the password" in caught.value.hint) is not readable


def test_a_conflict_with_a_standbys_recovery_costs_no_answer(database) -> None:
    """Numbers of a sequence are not rolled back: every other call is refused as a standby would."""
    database.run(
        "CREATE SEQUENCE calls",
        """CREATE FUNCTION age_of(age int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('calls') % 2 = 1 THEN RAISE EXCEPTION 'conflict with recovery' USING ERRCODE = '40001'; END IF;
        RETURN age; END $$""",
    )

    async def test(service) -> None:
        for user in (5, 6, 7):
            assert (await ask(service, user))[0]["age"] == user

    sql = "SELECT id, age_of(age) AS age FROM keys JOIN users USING (id)"
    serve(database.direct, test, group(sql=sql, columns=("age",)))


def test_another_search_path_leads_to_another_table_by_name(database) -> None:
    database.run("CREATE SCHEMA other", "CREATE TABLE other.users AS SELECT age, name, id FROM users")
    database.run("UPDATE other.users SET age = age + 1000")
    every = group("g", columns=("age", "name"), ttl="1ms", sql="SELECT users.* FROM keys JOIN users USING (id)")

    async def test(service) -> None:
        assert (await ask(service, 5))[0] == {"id": 5, "age": 5, "name": "n5"}
        # Another client leaves its search path behind in the sessions that both share.
        with psycopg.connect(url, autocommit=True) as connection:
            for _ in range(3):
                connection.execute("SET search_path TO other")
        await asyncio.sleep(0.01)
        seen = {(await ask(service, 5))[0]["age"] for _ in range(10) if not await asyncio.sleep(0.002)}
        assert seen == {1005}

    with pgbouncer(database.direct, "transaction", 1) as url:
        serve(url, test, every, connections=2)


def test_a_table_that_is_dropped_and_made_anew_is_found_again(database) -> None:
    async def test(service) -> None:
        await all_right(service, rounds=2)
        database.run("ALTER TABLE users RENAME TO gone")
        await asyncio.sleep(0.01)
        with pytest.raises(FeatureUnavailable):
            await ask(service, 5)
        database.run("CREATE TABLE users AS SELECT name, id::numeric AS id, age::bigint AS age FROM gone")
        await all_right(service)

    for pooled in (False, True):
        if not pooled:
            serve(database.direct, test, AGE, NAME)
            continue
        database.run("DROP TABLE users, gone", *USERS)
        with pgbouncer(database.direct, "transaction") as url:
            serve(url, test, AGE, NAME)
