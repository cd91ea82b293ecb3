"""Levers and advice: what each takes from requests, in which order to pull them, and which to leave."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tailcut.common.slo import parse_objectives
from tailcut.manifest import PredictionCache
from tailcut.profiler.attribution.span_table import STAGE_AT, STAGES
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import LEVERS, Advice, advise
from tailcut.profiler.levers.known import PREDICTION_LIFE_S, LeverAssumptions, know
from tailcut.profiler.levers.priors import int8_prior, measured, runtime_prior
from tailcut.profiler.levers.work import (
    End,
    LeverName,
    RequestWork,
    int8_factor,
    pull,
    read_work,
    runtime_factor,
    shorten_queues,
)
from tailcut.profiler.payloads.diversity import read_diversity
from tailcut.profiler.records import ProfiledProcess, RecordedRequest, RecordedSpan, Recording, Stage

_MS = 1_000_000
_COUNT = 400
_RATE = 50.0
ENDS: tuple[End, ...] = ("bound", "best", "worst")


def pilot(
    *, sql_ms: float = 6.0, model_ms: float = 1.0, code_ms: float = 0.2, queries: int = 3, rate: float = _RATE
) -> Recording:
    """Requests that ask a database some times, one after the other, then compute in a thread."""
    draw = np.random.default_rng(0)
    at = np.cumsum(draw.exponential(1e9 / rate, _COUNT)).astype(int).tolist()
    requests = []
    for number, start in enumerate(at):
        sql_ns = int(draw.gamma(4.0, sql_ms / 4.0) * _MS)
        model_ns, code_ns = int(model_ms * _MS), int(code_ms * _MS)
        entered = start + _MS // 10
        spans, now = [], entered + _MS // 10
        ends = now + sql_ns + code_ns + model_ns
        spans.append(RecordedSpan(stage=Stage.FRAMEWORK, label="fastapi", start_ns=entered, end_ns=ends + _MS // 10))
        spans.append(RecordedSpan(stage=Stage.WAIT, label="thread pool", start_ns=entered, end_ns=now, parent=0))
        spans.append(
            RecordedSpan(
                stage=Stage.CODE, label="predict", place="app.py:1", start_ns=now, end_ns=ends, parent=0, thread=1,
                cpu_ns=code_ns + model_ns,
            )
        )  # fmt: skip
        for _ in range(queries):
            spans.append(
                RecordedSpan(
                    stage=Stage.SQL, label="q", start_ns=now, end_ns=now + sql_ns // queries, parent=2, thread=1
                )
            )
            now += sql_ns // queries
        now += code_ns
        if model_ns:
            spans.append(
                RecordedSpan(
                    stage=Stage.MODEL, label="Net", start_ns=now, end_ns=ends, parent=2, thread=1, cpu_ns=model_ns
                )
            )
        requests.append(
            RecordedRequest(
                number=number, intended_ns=start, sent_ns=start, entered_ns=entered, left_ns=ends + _MS // 10,
                done_ns=ends + _MS // 5, status=200, spans=tuple(spans),
            )
        )  # fmt: skip
    return Recording(
        target="app:app", rate=rate, duration_s=_COUNT / rate, requests=tuple(requests), machine={"cores": "1"},
        pilot=ProfiledProcess(threads=40, versions={"torch": "2"}, libraries={"Net": "torch"}),
    )  # fmt: skip


def bodies(distinct: int, count: int = _COUNT) -> list[bytes]:
    return [b'{"id":%d}' % (number * 7919 % distinct) for number in range(count)]


def advice(
    recording: Recording, *, distinct: int = 10, slo: str = "p95=5ms", known: LeverAssumptions | None = None
) -> Advice:
    sent = bodies(distinct)
    diversity = read_diversity(((n / recording.rate, body) for n, body in enumerate(sent)), timed=False)
    known = known or know(recording, sent, diversity, recording.rate)
    found = advise(recording, known=known, slo=parse_objectives(slo), diversity=diversity)
    assert found is not None
    return found


def reasons(found: Advice) -> dict[str, str]:
    return {one.lever: one.reason for one in found.levers}


def work_of(recording: Recording, known: LeverAssumptions | None = None) -> RequestWork:
    return read_work(recording, attribute(recording), known or LeverAssumptions(family="torch"))


def mean_ms(work: RequestWork, *stages: Stage) -> float:
    return float(work.stage_ns[:, [STAGE_AT[stage] for stage in stages]].sum(axis=1).mean()) / _MS


def test_a_requests_stages_add_up_to_its_latency() -> None:
    recording = pilot()
    work = work_of(recording)
    wall_ms = [(one.done_ns - one.intended_ns) / _MS for one in recording.requests]
    np.testing.assert_allclose(work.stage_ns.sum(axis=1) / _MS, wall_ms)
    assert mean_ms(work, Stage.MODEL) == pytest.approx(1.0)
    assert mean_ms(work, Stage.SQL) == pytest.approx(6.0, rel=0.05)
    assert work.cpu_ns[STAGE_AT[Stage.MODEL]] == pytest.approx(1.0 * _MS, rel=0.01)
    assert work.cpu_ns[STAGE_AT[Stage.SQL]] == pytest.approx(0.0, abs=1000), "what waits takes no core"


@pytest.mark.parametrize("lever", LEVERS)
@pytest.mark.parametrize("rate", [_RATE, 140.0])
def test_the_bound_is_never_above_the_range_nor_the_range_upside_down(lever: LeverName, rate: float) -> None:
    recording = pilot(rate=rate, code_ms=4.0)
    numbers = range(_COUNT)
    known = LeverAssumptions(
        family="torch",
        feature_hits=dict.fromkeys(numbers, 0.6),
        prediction_hits={number: number % 3 == 0 for number in numbers},
        cores=2,
    )
    work = work_of(recording, known)
    found = [shorten_queues(work, pull(work, lever, known, end), rate, end) for end in ENDS]
    p95_ms = [one.percentile_ms(0.95) for one in found]
    assert p95_ms[0] <= p95_ms[1] <= p95_ms[2]
    assert found[0].capacity >= found[1].capacity - 1e-9
    if lever != "serving path":  # tailcut's own path may take longer than a pilot's
        assert p95_ms[2] <= work.percentile_ms(0.95)


def test_at_best_nothing_is_left_of_what_a_lever_is_aimed_at() -> None:
    known = LeverAssumptions(family="torch", feature_hits=dict.fromkeys(range(_COUNT), 1.0))
    work = work_of(pilot(), known)
    left = {
        lever: mean_ms(pull(work, lever, known, "bound"), *stages)
        for lever, stages in (
            ("feature cache", (Stage.SQL, Stage.CODE)),
            ("runtime", (Stage.MODEL,)),
            ("serving path", (Stage.DECODE, Stage.FRAMEWORK, Stage.ENCODE)),
        )
    }  # fmt: skip
    assert left == dict.fromkeys(left, pytest.approx(0.0))
    assert mean_ms(pull(work, "INT8", known, "bound"), Stage.MODEL) == pytest.approx(0.25), "four times at the most"


def test_a_factor_that_was_measured_here_has_no_range() -> None:
    known = LeverAssumptions(family="torch", runtime=measured(2.0, "a run of 100 calls"))
    work = work_of(pilot(model_ms=8.0), known)
    assert [mean_ms(pull(work, "runtime", known, end), Stage.MODEL) for end in ENDS] == pytest.approx([4.0, 4.0, 4.0])
    found = {one.lever: one for one in advice(pilot(model_ms=8.0), known=known).levers}["runtime"]
    assert found.basis == ("2 times quicker, measured: a run of 100 calls",)


def test_priors_say_that_they_are_priors() -> None:
    found = advice(pilot(model_ms=4.0))
    basis = {one.lever: one.basis[0] for one in found.levers if one.basis}
    assert basis["runtime"].startswith("prior: 2 times quicker (1.4 to 2.7)")
    assert runtime_prior("jax", 1.0) is None
    assert int8_prior("jax", 1.0) is None
    small = int8_prior("torch", 0.5)
    assert small is not None
    assert small.mid == 1.0


def test_the_capacity_is_what_the_scarcest_resource_allows() -> None:
    """1.2 ms of a core a request; and by the process's own count, where that is more, with what no span covers."""
    assert work_of(pilot()).capacity == pytest.approx(1e3 / 1.3, rel=0.1)
    whole = msgspec.structs.replace(pilot(), pilot=ProfiledProcess(cpu_s=0.004 * _COUNT, libraries={"Net": "torch"}))
    assert work_of(whole).capacity == pytest.approx(250.0)
    assert work_of(whole, LeverAssumptions(cores=4)).capacity == pytest.approx(1000.0)
    assert work_of(whole).limit == "the cores"


