"""Connections to PostgreSQL: straight or through a pooler, to a server that may restart, move, or change its tables.

What a connection knows may be out of date: the server has ended it, a statement is unknown in the session, a table has
other columns. Then the query runs once more, prepared anew or on a new connection, before a request fails. A pooler
is recognised when a connection is opened, because it gives its clients process ids of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from tailcut.common.redaction import without_secrets
from tailcut.errors import MissingExtra, StartError
from tailcut.features.sources.base import ColumnProblem
from tailcut.features.sources.postgres_statements import Column, Selection, Session, described
from tailcut.features.sources.postgres_urls import by_host, check_url
from tailcut.features.sources.sql import columns_problem

CONNECT_TIMEOUT_S = 5.0
MAX_IDLE_S = 300.0
"""A firewall may have dropped a connection that was idle for longer, without closing it."""
_CLEAN_UP_TIMEOUT_S = 1.0

# Invalid statement name, duplicate statement: what a statement's name meets in a session that does not have it.
_LOST_STATEMENT = frozenset({"26000", "42P05"})
# Undefined column, ambiguous column.
_COLUMN_STATES = frozenset({"42703", "42702"})
_ENDED_STATES = ("08", "57P0")
# What a standby says to a query in the way of its recovery.
_CONFLICT = "40001"

_log = logging.getLogger("tailcut.features")


class _Slot:
    """A place for one connection, which is opened again when it has ended."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.opening: asyncio.Task[Session] | None = None
        self.used_s = 0.0

    def adopt(self) -> None:
        """Keep the connection that was being opened once it is open, even if its caller was cancelled."""
        opening = self.opening
        if opening is not None and opening.done():
            self.opening = None
            if not opening.cancelled() and opening.exception() is None:
                self.session = opening.result()


