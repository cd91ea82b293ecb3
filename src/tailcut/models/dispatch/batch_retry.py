"""What becomes of a finished batch: each ticket its end, and after a failure one more run alone for each.

A batch that raises says nothing about which of its requests is to blame. Run one by one, only the culprit fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.common.tensors import Arrays
from tailcut.errors import TailcutError
from tailcut.models.batch_item import Ticket, WrongRows

_UNPROVEN_BATCHES = 4
"""So many failed batches are taken apart without one success in between; then the model is broken, not a request."""


class Isolation:
    """Hands out results, decides what runs again, and counts it. Owned by the dispatcher.

    Work is bounded: a ticket runs at most twice, and a model that always fails at most four batches so.

    Attributes:
        batches: failed batches whose tickets were run again one by one.
        answered, failed: how those runs ended.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.answered = 0
        self.failed = 0
        self._unproven = 0

    def hand_out(self, batch: Sequence[Ticket], result: list[Arrays] | TailcutError, now_ns: int) -> list[Ticket]:
        """Give every ticket of a batch its end; return those that are to be run again, each alone."""
        again: list[Ticket] = []
        if isinstance(result, TailcutError):
            if batch[0].alone:
                self.failed += 1
            elif len(batch) > 1 and self._unproven < _UNPROVEN_BATCHES and not isinstance(result, WrongRows):
                again = [ticket for ticket in batch if not ticket.future.done() and ticket.deadline_ns > now_ns]
            for ticket in batch:
                if ticket not in again and not ticket.future.done():
                    ticket.future.set_exception(result)
            if again:
                self.batches += 1
                self._unproven += 1
            for ticket in again:
                ticket.set_alone()
        else:
            self._unproven = 0
            self.answered += batch[0].alone
            for ticket, outputs in zip(batch, result, strict=True):
                if not ticket.future.done():
                    ticket.future.set_result(outputs)
        return again

    def rescue(self, batch: Sequence[Ticket], error: TailcutError, now_ns: int) -> list[Ticket]:
        """Return which tickets of a dead executor's batch run once more, each alone; the others end with ``error``."""
        again = []
        for ticket in batch:
            if ticket.future.done():
                continue
            if ticket.alone or ticket.deadline_ns <= now_ns:
                ticket.future.set_exception(error)
            else:
                ticket.set_alone()
                again.append(ticket)
        self.batches += bool(again)
        return again