def test_what_no_span_covers_goes_at_the_bound_alone() -> None:
    """Nobody knows whether it belongs to what the lever removes; and spans compute no more than the process does."""
    whole = msgspec.structs.replace(pilot(), pilot=ProfiledProcess(cpu_s=0.004 * _COUNT, libraries={"Net": "torch"}))
    known = LeverAssumptions(family="torch", feature_hits=dict.fromkeys(range(_COUNT), 1.0))
    work, rest = work_of(whole, known), STAGE_AT[Stage.UNATTRIBUTED]
    left = {end: pull(work, "feature cache", known, end).cpu_ns[rest] for end in ENDS}
    assert left["bound"] == 0.0 < left["best"] == left["worst"] == work.cpu_ns[rest]
    little = msgspec.structs.replace(pilot(), pilot=ProfiledProcess(cpu_s=0.0005 * _COUNT, libraries={"Net": "torch"}))
    assert work_of(little).capacity == pytest.approx(2000.0)


def test_what_rows_share_in_a_batch_has_a_range() -> None:
    work = work_of(pilot(model_ms=8.0))
    shares = {
        end: pull(work, "batching", LeverAssumptions(family="torch"), end).cpu_ns[STAGE_AT[Stage.MODEL]] for end in ENDS
    }
    assert shares["bound"] == shares["best"] == pytest.approx(0.2 * 8.0 * _MS)
    assert shares["worst"] == pytest.approx(0.5 * 8.0 * _MS)


