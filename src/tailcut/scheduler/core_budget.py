"""The cores of a machine, shared by the schedulers of several models. A state machine without clock or I/O.

A slot is a core. A batch takes as many as its runtime has threads, and is never interrupted. Each model has a virtual
time: the core time of its batches, divided by its share. The machine has one, too, which passes as fast as it would for
each model if all that are in use had their shares. While several wait for a slot, a model that is behind the machine
begins, the one that is furthest behind first; where none is, what is left over goes to the most urgent request. So no
model that stays within its share waits for longer than the batches that run when it comes, and core time that one model
does not use goes to the others. A model earns no credit while it is idle, and is charged little for core time that was
left over. (Start-time fair queueing: Goyal, Vin and Cheng, SIGCOMM 1996; virtual clock: Zhang, SIGCOMM 1990.)

A free slot is always given away, even to a batch that has more threads than there are free slots. Its threads then
share cores for a while; otherwise a core would be idle, or the batch could wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, inf

_RATE_NS = 500_000_000.0
"""A model's use of cores is averaged over about so long."""

_ACTIVE_CORES = 0.002
"""A model that uses fewer cores is not in use: it does not limit the batches of others."""

_SLACK = 0.5
"""Of the time that an SLO leaves a model beside its own batch, so much may pass before one of its batches begins."""

_AHEAD = 2.0
"""A model's virtual time is ahead of the machine's by no more than so many of its batches on every core."""

_TYPICAL = 0.1
"""Weight of the newest batch in what a batch of a model usually takes."""


class CoreBudget:
    """The core slots of a machine, and the schedulers that wait for one.

    Args:
        cores: slots, at least 1.
    """

    def __init__(self, cores: int) -> None:
        self.cores = max(cores, 1)
        self.free = self.cores
        """Slots that no batch has taken; below 0 where batches of several threads began on fewer."""
        self._models: dict[str, _Model] = {}
        self._active: list[_Model] = []
        """That have something to compute, or had lately: only these are looked at, however many models there are."""
        self._virtual_ns = 0.0
        self._now_ns = 0

    def join(
        self,
        model: str,
        wake: Callable[[], object],
        *,
        share: float = 1.0,
        width: int = 1,
        limit_ns: float = inf,
    ) -> CoreUser:
        """Return the place of one more scheduler; those of one model (variants, a fallback) have one share.

        Args:
            wake: called when it may begin a batch for which it waited; it asks again then.
            share: weight of the model; above 0.
            width: slots that a batch takes.
            limit_ns: of the SLO: until when a request is to be answered.
        """
        found = self._models.setdefault(model, _Model())
        found.share = share
        user = CoreUser(self, found, wake, min(width, self.cores), limit_ns)
        found.users.append(user)
        return user

    def first(self) -> CoreUser | None:
        """Return the waiting scheduler that begins next; None where none waits."""
        waiting = [user for model in self._active for user in model.users if user.waits]
        if not waiting:
            return None
        behind = [user for user in waiting if user.model.virtual_ns <= self._virtual_ns]
        if behind:
            return min(behind, key=lambda user: (user.model.virtual_ns, user.urgent_ns))
        return min(waiting, key=lambda user: (user.urgent_ns, user.model.virtual_ns))

    def wake_next(self) -> None:
        """Wake the scheduler that begins next, where a slot is free."""
        if self.free > 0 and (user := self.first()) is not None:
            user.wake()

    def advance(self, now_ns: int) -> None:
        """Let the machine's virtual time pass."""
        if now_ns > self._now_ns:
            self._active = [each for each in self._active if each.is_active(self._now_ns)]
            shares = sum([each.share for each in self._active])
            if shares:
                self._virtual_ns += (now_ns - self._now_ns) * self.cores / shares
            self._now_ns = now_ns

    def part(self, model: _Model, now_ns: float) -> float:
        """Return how many cores a model can count on: its share, or what the others leave."""
        others = [each for each in self._active if each is not model and each.is_active(now_ns)]
        fair = self.cores * model.share / (model.share + sum([each.share for each in others]))
        return max(fair, self.cores - sum([each.rate(now_ns) for each in others]))

    def cap_ns(self, model: _Model, now_ns: float) -> float:
        """Return how long a batch of a model may take, so that no other model that is in use becomes late by it."""
        return min(
            [
                user.slack_ns
                for other in self._active
                if other is not model and other.rate(now_ns) > _ACTIVE_CORES
                for user in other.users
            ],
            default=inf,
        )

    def charge(self, user: CoreUser, core_ns: float) -> None:
        """Move a model's virtual time on; it does not get far ahead of the machine's."""
        model = user.model
        if model not in self._active:
            self._active.append(model)
        most_ns = self._virtual_ns + _AHEAD * self.cores * user.typical_ns * user.width / model.share
        model.virtual_ns = min(model.virtual_ns, most_ns) + core_ns / model.share

    def begin(self, model: _Model) -> None:
        """Note that a model has something to compute; if it had nothing before, what it did not use is gone."""
        if not model.is_busy:
            model.virtual_ns = max(model.virtual_ns, self._virtual_ns)
        if model not in self._active:
            self._active.append(model)

    def others(self, but: CoreUser) -> Iterator[CoreUser]:
        """Yield the other schedulers that have something to compute, or had lately."""
        return (user for model in self._active for user in model.users if user is not but)