class PostgresDatabase:
    """A fixed number of connections."""

    def __init__(self, url: str, connections: int) -> None:
        self._urls = by_host(url)
        """The one that answered last is first."""
        self._slots = [_Slot() for _ in range(connections)]
        self._free: asyncio.LifoQueue[_Slot] = asyncio.LifoQueue()
        self._clean_ups: set[asyncio.Task[None]] = set()
        self._pooled = False
        self._closed = False

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
        check_url(url)
        database = cls(url, connections)
        try:
            await asyncio.gather(*(database._ready(slot) for slot in database._slots))
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
        for slot in database._slots:
            database._free.put_nowait(slot)
        return database

    async def fetch(self, wanted: Selection, values: Sequence[Any]) -> list[Any]:
        """Run a query; rows with the columns wanted, in order. Cancelling the caller cancels it in the server too.

        Raises:
            ColumnProblem: a column is missing, or there twice.
        """
        import asyncpg

        slot = await self._free.get()
        try:
            rows = await self._fetch(slot, wanted, values)
        except asyncpg.PostgresError as error:
            try:
                if error.sqlstate in _COLUMN_STATES:
                    await self._explain(slot, wanted, error)
                raise
            finally:
                self._give_back(slot)
        except BaseException:
            self._give_back(slot)
            raise
        self._free.put_nowait(slot)
        return rows

    async def describe(self, text: str) -> list[Column]:
        """The columns that a query returns, found by preparing it."""
        slot = await self._free.get()
        try:
            return await self._described(slot, text)
        finally:
            self._give_back(slot)

    async def close(self) -> None:
        """Close all connections; those that hang are cut. Queries that still wait for one fail."""
        self._closed = True
        for task in [*self._clean_ups, *(slot.opening for slot in self._slots if slot.opening is not None)]:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        for slot in self._slots:
            slot.adopt()
        sessions = [slot.session for slot in self._slots if slot.session is not None]
        await asyncio.gather(*(self._end(session) for session in sessions))

    async def _fetch(self, slot: _Slot, wanted: Selection, values: Sequence[Any]) -> list[Any]:
        """Run a query; once more where what the connection knows is out of date."""
        import asyncpg

        session = await self._ready(slot)
        try:
            return await session.fetch(wanted, values)
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state in _LOST_STATEMENT:
                self._log_pooler()
                session.pooled = True
                session.statements.clear()
            elif isinstance(error, asyncpg.InvalidCachedStatementError) or state in _COLUMN_STATES:
                session.statements.pop(wanted, None)
            elif state.startswith(_ENDED_STATES):
                session.inner.terminate()
            elif state != _CONFLICT:
                raise
        except (asyncpg.OutdatedSchemaCacheError, asyncpg.InternalClientError):
            session.statements.pop(wanted, None)
        except (OSError, asyncpg.InterfaceError):
            if not session.inner.is_closed():
                raise
        session = await self._ready(slot)
        return await session.fetch(wanted, values)

    async def _explain(self, slot: _Slot, wanted: Selection, error: Exception) -> None:
        """Raise what is wrong with the columns of a query that the server refused for one of them."""
        import asyncpg

        try:
            found = [column.name for column in await self._described(slot, wanted.query)]
        except asyncpg.PostgresError as inner:
            raise ColumnProblem(f"the database refuses its query: {text_of(inner)}") from inner
        if problem := columns_problem(found, wanted.columns):
            raise ColumnProblem(f"its query {problem}") from error

    async def _described(self, slot: _Slot, text: str) -> list[Column]:
        statement = await (await self._ready(slot)).inner.prepare(text)
        return described(statement)

    async def _ready(self, slot: _Slot) -> Session:
        """The slot's connection. Where there is none it is opened, which goes on when the caller is cancelled."""
        self._check_open()
        loop = asyncio.get_running_loop()
        session, now_s = slot.session, loop.time()
        rested_s, slot.used_s = now_s - slot.used_s, now_s
        if session is not None and not session.inner.is_closed():
            if rested_s <= MAX_IDLE_S:
                return session
            slot.session = None
            self._aside(self._end(session))
        if slot.opening is None:
            slot.opening = loop.create_task(self._connect())
        try:
            session = await asyncio.shield(slot.opening)
        finally:
            slot.adopt()
        self._check_open()
        return session

    def _check_open(self) -> None:
        import asyncpg

        if self._closed:
            raise asyncpg.InterfaceError("the connections to the database are closed")

    async def _connect(self) -> Session:
        inner = await self._connect_to_any()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                pooled = await inner.fetchval("SELECT pg_backend_pid()") != inner.get_server_pid()
        except BaseException:
            inner.terminate()
            raise
        if pooled:
            self._log_pooler()
        return Session(inner, pooled=pooled)

    async def _connect_to_any(self) -> Any:
        """Try the hosts one after the other. A dead one does not answer at all, and must not take all the time."""
        import asyncpg

        urls, timeout_s = list(self._urls), CONNECT_TIMEOUT_S / len(self._urls)
        for url in urls:
            try:
                # asyncpg's own cache would give names to what it asks the server for itself.
                inner = await asyncpg.connect(url, timeout=timeout_s, statement_cache_size=0)
            except (OSError, asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched):
                if url is urls[-1]:
                    raise
                continue
            self._urls.sort(key=lambda one: one is not url)
            return inner
        raise AssertionError("there is always a host")

    def _log_pooler(self) -> None:
        if not self._pooled:
            self._pooled = True
            _log.info("features.database is behind a connection pooler: queries are sent unprepared")

    def _give_back(self, slot: _Slot) -> None:
        """Free a slot whose query failed or was given up, as soon as the connection is fit for use.

        Waiting here for a hung server would hold up the caller, who may have given up.
        """
        self._aside(self._clean_up(slot))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._clean_ups.add(task)
        task.add_done_callback(self._clean_ups.discard)

    async def _clean_up(self, slot: _Slot) -> None:
        try:
            if slot.opening is not None:
                await asyncio.wait([slot.opening])
                slot.adopt()
            elif slot.session is not None and not slot.session.inner.is_closed():
                # Waits for a cancellation that is under way.
                async with asyncio.timeout(_CLEAN_UP_TIMEOUT_S):
                    await slot.session.inner.execute("SELECT 1")
        except Exception:
            if slot.session is not None:
                slot.session.inner.terminate()
        finally:
            self._free.put_nowait(slot)

    async def _end(self, session: Session) -> None:
        try:
            await session.inner.close(timeout=_CLEAN_UP_TIMEOUT_S)
        except Exception:
            session.inner.terminate()


def text_of(error: BaseException) -> str:
    """What an error says; its class where it says nothing."""
    return str(error) or type(error).__name__