def test_more_executors_add_event_loops_and_no_cores() -> None:
    loop_ns, cpu_ns = np.zeros((2, len(STAGES)))
    loop_ns[STAGE_AT[Stage.MODEL]], cpu_ns[STAGE_AT[Stage.MODEL]] = 4.0 * _MS, 5.0 * _MS
    work = replace(work_of(pilot(), LeverAssumptions(cores=2)), loop_ns=loop_ns, cpu_ns=cpu_ns)
    assert work.capacity == pytest.approx(250.0)
    assert work.limit == "the event loop's thread"
    assert replace(work, processes=2).capacity == pytest.approx(400.0), "two cores, 5 ms each"


def test_the_interpreter_runs_one_thread_at_a_time() -> None:
    """Code that computes 10 ms in threads of one process: 100 requests/s, whatever the cores; more processes add it."""
    busy = msgspec.structs.replace(
        pilot(queries=0, sql_ms=0.001, model_ms=0.0, code_ms=10.0, rate=90.0), machine={"cores": "8"}
    )
    work = work_of(busy, LeverAssumptions(cores=8))
    assert work.capacity == pytest.approx(100.0, rel=0.02)
    assert work.limit.startswith("the interpreter")
    found = {one.lever: one for one in advice(busy, slo="p95=5ms", distinct=100_000).levers}["more executors"]
    assert found.worth
    assert found.capacity is not None
    assert found.capacity > 350
    model = msgspec.structs.replace(pilot(queries=0, sql_ms=0.001, model_ms=10.0, code_ms=0.0), machine={"cores": "8"})
    assert work_of(model, LeverAssumptions(cores=8)).capacity == pytest.approx(800.0, rel=0.05), (
        "a model lets others compute"
    )


def test_waits_for_what_holds_no_core_shrink_with_what_holds_it() -> None:
    """A pool of connections that a request holds while it fetches: half the fetches, less than half the wait."""
    recording = pilot(sql_ms=12.0, model_ms=0.0, queries=2)
    waiting = []
    for one in recording.requests:
        moments = {name: getattr(one, name) - 6 * _MS for name in ("intended_ns", "sent_ns", "entered_ns")}
        spans = tuple(
            msgspec.structs.replace(span, start_ns=span.start_ns - 6 * _MS)
            if span.stage in (Stage.WAIT, Stage.FRAMEWORK)
            else span
            for span in one.spans
        )
        waiting.append(msgspec.structs.replace(one, spans=spans, **moments))
    work = work_of(msgspec.structs.replace(recording, requests=tuple(waiting)))
    after = shorten_queues(work, pull(work, "concurrent I/O", LeverAssumptions(), "best"), _RATE, "best")
    assert 0.0 < mean_ms(after, Stage.WAIT) < 0.4 * mean_ms(work, Stage.WAIT)


