"""Whether models fit into memory that are loaded at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tailcut.common.units import Size, format_size
from tailcut.errors import StartError
from tailcut.system.machine import free_bytes

_FREE_SHARE = 0.8
"""Of the memory that is free, what loading may take: requests that are answered meanwhile allocate too."""

_MIB = 1 << 20


class LoadingMemory:
    """Lets models be loaded at once as far as memory has room. Owned by the event loop.

    Args:
        free: returns the bytes that are free; None where that is unknown.
    """

    def __init__(self, free: Callable[[], int | None] = free_bytes) -> None:
        self._free = free
        self._loading: dict[object, int] = {}
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def room_for(self, what: str, least_bytes: int, likely_bytes: int) -> AsyncIterator[None]:
        """Wait until a model fits beside those that are being loaded; it counts as one of them within the block.

        Args:
            what: the model, for the error.
            least_bytes: what it takes in any case: its weights.
            likely_bytes: what it may take while it is loaded.

        Raises:
            StartError: it does not fit, even if nothing else were being loaded.
        """
        while self._loading:
            free = self._free()
            if free is None or likely_bytes + sum(self._loading.values()) <= _FREE_SHARE * free:
                break
            await self._ended.wait()
        self.refuse_too_large(what, least_bytes, "unload another model first, or give the server more memory")
        me = object()
        self._loading[me] = likely_bytes
        try:
            yield
        finally:
            del self._loading[me]
            self._ended.set()
            self._ended = asyncio.Event()

    def refuse_too_large(self, what: str, least_bytes: int, hint: str) -> None:
        """Refuse what takes more than the memory that is free now; any thread may call it.

        Raises:
            StartError: it does not fit; both figures and the hint are in it.
        """
        free = self._free()
        if free is not None and least_bytes > free:
            raise StartError(
                f"{what} does not fit into memory: its files have {_text(least_bytes)}, free are {_text(free)}",
                hint=hint,
            )


def _text(size_bytes: int) -> str:
    return format_size(Size(size_bytes // _MIB * _MIB)) if size_bytes >= _MIB else f"{size_bytes} B"