class _Model:
    """What is known of one model.

    Attributes:
        virtual_ns: the core time of its batches, divided by its share.
    """

    def __init__(self) -> None:
        self.share = 1.0
        self.virtual_ns = 0.0
        self.users: list[CoreUser] = []
        self._cores = 0.0
        self._at_ns = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether it has something to compute."""
        return any(user.waits or user.running for user in self.users)

    def is_active(self, now_ns: float) -> bool:
        """Whether it has something to compute, or had lately."""
        return self.is_busy or self.rate(now_ns) > _ACTIVE_CORES

    def rate(self, now_ns: float) -> float:
        """Return how many cores it has used lately."""
        return self._cores * exp(min(self._at_ns - now_ns, 0.0) / _RATE_NS)

    def used(self, core_ns: float, now_ns: float) -> None:
        """Count core time that has just been used."""
        self._cores, self._at_ns = self.rate(now_ns) + core_ns / _RATE_NS, now_ns


class CoreUser:
    """One scheduler's place in a budget.

    Attributes:
        waits: whether it has asked for a slot and not been given one.
        is_full: whether it would ask, but all its executors are busy.
        urgent_ns: when the first of its requests is due; while it waits.
        running: batches by their keys: when each began, and what it is expected to take.
        typical_ns: what a batch usually takes.
    """

    def __init__(
        self,
        budget: CoreBudget,
        model: _Model,
        wake: Callable[[], object],
        width: int,
        limit_ns: float,
    ) -> None:
        self._budget = budget
        self.model = model
        self.wake = wake
        self.width = width
        self.waits = False
        self.is_full = False
        self.urgent_ns = 0
        self.running: dict[object, tuple[int, float]] = {}
        self.typical_ns = 0.0
        self._limit_ns = limit_ns

    @property
    def slack_ns(self) -> float:
        """How long others may keep it waiting without making its requests late."""
        return max(_SLACK * (self._limit_ns - self.typical_ns), 0.0)

    def ask(self, most: int, urgent_ns: int, now_ns: int) -> int:
        """Ask to begin batches; return how many may begin now. Where none may, ``wake`` is called once one may.

        Args:
            most: batches that could begin: executors that are idle. Where none is, the next end of one of its own
                batches counts as asking.
            urgent_ns: when the first request that waits is due.
        """
        budget = self._budget
        budget.advance(now_ns)
        budget.begin(self.model)
        self.waits, self.is_full, self.urgent_ns = most > 0, most <= 0, urgent_ns
        if budget.free <= 0 or most <= 0:
            return 0
        if not any(user.waits for user in budget.others(self)):
            return min(most, -(-budget.free // self.width))
        if budget.first() is not self:
            budget.wake_next()
            return 0
        return 1

    def planned(self, *, more: bool, idle: bool) -> None:
        """Say that the batches have begun that may; others have their turn then.

        Args:
            more: whether there are more to begin.
            idle: whether an executor is idle.
        """
        self.waits, self.is_full = more and idle, more and not idle
        self._budget.wake_next()

    def withdraw(self) -> None:
        """Say that there is nothing to begin any more."""
        self.is_full = False
        if self.waits:
            self.planned(more=False, idle=True)

    def started(self, key: object, now_ns: int, cost_ns: float) -> None:
        """Note that a batch begins; it takes slots until ``ended``."""
        budget = self._budget
        self.running[key] = now_ns, cost_ns
        self._learn(cost_ns)
        budget.advance(now_ns)
        budget.charge(self, cost_ns * self.width)
        budget.free -= self.width

    def ended(self, key: object, now_ns: int) -> None:
        """Note that a batch has ended, or was given up."""
        budget, model = self._budget, self.model
        budget.advance(now_ns)  # until now it ran
        found = self.running.pop(key, None)
        if found is None:
            return
        if self.is_full:
            self.waits, self.is_full = True, False
        started_ns, cost_ns = found
        took_ns = now_ns - started_ns
        # What it took more or less than expected is settled.
        model.virtual_ns += (took_ns - cost_ns) * self.width / model.share
        model.used(took_ns * self.width, now_ns)
        budget.free += self.width
        budget.wake_next()

    def used(self, now_ns: int, took_ns: float) -> None:
        """Count what ran without asking: on the event loop, which cannot wait."""
        self._learn(took_ns)
        self._budget.begin(self.model)
        self._budget.charge(self, took_ns)
        self.model.used(took_ns, now_ns)

    def _learn(self, took_ns: float) -> None:
        self.typical_ns += (_TYPICAL if self.typical_ns else 1.0) * (took_ns - self.typical_ns)

    def cap_ns(self, now_ns: int) -> float:
        """Return how long its batches may take for the other models' sake."""
        return self._budget.cap_ns(self.model, now_ns)

    def part(self, now_ns: int, slots: int) -> float:
        """Return the part of so many slots that its model can count on, above 0 and at most 1."""
        return min(self._budget.part(self.model, now_ns) / max(slots, 1), 1.0)

    def others_ns(self, now_ns: int) -> list[float]:
        """Return what the others' batches still take."""
        running = (batch for user in self._budget.others(self) for batch in user.running.values())
        return [max(started_ns + cost_ns - now_ns, 0.0) for started_ns, cost_ns in running]

    @property
    def all_taken(self) -> bool:
        """Whether no slot is free."""
        return self._budget.free <= 0

    def leave(self) -> None:
        """Leave the budget; batches that still run do not count any more."""
        self._budget.free += self.width * len(self.running)
        self.running.clear()
        self.waits = self.is_full = False
        if self in self.model.users:
            self.model.users.remove(self)
        self._budget.wake_next()
