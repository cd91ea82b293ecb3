"""Connections to PostgreSQL: straight or through a pooler, to a server that may restart, move, or change its tables.

asyncpg prepares each query once per connection. What a connection knows may be out of date: the server has ended it, a
statement is unknown in the session, a table has other columns. Then the query runs once more before a request fails. A
pooler hands each query to a session of its own choice, where a prepared statement is unknown: queries are then sent
unprepared. It is recognised because it gives its clients process ids of its own.

Connections are a list and a semaphore: asyncpg's pool costs twice the CPU time of a query.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from secrets import token_hex
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tailcut.common.redaction import without_secrets
from tailcut.errors import MissingExtra, StartError
from tailcut.features.sources.base import ColumnProblem
from tailcut.features.sources.sql import columns_problem, selected

CONNECT_TIMEOUT_S = 5.0
MAX_IDLE_S = 300.0
"""A firewall may have dropped a connection that was idle for longer, without closing it."""
_CLEAN_UP_TIMEOUT_S = 1.0

# Invalid statement name, duplicate statement: what a statement's name meets in a session that does not have it.
_LOST_STATEMENT = frozenset({"26000", "42P05"})
# Undefined column, ambiguous column.
_COLUMN_STATES = frozenset({"42703", "42702"})
_ENDED_STATES = ("08", "57P0")
# A standby cancels a query that conflicts with its recovery.
_CONFLICT = "40001"
# Ends the transaction that preparing begins: it locks tables, and a pooler cannot give its session to others.
_END = "SELECT 1"
_OUTDATED = (*_LOST_STATEMENT, *_ENDED_STATES, _CONFLICT)
# Of libpq alone: asyncpg would send them to the server as its settings, which it refuses.
_LIBPQ_KEYS = {"channel_binding", "connect_timeout", "fallback_application_name", "gssencmode", "keepalives"}
_LIBPQ_KEYS |= {"keepalives_count", "keepalives_idle", "keepalives_interval", "load_balance_hosts", "pgbouncer"}
_LIBPQ_KEYS |= {"sslcertmode", "sslcompression", "sslsni", "tcp_user_timeout"}

_log = logging.getLogger("tailcut.features")
_PREFIX, _NUMBERS = token_hex(6), itertools.count()
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class QuerySelection:
    """A query and the columns wanted of its result."""

    query: str
    columns: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """The query for these columns in this order."""
        return selected(self.query, self.columns)


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result: its name, its type in ``pg_type``, and what kind of type that is."""

    name: str
    type: str
    kind: str