def test_waits_shrink_with_the_utilisation_and_at_best_vanish() -> None:
    recording = pilot(sql_ms=0.01, model_ms=8.0, rate=100.0)
    waiting = []
    for one in recording.requests:
        spans = tuple(
            msgspec.structs.replace(span, start_ns=span.start_ns - 20 * _MS)
            if span.stage in (Stage.WAIT, Stage.FRAMEWORK)
            else span
            for span in one.spans
        )
        moments = {name: getattr(one, name) - 20 * _MS for name in ("intended_ns", "sent_ns", "entered_ns")}
        waiting.append(msgspec.structs.replace(one, spans=spans, **moments))
    recording = msgspec.structs.replace(
        recording, requests=tuple(waiting), pilot=ProfiledProcess(loop="asyncio", cpu_s=3.4)
    )
    known = LeverAssumptions(family="torch", runtime=measured(2.0))
    work = work_of(recording, known)
    assert mean_ms(work, Stage.ACCEPT, Stage.WAIT) > 15
    left = {
        end: mean_ms(shorten_queues(work, pull(work, "runtime", known, end), 100.0, end), Stage.ACCEPT, Stage.WAIT)
        for end in ENDS
    }
    assert left["bound"] == 0.0
    assert 0.0 < left["best"] < 0.6 * left["worst"]
    assert left["worst"] == pytest.approx(mean_ms(work, Stage.ACCEPT, Stage.WAIT))
    untouched = shorten_queues(work, pull(work, "preprocessing", known, "bound"), 100.0, "bound")
    assert untouched.percentile_ms(0.95) == work.percentile_ms(0.95), "who removes nothing shortens no queue"


def test_fetches_at_once_take_as_long_as_the_longest() -> None:
    work = work_of(pilot(queries=3))
    after = pull(work, "concurrent I/O", LeverAssumptions(), "best")
    assert mean_ms(after, Stage.SQL) == pytest.approx(mean_ms(work, Stage.SQL) / 3, rel=0.01)
    assert reasons(advice(pilot(queries=1)))["concurrent I/O"] == "not worth it: no request fetches more than once"


def test_fetches_that_already_run_at_once_win_nothing_more() -> None:
    """Each owns but half of the time in which both run; and rows that are read of one query are no fetches."""

    def overlapping(one: RecordedRequest) -> RecordedRequest:
        start, end = one.spans[2].start_ns, one.spans[2].end_ns
        both = [
            RecordedSpan(stage=Stage.HTTP, label=f"GET /{name}", start_ns=start, end_ns=end, parent=0) for name in "ab"
        ]
        return msgspec.structs.replace(one, spans=(*one.spans[:2], *both))

    def reading(one: RecordedRequest) -> RecordedRequest:
        rows = [msgspec.structs.replace(span, more=place > 0) for place, span in enumerate(one.spans[3:6])]
        return msgspec.structs.replace(one, spans=(*one.spans[:3], *rows, *one.spans[6:]))

    for change in (overlapping, reading):
        recording = pilot(sql_ms=12.0)
        recording = msgspec.structs.replace(recording, requests=tuple(map(change, recording.requests)))
        work = work_of(recording)
        after = pull(work, "concurrent I/O", LeverAssumptions(), "bound")
        np.testing.assert_allclose(after.stage_ns, work.stage_ns, atol=1.0)
        assert not {one.lever: one for one in advice(recording).levers}["concurrent I/O"].worth


