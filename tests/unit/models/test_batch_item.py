"""An item sets an entry's fields itself, for speed: all of them, and as an entry does."""

from __future__ import annotations

import asyncio

import pytest

from tailcut.models.batch_item import BatchItem
from tailcut.scheduler.request_queue import QueueEntry


@pytest.mark.parametrize("priority", [0, 1, 7])
def test_an_item_waits_as_an_entry_of_the_same_would(priority: int) -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        entry = QueueEntry(2, 9, "lane", priority, arrived_ns=3, size_bytes=4, tenant="a", kind=5)
        item = BatchItem({}, 2, ("y",), 9, "lane", future, priority, arrived_ns=3, size_bytes=4, tenant="a", kind=5)
        for field in QueueEntry.__slots__:
            assert getattr(item, field) == getattr(entry, field), field

    asyncio.run(main())