class PostgresDatabase:
    """A fixed number of connections."""

    def __init__(self, url: str, connections: int) -> None:
        self._urls = _by_host(_without_libpq_keys(url))
        """The one that answered last is first."""
        self._places = asyncio.Semaphore(connections)
        self._idle: list[tuple[float, Any]] = []
        """When they were last used, and connections."""
        self._busy: set[Any] = set()
        self._openings: list[asyncio.Task[Any]] = []
        """Connections that were being opened when their callers gave up."""
        self._clean_ups: set[asyncio.Task[None]] = set()
        self._is_pooled = self._is_closed = False

    @classmethod
    async def open(cls, url: str, connections: int) -> PostgresDatabase:
        """Connect.

        Raises:
            MissingExtra: asyncpg is not installed.
            StartError: the database cannot be reached or refuses, or its URL cannot be read.
        """
        try:
            import asyncpg
        except ImportError as error:
            raise MissingExtra(
                "features.database is PostgreSQL, but asyncpg is not installed",
                hint="pip install 'tailcut[postgres]'",
            ) from error
        _check_url(url)
        database = cls(url, connections)
        try:
            await database._recognise_pooler()
            opened = await asyncio.gather(*(database._ready() for _ in range(connections)), return_exceptions=True)
            now_s = asyncio.get_running_loop().time()
            database._idle = [(now_s, each) for each in opened if not isinstance(each, BaseException)]
            if failed := [each for each in opened if isinstance(each, BaseException)]:
                raise failed[0]
        except (
            OSError,
            ValueError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as error:
            await database.close()
            why = f"no answer within {CONNECT_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else text_of(error)
            raise StartError(
                f"features.database: cannot connect to {without_secrets(url)}: {why}",
                hint="start the database, or correct features.database",
            ) from error
        return database

    async def fetch(self, wanted: QuerySelection, values: Sequence[Any]) -> list[Any]:
        """Run a query; rows with the columns wanted, in order. Cancelling the caller cancels it in the server too.

        Raises:
            ColumnProblem: a column is missing, or there twice.
        """
        import asyncpg

        def run(connection: Any) -> Awaitable[list[Any]]:
            return connection.fetch(wanted.text, *values)  # type: ignore[no-any-return]

        try:
            try:
                return await self._with_connection(run)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
                if not self._may_work_now(error):
                    raise
            return await self._with_connection(run)
        except asyncpg.PostgresError as error:
            if error.sqlstate in _COLUMN_STATES:
                await self._explain(wanted, error)
            raise

    async def describe(self, text: str) -> list[ResultColumn]:
        """The columns that a query returns, found by preparing it."""

        async def prepare(connection: Any) -> list[ResultColumn]:
            statement = await connection.prepare(text)
            found = [ResultColumn(each.name, each.type.name, each.type.kind) for each in statement.get_attributes()]
            await connection.execute(_END)
            return found

        return await self._with_connection(prepare)

    async def close(self) -> None:
        """Close all connections; those that hang are cut. Queries that still wait for one fail."""
        self._is_closed = True
        for task in self._openings:
            task.cancel()
        opened = await asyncio.gather(*self._openings, return_exceptions=True)
        # Clean-ups are short. Closing their connections would send cancel requests, and PgBouncer 1.18 can exit on one
        # ("bad client state").
        await asyncio.gather(*self._clean_ups)
        idle = [connection for _, connection in self._idle]
        await asyncio.gather(*(_close(each) for each in [*self._busy, *idle, *opened]))
        await asyncio.gather(*self._clean_ups)

    async def _recognise_pooler(self) -> None:
        probe = await self._connected(statement_cache_size=0)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if await probe.fetchval("SELECT pg_backend_pid()") != probe.get_server_pid():
                    self._send_unprepared()
        finally:
            probe.terminate()

    async def _with_connection(self, work: Callable[[Any], Awaitable[_T]]) -> _T:
        await self._places.acquire()
        connection = None
        try:
            connection = await self._ready()
            self._busy.add(connection)
            found = await work(connection)
        except BaseException as error:
            if connection is not None and (getattr(error, "sqlstate", None) or "").startswith(_ENDED_STATES):
                connection.terminate()
            # May wait for a hung server, which must not hold up a caller who may have given up.
            task = asyncio.create_task(self._give_back(connection))
            self._clean_ups.add(task)
            task.add_done_callback(self._clean_ups.discard)
            raise
        self._give_back_nowait(connection)
        return found

    def _give_back_nowait(self, connection: Any) -> None:
        self._busy.discard(connection)
        if self._is_closed and connection is not None:
            connection.terminate()
        elif connection is not None and not connection.is_closed():
            self._idle.append((asyncio.get_running_loop().time(), connection))
        self._places.release()

    async def _give_back(self, connection: Any) -> None:
        """Keep a connection whose query failed or was given up, if it is soon fit for use."""
        try:
            # Waits for a cancellation that is under way.
            async with asyncio.timeout(_CLEAN_UP_TIMEOUT_S):
                if connection is not None:
                    await connection.execute(_END)
        except Exception:
            connection.terminate()
        self._give_back_nowait(connection)

    async def _ready(self) -> Any:
        """Take a connection, or open one, which goes on when the caller is cancelled: the next one has it."""
        import asyncpg

        if self._is_closed:
            raise asyncpg.InterfaceError("the connections to the database are closed")
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            used_s, connection = self._idle.pop()
            if not connection.is_closed() and now_s - used_s <= MAX_IDLE_S:
                return connection
            connection.terminate()
        while self._openings:
            opening = self._openings.pop()
            if not opening.done() or opening.exception() is None:
                break
        else:
            opening = asyncio.create_task(self._connected(statement_cache_size=0 if self._is_pooled else 100))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._openings.append(opening)
            raise

    def _may_work_now(self, error: Exception) -> bool:
        """See whether a query may succeed at once after an error: what the connection knew was out of date."""
        state = getattr(error, "sqlstate", None) or ""
        if state and not state.startswith(_OUTDATED):
            return False
        if state in _LOST_STATEMENT:
            self._send_unprepared()
        if state != _CONFLICT:
            # The others have most likely ended, or will lose their statements, too.
            while self._idle:
                self._idle.pop()[1].terminate()
        return True

    async def _explain(self, wanted: QuerySelection, error: Exception) -> None:
        """Raise what is wrong with the columns of a query that the server refused for one of them."""
        import asyncpg

        try:
            found = [column.name for column in await self.describe(wanted.query)]
        except asyncpg.PostgresError as inner:
            raise ColumnProblem(f"the database refuses its query: {text_of(inner)}") from inner
        if problem := columns_problem(found, wanted.columns):
            raise ColumnProblem(f"its query {problem}") from error

    async def _connected(self, *, statement_cache_size: int) -> Any:
        """Try the hosts one after the other. A dead one does not answer at all, and must not take all the time."""
        import asyncpg

        class Connection(asyncpg.Connection):  # type: ignore[misc]
            """Has names for its statements that no other process behind one pooler has: the other's would answer."""

            def _get_unique_id(self, prefix: str) -> str:
                return f"tailcut_{prefix}_{_PREFIX}_{os.getpid()}_{next(_NUMBERS)}"  # forks share the prefix

        urls, timeout_s = list(self._urls), CONNECT_TIMEOUT_S / len(self._urls)
        for url in urls:
            try:
                found = await asyncpg.connect(
                    url,
                    timeout=timeout_s,
                    statement_cache_size=statement_cache_size,
                    max_cacheable_statement_size=0,
                    connection_class=Connection,
                )
            except (OSError, asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched):
                if url is urls[-1]:
                    raise
                continue
            self._urls.sort(key=lambda one: one is not url)
            return found
        raise AssertionError("there is always a host")

    def _send_unprepared(self) -> None:
        if not self._is_pooled:
            self._is_pooled = True
            _log.info("features.database is behind a connection pooler: queries are sent unprepared")


async def _close(connection: Any) -> None:
    with suppress(Exception):
        # Cancels the query of a busy connection in the server, too.
        await connection.close(timeout=_CLEAN_UP_TIMEOUT_S)


def text_of(error: BaseException) -> str:
    """What an error says; its class where it says nothing."""
    return str(error) or type(error).__name__


def _check_url(url: str) -> None:
    """Refuse a URL of which a part of the password would be taken for a host, a port or a database.

    Raises:
        StartError: without what is wrong in detail, which would show that part.
    """
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
    except ValueError:
        readable = False
    else:
        # An @ in the query may be that of a value, as in ?password=a@b.
        behind = parts.path + parts.fragment + parts.query.partition("=")[0]
        readable = "@" in parts.netloc or "@" not in behind
    if not readable:
        raise StartError(
            f"features.database: cannot read {without_secrets(url)}: it is not a valid URL",
            hint="percent-encode the password (%2F for /, %3F for ?, %23 for #, %40 for @, %5B for [); "
            "a port is a number",
        )


def _without_libpq_keys(url: str) -> str:
    """Return a URL, as hosting providers give it, without the keys that only libpq knows."""
    parts = urlsplit(url)
    pairs = parts.query.split("&")
    kept = [pair for pair in pairs if pair.partition("=")[0] not in _LIBPQ_KEYS]
    if len(kept) < len(pairs):
        names = ", ".join(sorted(pair.partition("=")[0] for pair in pairs if pair not in kept))
        _log.warning("features.database: %s is ignored: it is a setting of libpq, which tailcut does not use", names)
    return urlunsplit(parts._replace(query="&".join(kept)))


def _by_host(url: str) -> list[str]:
    """Return a URL for each host of one; as it is where the choice between them is asyncpg's."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," not in hosts or "prefer-standby" in parts.query:
        return [url]
    return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]
