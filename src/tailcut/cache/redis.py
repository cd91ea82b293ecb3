"""A store in Redis: MessagePack values, one MGET per look-up, one pipeline per write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tailcut.cache.bypass import BypassedStore
from tailcut.common.redaction import without_secrets
from tailcut.errors import MissingExtra, StartError

T = TypeVar("T")

KEY_PREFIX = b"tailcut:1:"
"""Names the project and the format of the values: a later format gets another prefix and never reads this one."""

MAX_CONNECTIONS = 64

_FEATURES = 'features.cache = "redis"'
_PROBED = [KEY_PREFIX + b"probe:1", KEY_PREFIX + b"probe:2"]


class RedisStore(Generic[T]):
    """Values of one type in Redis. Errors are raised as they come: wrap it in ``BypassedStore``.

    Args:
        url: ``redis://host:port/db``, ``rediss://...`` or ``unix://...``.
        value_type: what values are; anything in Redis that does not decode as one counts as missing.
        timeout_s: longest wait for the socket.
        wanted_by: the setting that asks for Redis, for errors.

    Raises:
        MissingExtra: redis-py is not installed.
        StartError: the URL cannot be read.
    """

    def __init__(self, url: str, value_type: type[T], *, timeout_s: float, wanted_by: str = _FEATURES) -> None:
        self._client = _connect(url, timeout_s, wanted_by)
        self._decode = msgspec.msgpack.Decoder(value_type).decode
        self._encode = msgspec.msgpack.Encoder().encode

    async def get_many(self, keys: Sequence[bytes]) -> list[T | None]:
        """Look all keys up with one MGET."""
        found = await self._client.mget([KEY_PREFIX + key for key in keys])
        return [None if raw is None else self._read(raw) for raw in found]

    async def put_many(self, items: Sequence[tuple[bytes, T, float]]) -> None:
        """Write all items with one pipeline of SET ... PX. A write that Redis refuses (full, say) is left out."""
        pipeline = self._client.pipeline(transaction=False)
        for key, value, ttl_s in items:
            life_ms = int(ttl_s * 1e3)
            if life_ms > 0:
                pipeline.set(KEY_PREFIX + key, self._encode(value), px=life_ms)
        await pipeline.execute(raise_on_error=False)

    async def probe(self) -> None:
        """Look two keys up over a new connection, because the pooled ones may be those that failed.

        A PING is answered also where look-ups are refused: without the right to MGET, or by a cluster, which takes no
        keys of different slots in one MGET.
        """
        await self._client.connection_pool.disconnect(inuse_connections=False)
        await self._client.mget(_PROBED)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _read(self, raw: bytes) -> T | None:
        try:
            return self._decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None


async def open_redis(url: str, value_type: type[T], timeout_s: float, wanted_by: str) -> BypassedStore[T]:
    """Connect to Redis. Down is no reason not to start; refusing our credentials or look-ups is.

    Args:
        wanted_by: the setting that asks for Redis, for errors.

    Raises:
        StartError: a wrong URL, wrong credentials or missing rights.
        MissingExtra: redis-py is not installed.
    """
    if not url or "${" in url:
        raise StartError(f"{wanted_by}, but features.redis is {url!r}", hint="write redis://host:port/db")
    redis = RedisStore(url, value_type, timeout_s=timeout_s, wanted_by=wanted_by)
    from redis.exceptions import AuthenticationError, NoPermissionError

    store = BypassedStore(redis, timeout_s, f"features.redis {without_secrets(url)}")
    try:
        await redis.probe()
    except AuthenticationError as error:
        await store.close()
        raise StartError(f"features.redis refuses the credentials: {error}", hint="correct features.redis") from error
    except NoPermissionError as error:
        await store.close()
        raise StartError(
            f"features.redis refuses commands that the cache needs: {error}", hint="allow its user MGET and SET"
        ) from error
    except Exception:
        await store.probe()
    return store


def _connect(url: str, timeout_s: float, wanted_by: str) -> Any:
    try:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise MissingExtra(
            f"{wanted_by} needs redis-py, which is not installed", hint="pip install 'tailcut[redis]'"
        ) from error
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # A retry would double the time-out, and the caller has a better one: ask the source.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise StartError(
            f"features.redis is {url!r}, which is not a Redis URL: {error}", hint="write redis://host:port/db"
        ) from error
    return Redis.from_pool(pool)
