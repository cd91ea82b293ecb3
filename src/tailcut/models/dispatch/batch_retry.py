"""What becomes of a finished batch: each item its end, and after a failure one more run alone for each.

A batch that raises says nothing about which of its requests is to blame. Run one by one, only the culprit fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.models.batch_item import BatchItem, WrongRows

_UNPROVEN_BATCHES = 4
"""So many failed batches are taken apart without one success in between; then the model is broken, not a request."""


class BatchRetry:
    """Hands out results, decides what runs again, and counts it. Owned by the dispatcher.

    Work is bounded: an item runs at most twice, and a model that always fails at most four batches so.

    Attributes:
        batches: failed batches whose items were run again one by one.
        answered, failed: how those runs ended.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.answered = 0
        self.failed = 0
        self._unproven = 0

    def hand_out(self, batch: Sequence[BatchItem], result: list[Arrays] | TailcutError, now_ns: int) -> list[BatchItem]:
        """Give every item of a batch its end; return those that are to be run again, each alone."""
        again: list[BatchItem] = []
        if isinstance(result, TailcutError):
            if batch[0].alone:
                self.failed += 1
            elif len(batch) > 1 and self._unproven < _UNPROVEN_BATCHES and not isinstance(result, WrongRows):
                again = [item for item in batch if not item.future.done() and item.deadline_ns > now_ns]
            for item in batch:
                if item not in again and not item.future.done():
                    item.future.set_exception(result)
            if again:
                self.batches += 1
                self._unproven += 1
            for item in again:
                item.set_alone()
        else:
            self._unproven = 0
            self.answered += batch[0].alone
            for item, outputs in zip(batch, result, strict=True):
                if not item.future.done():
                    item.future.set_result(outputs)
        return again

    def rescue(self, batch: Sequence[BatchItem], error: TailcutError, now_ns: int) -> list[BatchItem]:
        """Return which items of a dead executor's batch run once more, each alone; the others end with ``error``."""
        again = []
        for item in batch:
            if item.future.done():
                continue
            if item.alone or item.deadline_ns <= now_ns:
                item.future.set_exception(error)
            else:
                item.set_alone()
                again.append(item)
        self.batches += bool(again)
        return again