def test_the_largest_bound_comes_first_and_then_what_is_left() -> None:
    known = LeverAssumptions(
        family="torch",
        libraries={"Net": "torch"},
        feature_hits=dict.fromkeys(range(_COUNT), 1.0),
        prediction_hits={0: False},
    )
    found = advice(pilot(sql_ms=12.0, model_ms=2.0), slo="p95=6ms", known=known)
    order = [one.lever for one in found.levers if one.order]
    assert order[:2] == ["feature cache", "runtime"]
    assert reasons(found)["prediction cache"].startswith("not worth it: 0.0% of the requests repeat")
    assert reasons(found)["more executors"] == "not worth it: there is one core"
    afters = [one.after_p95_ms for one in found.levers if one.order]
    assert afters == sorted(afters, reverse=True)
    assert any(line.startswith("in this order: feature cache") for line in found.summary)


def test_an_slo_is_said_to_be_missed_only_where_the_bound_misses_it() -> None:
    """The ends of a range may both be wrong; what no lever can remove is a fact."""
    within, beyond = (advice(pilot(sql_ms=12.0), slo=slo, distinct=390).summary for slo in ("p95=15ms", "p95=0.2ms"))
    assert any("`tailcut ladder` measures" in line for line in within)
    (line,) = [line for line in beyond if line.startswith("the SLO is not met by all of them")]
    assert "and tailcut's serving path together: no less than " in line, "every deployment has it"
    bound_ms = float(line.split()[-2])
    slow = advice(pilot(sql_ms=12.0, code_ms=5.0), slo="p95=0.2ms", distinct=390).summary
    assert line in slow, "a deployment may need none of the pilot's own code"
    found = advice(pilot(sql_ms=12.0), slo=f"p95={1.01 * bound_ms}ms", distinct=390)
    last = max(found.levers, key=lambda one: one.order)
    assert last.after_p95_ms is not None
    assert last.after_p95_ms[0] > 1.01 * bound_ms, "or this test asks nothing"
    assert not any("is not met by all of them" in line for line in found.summary)


def test_answers_are_taken_to_live_as_long_as_they_do_by_default() -> None:
    """With 30 s the prediction cache came first of flight_risk, where the ladder measured 10 ms and 4 with features."""
    assert float(PredictionCache().ttl_s) == PREDICTION_LIFE_S


def test_nothing_repeats() -> None:
    found = reasons(advice(pilot(), distinct=100_000))
    assert found["feature cache"].startswith("not worth it: 0.0% of the requests repeat, fewer than 5%")
    assert found["prediction cache"].startswith("not worth it: 0.0%")


def test_the_slo_is_met_already() -> None:
    found = advice(pilot(), slo="p95=200ms")
    assert not any(one.worth for one in found.levers)
    assert found.summary[0].startswith("the SLO is met:")
    assert reasons(found)["runtime"].startswith("not needed: the SLO is met")


def test_what_is_not_known_is_no_lever_to_pull() -> None:
    """Of a library without a figure nobody knows what leaving it wins; without payloads nobody knows what repeats."""
    known = LeverAssumptions(family="jax", libraries={"Net": "jax"})
    found = advice(pilot(model_ms=40.0), known=known)
    for lever in ("runtime", "INT8", "feature cache", "prediction cache"):
        one = next(one for one in found.levers if one.lever == lever)
        assert one.reason.startswith("not known: ")
        assert one.order == 0
        assert one.p95_ms is None, "no range, and above all not 0 ms"
        assert one.bound_p95_ms < found.p95_ms - 4.0, "at most all that it is aimed at"


@pytest.mark.parametrize(("share", "is_known"), [(0.02, True), (0.5, False)])
def test_a_model_among_others_of_which_nothing_is_known(share: float, is_known: bool) -> None:
    work = replace(work_of(pilot()), models_ns={"Net": 1.0 - share, "Flax": share})
    known = LeverAssumptions(libraries={"Net": "torch", "Flax": "jax"})
    assert (runtime_factor(work, known) is not None) is is_known
    assert (int8_factor(work, known) is not None) is is_known


def test_a_model_that_is_a_trifle() -> None:
    known = LeverAssumptions(
        family="torch", libraries={"Net": "torch"}, feature_hits={0: 0.0}, prediction_hits={0: False}
    )
    trifle, large = (reasons(advice(pilot(sql_ms=sql_ms, model_ms=4.0), known=known)) for sql_ms in (90.0, 6.0))
    assert trifle["batching"].startswith("for the capacity, at most ")
    for lever in ("runtime", "INT8"):
        assert trifle[lever].startswith("not worth it: the model is 2.")
        assert "the model is" not in large[lever]


