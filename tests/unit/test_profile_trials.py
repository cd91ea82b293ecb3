"""What profiling costs: paired rounds, their median, and the interval that it lies in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from tailcut.core.profiling.records import Latencies, Overhead
from tailcut.core.statistics import summarise
from tailcut.load import LoadPlan, Samples
from tailcut.load.summary import RunFacts
from tailcut.profile import trials
from tailcut.report.profile_words import overhead_words

ROUNDS = 9
WITHOUT, WITH = (
    LoadPlan(url=f"http://127.0.0.1:{port}/", rate=50.0, duration_s=2.0, numbered=header)
    for port, header in ((1, ""), (2, "x-tailcut-profile"))
)


class Machine:
    """Answers a plan with latencies of its own; every round is another one, and one of them is disturbed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, added: float, disturbed: int = -1) -> None:
        self.plans: list[LoadPlan] = []
        self.begun: list[int] = []
        self._added = added
        self._disturbed = disturbed
        monkeypatch.setattr(trials, "_run", self.run)

    def run(self, load: LoadPlan) -> Any:
        self.plans.append(load)
        round_ = max(load.seed - 100, 0)
        ms = (10.0 + round_) * (1.0 + self._added if load.numbered else 1.0)
        if load.numbered and round_ == self._disturbed:
            ms *= 20
        found = summarise([ms + number / 100 for number in range(100)])
        return SimpleNamespace(
            latency_ms=found, errors={}, requests=100, answered=100, cpu_s_per_1000=2.3 if load.numbered else 2.0
        )

    def measured(self) -> Overhead:
        return trials.measure_overhead(
            WITHOUT, WITH, rounds=ROUNDS, begin=lambda: self.begun.append(len(self.plans)), say=lambda text: None
        )


def test_both_runs_of_a_round_have_the_same_arrivals_and_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, added=0.08)
    machine.measured()
    # First what the other has had before, so that both are equally warm.
    assert not machine.plans[0].numbered
    rounds = list(zip(machine.plans[1::2], machine.plans[2::2], strict=True))
    assert [one.seed for one, _ in rounds] == [other.seed for _, other in rounds] == list(range(100, 100 + ROUNDS))
    assert [bool(one.numbered) for one, _ in rounds] == [number % 2 == 1 for number in range(ROUNDS)]
    assert len(machine.begun) == ROUNDS


def test_the_share_is_the_rounds_median_and_one_disturbed_round_does_not_move_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = Machine(monkeypatch, added=0.08).measured()
    spoilt = Machine(monkeypatch, added=0.08, disturbed=4).measured()
    for found in (plain, spoilt):
        assert found.p95_share == pytest.approx(0.08, abs=0.01)
        assert found.p95_range is not None
        assert found.p95_range[0] <= found.p95_share <= found.p95_range[1] < 0.09


def test_the_words_hold_the_interval_and_the_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    words = overhead_words(Machine(monkeypatch, added=0.08).measured(), "pilot")
    assert words.startswith("Profiling cost +7.")
    assert "95 % confidence) of the p95" in words
    assert "+0.30 ms of CPU a request" in words
    assert f"the median of {ROUNDS} rounds" in words


def answering(monkeypatch: pytest.MonkeyPatch, *statuses: int) -> None:
    """Every request is answered after 4 ms, with these statuses in turn; -3 is no answer."""

    def measured(load: LoadPlan) -> tuple[Samples, RunFacts]:
        count = int((load.rate or 1.0) * load.duration_s)
        at_ns = np.arange(count, dtype=np.int64) * int(load.duration_s / count * 1e9)
        status = np.resize(np.array(statuses, dtype=np.int16), count)
        samples = Samples(
            intended_ns=at_ns, sent_ns=at_ns, done_ns=at_ns + 4_000_000, status=status,
            cache=np.zeros(count, np.int8), cache_names=("",), stages_ms={}, measured_from_ns=0,
        )  # fmt: skip
        return samples, RunFacts(window_s=load.duration_s)

    monkeypatch.setattr(trials, "measure", measured)


@pytest.mark.parametrize("statuses", [(200,), (200, 200, 200, 200, 500), (200, 404), (302,)])
def test_whoever_replies_bears_the_rate(monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...]) -> None:
    """Whatever it says."""
    answering(monkeypatch, *statuses)
    assert trials.bears(WITHOUT)


def test_whoever_stays_silent_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 200, 200, -3)
    assert not trials.bears(WITHOUT)


def test_what_an_application_still_has_of_one_trial_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for 2,000 requests a second it does 100, one after the other, and all of them, however late."""
    now_s = free_s = 0.0

    def measured(load: LoadPlan, **_: object) -> tuple[Samples, RunFacts]:
        nonlocal now_s, free_s
        sent_s = now_s + np.arange(0.0, load.warmup_s + load.duration_s, 1 / (load.rate or 1.0))
        done_s = []
        for each in sent_s:
            free_s = max(free_s, each) + 0.01
            done_s.append(free_s)
        samples = Samples(
            intended_ns=(sent_s * 1e9).astype(np.int64), sent_ns=(sent_s * 1e9).astype(np.int64),
            done_ns=(np.array(done_s) * 1e9).astype(np.int64), status=np.full(sent_s.size, 200, np.int16),
            cache=np.zeros(sent_s.size, np.int8), cache_names=("",), stages_ms={},
            measured_from_ns=int((now_s + load.warmup_s) * 1e9),
        )  # fmt: skip
        now_s += load.warmup_s + load.duration_s
        return samples, RunFacts(window_s=load.duration_s)

    monkeypatch.setattr("tailcut.load.capacity.measure", measured)
    error = trials.too_fast("shop:app", msgspec.structs.replace(WITHOUT, rate=2000.0))
    bears = float(error.message.rpartition("bears about ")[2].split()[0])
    assert bears == pytest.approx(100, rel=0.15)


def test_redirects_have_a_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, 302)
    found = trials.measure_overhead(WITHOUT, WITH, rounds=1, begin=lambda: None, say=lambda text: None)
    assert found.rounds[0][0].p95_ms == pytest.approx(4.0)


def test_a_recording_of_before_is_told_without_interval() -> None:
    runs = (Latencies(requests=300, p50_ms=1.0, p95_ms=2.0), Latencies(requests=300, p50_ms=1.1, p95_ms=2.1))
    words = overhead_words(Overhead(rate=5.0, rounds=(runs,), p50_share=0.1, p95_share=0.05), "pilot")
    assert "+5.0 % of the p95 and +10.0 % of the median at 5 requests/s:" in words
