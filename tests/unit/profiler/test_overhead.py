"""What profiling costs: paired rounds on several processes, all requests together, and the interval."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from tailcut.common.statistics import percentile
from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, Samples
from tailcut.load.summary import RunFacts
from tailcut.profiler import overhead
from tailcut.profiler.overhead_comparison import NEAR_P50, NEAR_P95, Round, longer, undisturbed
from tailcut.profiler.overhead_records import Latencies, Overhead
from tailcut.profiler.recording.trace_sampling import is_traced
from tailcut.report.profile.words import overhead_words, signed

pytestmark = pytest.mark.slow

ROUNDS, PAIRS = 9, 3
LOAD = LoadPlan(url="http://127.0.0.1:1/", rate=50.0, duration_s=2.0)


def rounds_of(*quotients: float, rounds: int = 3, requests: int = 200, noise: float = 0.0) -> list[list[Round]]:
    """A pair of processes per quotient; the same requests on both sides, each round has others."""
    rng = np.random.default_rng(1)
    found = []
    for quotient in quotients:
        plain_ms = [rng.lognormal(1.0, 0.5, requests) for _ in range(rounds)]
        found.append([Round(ms, ms * quotient * rng.lognormal(0.0, noise, requests)) for ms in plain_ms])
    return found


def test_what_is_longer_by_the_same_factor_is_known_exactly() -> None:
    """Rounds differ among each other, but not in that."""
    for near in (NEAR_P50, NEAR_P95):
        found = longer(rounds_of(1.08, 1.08, 1.08), near)
        assert (found.share, *found.between) == pytest.approx((0.08, 0.08, 0.08))


def test_the_interval_holds_the_luck_of_processes() -> None:
    """However many requests each of them had."""
    low, high = longer(rounds_of(1.0, 1.1, 1.2, rounds=9), NEAR_P95).between
    assert low < 0.04
    assert high > 0.16


def test_more_rounds_make_the_interval_narrower() -> None:
    widths = []
    for rounds in (3, 27):
        low, high = longer(rounds_of(1.1, 1.1, 1.1, rounds=rounds, noise=0.5), NEAR_P95).between
        widths.append(high - low)
    assert widths[1] < 0.5 * widths[0]


def test_a_round_that_was_not_alone_is_left_out() -> None:
    """Whichever side it hit; and not where half of them were such."""
    usual = rounds_of(1.08, 1.08, 1.08)
    for side in (0, 1):
        spoilt = [list(had) for had in usual]
        spoilt[1][2] = Round(*(ms * (20.0 if place == side else 1.0) for place, ms in enumerate(spoilt[1][2][:2])))
        kept = undisturbed(spoilt)
        assert [len(had) for had in kept] == [3, 2, 3]
        assert longer(kept, NEAR_P95).share == pytest.approx(0.08)
    uneven = [
        [Round(one.plain_ms * (9.0 if place else 1.0), one.seen_ms) for place, one in enumerate(had)] for had in usual
    ]
    assert [len(had) for had in undisturbed(uneven)] == [3, 3, 3]


def test_stalls_of_the_machine_do_not_decide() -> None:
    """They make some requests of either side slow, whichever; a p95 of all would be one of theirs."""
    usual = rounds_of(1.08, 1.08, 1.08, noise=0.1)
    near, of_all = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        stalled = [
            [
                Round(*(ms + rng.exponential(15.0, ms.size) * (rng.random(ms.size) < 0.03) for ms in one[:2]))
                for one in had
            ]
            for had in usual
        ]
        plain_ms, seen_ms = (np.concatenate([one[side] for had in stalled for one in had]) for side in (0, 1))
        near.append(longer(stalled, NEAR_P95, resamples=1).share)
        of_all.append(percentile(seen_ms, 0.95) / percentile(plain_ms, 0.95) - 1.0)
    assert np.mean(near) == pytest.approx(0.08, abs=0.035)
    assert np.std(near) < 0.25 * np.std(of_all)


def test_a_few_that_are_traced_count_as_many_as_they_are() -> None:
    """An eighth is a third longer, the others 4 %; of those that are slow somewhat more than an eighth are traced."""
    rng = np.random.default_rng(3)
    rounds: list[list[Round]] = [[]]
    for _ in range(9):
        plain_ms, traced = rng.lognormal(1.0, 0.5, 4_000), rng.random(4_000) < 1 / 8
        rounds[0].append(Round(plain_ms, plain_ms * np.where(traced, 1.3, 1.04), traced))
    assert longer(rounds, NEAR_P50, resamples=1).share == pytest.approx(0.04 + 0.26 / 8, abs=0.005)
    seen_ms, plain_ms = (np.concatenate([one[side] for one in rounds[0]]) for side in (1, 0))
    of_p95 = percentile(seen_ms, 0.95) / percentile(plain_ms, 0.95) - 1.0
    assert longer(rounds, NEAR_P95, resamples=1).share == pytest.approx(of_p95, abs=0.01)


class Machine:
    """Answers a load with latencies of its own; every round is another one, and one of them is disturbed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, added: float = 0.08, disturbed: int = -1) -> None:
        self.runs: list[LoadPlan] = []
        self.happened: list[str] = []
        self.one_in = 1
        self.traced_added = added
        self.statuses: dict[str, tuple[int, ...]] = {"": (200,), "x": (200,)}
        self._added = added
        self._disturbed = disturbed
        monkeypatch.setattr(overhead, "measure", self.measure)

    def measure(self, load: LoadPlan) -> tuple[Samples, RunFacts]:
        self.runs.append(load)
        self.happened.append("profiled" if load.numbered else "plain")
        round_ = max(load.seed - 100, 0)
        times = (10.0 + round_) * (1.0 + self._added if load.numbered else 1.0)
        if load.numbered and round_ == self._disturbed:
            times *= 20
        at_ns = np.arange(100, dtype=np.int64) * 10_000_000
        took_ns = ((times + np.arange(100) / 100) * 1e6).astype(np.int64)
        if load.numbered:
            own = is_traced(np.arange(100), self.one_in)
            took_ns[own] = took_ns[own] * (1.0 + self.traced_added) / (1.0 + self._added)
        samples = Samples(
            intended_ns=at_ns, sent_ns=at_ns, done_ns=at_ns + took_ns,
            status=np.resize(np.array(self.statuses[load.numbered], np.int16), 100),
            cache=np.zeros(100, np.int8), cache_names=("",), stages_ms={}, measured_from_ns=0,
        )  # fmt: skip
        return samples, RunFacts(window_s=1.0, cpu_s=0.23 if load.numbered else 0.2)

    @contextmanager
    def start(self, number: int) -> Iterator[overhead.Sides]:
        self.happened.append(f"start {number}")
        profiled = msgspec.structs.replace(LOAD, numbered="x")
        yield overhead.Sides(LOAD, profiled, lambda: self.happened.append("forget"), self.one_in)
        self.happened.append("stop")

    def measured(self, rounds: int = ROUNDS, pairs: int = PAIRS) -> Overhead:
        return overhead.measure_overhead(self.start, pairs=pairs, rounds=rounds, say=lambda text: None)