def test_requests_that_are_batches_already() -> None:
    sent = [b'{"rows":[%s]}' % b",".join(b"%d" % (50 * n + k) for k in range(50)) for n in range(_COUNT)]
    recording = pilot()
    diversity = read_diversity(((float(n), body) for n, body in enumerate(sent)), timed=False)
    found = advise(recording, known=know(recording, sent, diversity, _RATE), diversity=diversity)
    assert found is not None
    assert reasons(found)["batching"] == "not worth it: requests are already batches: 50 rows each"


def test_rows_with_columns_that_change_are_no_batches() -> None:
    """Forty of three hundred names each: few of them, over and over; of things to ask about there are always others."""
    draw, payloads = np.random.default_rng(0), []
    for names in (300, 100_000):
        chosen = [draw.choice(names, 40, replace=False).tolist() for _ in range(200)]
        sent = [msgspec.json.encode({"by": {f"name_{one}": draw.random() for one in some}}) for some in chosen]
        payloads.append(read_diversity(((float(n), body) for n, body in enumerate(sent)), timed=False))
    recording = pilot()
    columns, rows = (advise(recording, known=know(recording, [], None, _RATE), diversity=one) for one in payloads)
    assert columns is not None
    assert rows is not None
    assert "already batches" not in reasons(columns)["batching"]
    assert reasons(rows)["batching"] == "not worth it: requests are already batches: 40 rows each"


def test_nothing_was_answered() -> None:
    assert advise(Recording(target="", rate=1.0, duration_s=1.0, requests=()), known=LeverAssumptions()) is None


def test_who_needs_more_capacity_gets_what_adds_it_and_nobody_else() -> None:
    """Code that holds the event loop for 5 ms: two processes sustain twice as much."""
    orders = []
    for rate in (20.0, 150.0):
        recording = pilot(queries=0, sql_ms=0.001, model_ms=0.0, code_ms=5.0, rate=rate)
        on_loop = [
            msgspec.structs.replace(one, spans=tuple(msgspec.structs.replace(span, thread=0) for span in one.spans))
            for one in recording.requests
        ]
        recording = msgspec.structs.replace(
            recording, requests=tuple(on_loop), machine={"cores": "2"}, pilot=ProfiledProcess(loop="asyncio")
        )
        found = advice(recording, slo="p95=1000ms" if rate < 50 else "p95=4ms", distinct=100_000)
        orders.append([one.lever for one in found.levers if one.order])
    assert orders[0] == []
    assert "more executors" in orders[1]


@pytest.mark.parametrize(("others_s", "doubted"), [(0.3, False), (9.0, True)])
def test_what_other_processes_used_is_said_and_doubted_where_it_is_much(others_s: float, doubted: bool) -> None:
    recording = msgspec.structs.replace(
        pilot(),
        machine={"cores": "2"},
        pilot=ProfiledProcess(window_s=8.0, others_s=others_s, libraries={"Net": "torch"}),
    )
    found = advice(recording)
    assert any(line.startswith(f"other processes used {others_s / 16:.0%}") for line in found.notes)
    assert bool(found.doubts) is doubted


def test_own_code_that_takes_much_is_named_before_the_levers() -> None:
    found = advice(pilot(sql_ms=1.0, code_ms=9.0), distinct=100_000)
    place = next(n for n, line in enumerate(found.summary) if "is your own code and takes 9 ms of a request" in line)
    assert place < next(n for n, line in enumerate(found.summary) if line.startswith(("in this order", "none of")))


def test_advice_can_be_written_as_json() -> None:
    """Figures of NumPy cannot."""
    assert msgspec.json.decode(msgspec.json.encode(advice(pilot())), type=Advice).levers


def test_more_processes_may_shorten_waits_at_best() -> None:
    recording = msgspec.structs.replace(pilot(), machine={"cores": "2"})
    found = {one.lever: one for one in advice(recording).levers}["more executors"]
    assert found.p95_ms is not None
    assert found.bound_p95_ms < found.p95_ms[0] < found.p95_ms[1]
