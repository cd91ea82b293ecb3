"""Redis, synchronous and not."""

from __future__ import annotations

from typing import Any

from tailcut.profiler.hooks.imports import Hook
from tailcut.profiler.hooks.wrapping import Calls, hook_of
from tailcut.profiler.recording.spans import one_line
from tailcut.profiler.records import Stage


def _name(value: Any) -> str:
    return value if isinstance(value, str) else one_line(value if isinstance(value, bytes) else str(value))


def _command(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    # The command and how many arguments, not the keys: there are as many of those as there are users.
    name = _name(args[1]) if len(args) > 1 else "command"
    return f"{name} ({len(args) - 2} arguments)" if len(args) > 3 else name


def _pipeline(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    stack = getattr(args[0], "command_stack", ())
    commands = (one[0] if isinstance(one, tuple) else getattr(one, "args", ()) for one in list(stack)[:50])
    names = dict.fromkeys(_name(command[0]) if command else "?" for command in commands)
    return f"pipeline of {len(stack)} ({', '.join(names)})"


_CLIENT = hook_of(
    Calls("Redis", "execute_command", Stage.CACHE, _command), Calls("Pipeline", "execute", Stage.CACHE, _pipeline)
)
_POOL = hook_of(Calls("BlockingConnectionPool", "get_connection", Stage.WAIT, "Redis's connection pool"))
HOOKS: dict[str, Hook] = {
    "redis.client": _CLIENT,
    "redis.asyncio.client": _CLIENT,
    "redis.connection": _POOL,
    "redis.asyncio.connection": _POOL,
}