def test_processes_take_turns_and_each_pair_has_the_same_history(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    found = machine.measured(rounds=4, pairs=2)
    warm = ["plain", "profiled"]
    swapped = ["forget", "profiled", "plain"]
    straight = ["plain", "forget", "profiled"]
    assert machine.happened == [
        "start 0", *warm, *straight, *swapped, "stop",
        "start 1", *warm, *straight, *swapped, "stop",
    ]  # fmt: skip
    assert [one.seed for one in machine.runs] == [0, 0, 100, 100, 101, 101, 0, 0, 102, 102, 103, 103]
    assert (found.processes, len(found.rounds)) == (2, 4)


@pytest.mark.parametrize(("rounds", "start_s", "pairs"), [(9, 1.0, 3), (2, 1.0, 2), (9, 20.0, 1), (81, 1.0, 9)])
def test_who_starts_slowly_is_started_less_often(rounds: int, start_s: float, pairs: int) -> None:
    assert overhead.pairs_for(rounds, start_s) == pairs


def test_one_disturbed_round_does_not_move_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Machine(monkeypatch).measured()
    spoilt = Machine(monkeypatch, disturbed=4).measured()
    for found in (plain, spoilt):
        assert found.p95_share == pytest.approx(0.08, abs=0.01)
        assert found.p95_range is not None
        assert found.p95_range[0] <= found.p95_share <= found.p95_range[1] < 0.09
    assert (plain.note, spoilt.note) == ("", "1 of them left out because other processes disturbed them")


def test_only_what_was_answered_on_both_sides_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect is an answer; half of the profiled ones failed."""
    machine = Machine(monkeypatch)
    machine.statuses = {"": (302,), "x": (200, 500)}
    found = machine.measured()
    assert {one.requests for runs in found.rounds for one in runs} == {50}
    assert found.p95_share == pytest.approx(0.08, abs=0.01)


def test_what_was_traced_is_told_apart_from_what_all_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traced ones are what the profile shows; the others are slower only by what they wait for these."""
    machine = Machine(monkeypatch, added=0.03)
    machine.one_in, machine.traced_added = 5, 0.2
    found = machine.measured()
    assert {one.requests for runs in found.rounds for one in runs} == {int(is_traced(np.arange(100), 5).sum())}
    assert found.everyone is not None
    assert found.everyone.one_in == 5
    for share, of_all in ((found.p50_share, found.everyone.p50), (found.p95_share, found.everyone.p95)):
        assert share == pytest.approx(0.2, abs=0.01)
        assert 0.05 < of_all.share < 0.1
        assert of_all.between[0] <= of_all.share <= of_all.between[1]
    assert found.note == "", "900 requests are compared, a fifth of them traced"
    words = overhead_words(found, "pilot")
    assert words.startswith(f"Profiling cost {signed(found.everyone.p95.share)} (")
    assert "near the median of all requests at" in words
    assert f"The traced ones, one in 5, took {signed(found.p95_share)} (" in words


def test_where_all_are_traced_nothing_is_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Machine(monkeypatch).measured()
    assert found.everyone is None
    assert "of all requests" not in overhead_words(found, "pilot")


@pytest.mark.parametrize(
    ("statuses", "says"),
    [((200, -3), "50 of 100 requests got no answer within 1 s with profiling"), ((500,), "in round 1 no request")],
)
def test_who_does_not_answer_has_no_overhead(
    monkeypatch: pytest.MonkeyPatch, statuses: tuple[int, ...], says: str
) -> None:
    machine = Machine(monkeypatch)
    machine.statuses["x"] = statuses
    with pytest.raises(ProfileError, match=says) as caught:
        machine.measured()
    assert caught.value.hint
    assert machine.happened.count("start 0") == 1


def test_the_words_hold_the_interval_and_the_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    words = overhead_words(Machine(monkeypatch).measured(), "pilot")
    assert words.startswith("Profiling cost +")
    assert "95 % confidence) near the p95" in words
    assert "+0.30 ms of CPU a request" in words
    assert f"{ROUNDS} rounds, each the same requests without and with it, on 3 processes each in turn." in words


def test_a_recording_of_before_is_told_without_interval() -> None:
    runs = (Latencies(requests=300, p50_ms=1.0, p95_ms=2.0), Latencies(requests=300, p50_ms=1.1, p95_ms=2.1))
    words = overhead_words(Overhead(rate=5.0, rounds=(runs,), p50_share=0.1, p95_share=0.05), "pilot")
    assert "+5.0 % near the p95 and +10.0 % near the median at 5 requests/s:" in words
    assert "on one process each" in words
