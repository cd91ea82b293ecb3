"""The budget of cores: who begins next, what each model gets, and that no core rests while somebody waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailcut.scheduler.core_budget import CoreBudget, CoreUser

MS = 1_000_000


@dataclass
class Model:
    """A scheduler that has batches of one length to run, on as many executors as there are cores."""

    name: str
    batch_ms: float
    share: float = 1.0
    width: int = 1
    waiting: list[int] = field(default_factory=list)
    began_ms: list[float] = field(default_factory=list)
    waited_ms: list[float] = field(default_factory=list)
    core_ms: float = 0.0
    user: CoreUser = field(init=False)
    running: int = 0


class Machine:
    """Models on one budget in simulated time: batches arrive, wait, begin where they are told, and end."""

    def __init__(self, cores: int, models: list[Model], limit_ms: float = inf) -> None:
        self.budget = CoreBudget(cores)
        self.now_ns = 0
        self.models = models
        self._cores = cores
        self._events: list[tuple[int, int, Model, str]] = []
        self._order = count()
        self._woken: dict[str, Model] = {}
        for model in models:
            model.user = self.budget.join(
                model.name,
                lambda model=model: self._woken.setdefault(model.name, model),  # type: ignore[misc]
                share=model.share,
                width=model.width,
                limit_ns=limit_ms * MS,
            )

    def arrive(self, model: Model, at_ms: float) -> None:
        heappush(self._events, (int(at_ms * MS), next(self._order), model, "arrive"))

    def run(self, until_ms: float) -> None:
        while self._events and self._events[0][0] <= until_ms * MS:
            self.now_ns, _, model, what = heappop(self._events)
            if what == "arrive":
                model.waiting.append(self.now_ns)
            else:
                model.running -= 1
                model.user.ended(what, self.now_ns)
            self._woken.setdefault(model.name, model)
            self._kick()
            rests = self.budget.free > 0
            assert not (rests and any(each.waiting and each.running < self._cores for each in self.models))

    def _kick(self) -> None:
        for turn in count():
            assert turn < 1000, "they wake one another for ever"
            if not self._woken:
                return
            model = self._woken.pop(next(iter(self._woken)))
            most = self._cores - model.running
            if not model.waiting:
                model.user.withdraw()
                continue
            begin = min(model.user.ask(most, model.waiting[0], self.now_ns), len(model.waiting))
            for _ in range(begin):
                came_ns = model.waiting.pop(0)
                model.waited_ms.append((self.now_ns - came_ns) / MS)
                model.running += 1
                model.core_ms += model.batch_ms * model.width
                key = f"end {next(self._order)}"
                model.user.started(key, self.now_ns, model.batch_ms * MS)
                heappush(self._events, (self.now_ns + int(model.batch_ms * MS), next(self._order), model, key))
            if begin:
                model.user.planned(more=bool(model.waiting), idle=model.running < self._cores)


def backlog(machine: Machine, model: Model, batches: int) -> None:
    for _ in range(batches):
        machine.arrive(model, 0)


@pytest.mark.parametrize("cores", [1, 2, 4])
@pytest.mark.parametrize(("batches_ms", "shares"), [((10, 10), (1, 1)), ((50, 3), (1, 1)), ((7, 20), (3, 1))])
def test_models_with_a_backlog_get_their_shares(
    cores: int, batches_ms: tuple[float, float], shares: tuple[float, float]
) -> None:
    models = [Model(f"m{at}", ms, share) for at, (ms, share) in enumerate(zip(batches_ms, shares, strict=True))]
    machine = Machine(cores, models)
    for model in models:
        backlog(machine, model, int(cores * 20_000 / model.batch_ms))
    machine.run(5_000)
    got = models[0].core_ms / sum(model.core_ms for model in models)
    assert got == pytest.approx(shares[0] / sum(shares), abs=0.02)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_within_its_share_a_model_waits_for_one_batch_of_another_at_most(cores: int) -> None:
    heavy, calm = Model("heavy", 40), Model("calm", 5)
    machine = Machine(cores, [heavy, calm])
    backlog(machine, heavy, 4_000)
    for at in range(200):
        machine.arrive(calm, 7 + 31 * at)
    machine.run(6_500)
    assert len(calm.waited_ms) == 200
    assert max(calm.waited_ms) <= 40


def test_what_one_does_not_use_the_others_have() -> None:
    heavy, calm = Model("heavy", 10), Model("calm", 10)
    machine = Machine(2, [heavy, calm])
    backlog(machine, heavy, 1_000)
    for at in range(10):
        machine.arrive(calm, 100 * at)
    machine.run(1_000)
    assert heavy.core_ms + calm.core_ms >= 2_000
    assert calm.core_ms == 100


def test_who_has_rested_gains_nothing_by_it() -> None:
    busy, late = Model("busy", 10), Model("late", 10)
    machine = Machine(1, [busy, late])
    backlog(machine, busy, 1_000)
    machine.run(1_000)
    for _ in range(500):
        machine.arrive(late, 1_000)
    before = busy.core_ms
    machine.run(2_000)
    assert busy.core_ms - before == pytest.approx(500, abs=20)


def test_variants_of_one_model_have_one_share() -> None:
    budget = CoreBudget(1)
    first, second, other = (budget.join(name, lambda: None) for name in ("a", "a", "b"))
    other.ask(1, 0, 0)
    first.started(1, 0, 10 * MS)
    first.ended(1, 10 * MS)
    second.ask(1, 0, 10 * MS)
    assert budget.first() is other


def test_a_wide_batch_does_not_wait_for_all_its_cores() -> None:
    wide, narrow = Model("wide", 10, width=2), Model("narrow", 10)
    machine = Machine(2, [wide, narrow])
    backlog(machine, wide, 500)
    backlog(machine, narrow, 1_000)
    machine.run(2_000)
    assert wide.core_ms / (wide.core_ms + narrow.core_ms) == pytest.approx(0.5, abs=0.05)


def test_batches_are_no_longer_than_another_model_in_use_can_wait() -> None:
    budget = CoreBudget(2)
    heavy = budget.join("heavy", lambda: None, limit_ns=1_000 * MS)
    calm = budget.join("calm", lambda: None, limit_ns=100 * MS)
    assert heavy.cap_ns(0) == inf  # nobody asks the other one
    calm.started(1, 0, 20 * MS)
    calm.ended(1, 20 * MS)
    assert heavy.cap_ns(20 * MS) == 40 * MS
    assert heavy.cap_ns(20_000 * MS) == inf


def test_a_model_can_count_on_its_share_or_on_what_the_others_leave() -> None:
    budget = CoreBudget(2)
    heavy, calm = budget.join("heavy", lambda: None), budget.join("calm", lambda: None)
    assert heavy.part(0, 2) == 1.0
    for at in range(100):
        heavy.started("h", at * 10 * MS, 10 * MS)
        heavy.ended("h", (at + 1) * 10 * MS)
        if at % 10 == 0:
            calm.started("c", at * 10 * MS, 10 * MS)
            calm.ended("c", (at + 1) * 10 * MS)
    assert calm.part(1_000 * MS, 2) == pytest.approx(0.58, abs=0.1)  # the other uses a core of the two
    assert heavy.part(1_000 * MS, 2) == pytest.approx(0.96, abs=0.06)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.floats(0.5, 60.0),
            st.sampled_from([0.5, 1.0, 2.0]),
            st.integers(1, 3),
            st.lists(st.floats(0, 400), max_size=30),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_every_batch_runs_once_and_no_core_rests(
    cores: int, drawn: list[tuple[str, float, float, int, list[float]]]
) -> None:
    models = [
        Model(f"{name}{at}", batch_ms, share, width) for at, (name, batch_ms, share, width, _) in enumerate(drawn)
    ]
    machine = Machine(cores, models)
    for model, (*_, times_ms) in zip(models, drawn, strict=True):
        for at_ms in times_ms:
            machine.arrive(model, at_ms)
    machine.run(1e6)
    for model, (*_, times_ms) in zip(models, drawn, strict=True):
        assert len(model.waited_ms) == len(times_ms)
        assert model.running == 0
    assert machine.budget.free == cores
