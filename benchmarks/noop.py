"""A Granian RSGI handler that reads the body and answers a constant: the ceiling of this server on this machine."""

from __future__ import annotations

import sys
from typing import Any

from granian.constants import Interfaces, Loops, TaskImpl
from granian.log import LogLevels
from granian.server.mp import MPServer


async def _noop(scope: Any, protocol: Any) -> None:
    await protocol()
    protocol.response_bytes(200, [("content-type", "application/json")], b'{"outputs":[]}')


def _load() -> Any:
    return _noop


def main() -> None:
    server = MPServer(
        target="noop",
        port=int(sys.argv[1]),
        interface=Interfaces.RSGI,
        workers=1,
        loop=Loops.uvloop,
        task_impl=TaskImpl.asyncio,
        websockets=False,
        log_level=LogLevels.warning,
    )
    server.serve(target_loader=_load, wrap_loader=False)


if __name__ == "__main__":
    main()
