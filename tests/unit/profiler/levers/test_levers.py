"""Levers and advice: what each does to requests, what is foretold, which to pull and which to leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from tests.unit.profiler import profile_sample

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.forecast.cached_requests import HANDED_OVER, INGRESS, OWN_PATH
from tailcut.profiler.forecast.calibration import calibrate
from tailcut.profiler.forecast.forecast import capacity, forecast
from tailcut.profiler.forecast.network_latency import queued_ns, ways_ns
from tailcut.profiler.forecast.phases import Job, Part
from tailcut.profiler.forecast.state import Known
from tailcut.profiler.forecast.work import read_work
from tailcut.profiler.levers.advice import Advice, advise
from tailcut.profiler.levers.assumptions import know
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.levers.priors import TENSORS_SHARE, THREAD_SHARE, int8_prior, measured, runtime_prior
from tailcut.profiler.overhead_records import Overhead
from tailcut.profiler.payloads.diversity import read_diversity
from tailcut.profiler.records import Pilot, Recording, Request, Span, Stage

pytestmark = pytest.mark.slow

few_requests = profile_sample.few_requests(800, 300)


_MS = 1_000_000
_COUNT = 400
_RATE = 50.0


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
        spans.append(Span(stage=Stage.FRAMEWORK, label="fastapi", start_ns=entered, end_ns=ends + _MS // 10))
        spans.append(Span(stage=Stage.WAIT, label="thread pool", start_ns=entered, end_ns=now, parent=0))
        spans.append(
            Span(
                stage=Stage.CODE, label="predict", place="app.py:1", start_ns=now, end_ns=ends, parent=0, thread=1,
                cpu_ns=code_ns + model_ns,
            )
        )  # fmt: skip
        for _ in range(queries):
            spans.append(
                Span(stage=Stage.SQL, label="q", start_ns=now, end_ns=now + sql_ns // queries, parent=2, thread=1)
            )
            now += sql_ns // queries
        now += code_ns
        if model_ns:
            spans.append(
                Span(stage=Stage.MODEL, label="Net", start_ns=now, end_ns=ends, parent=2, thread=1, cpu_ns=model_ns)
            )
        requests.append(
            Request(
                number=number, intended_ns=start, sent_ns=start, entered_ns=entered, left_ns=ends + _MS // 10,
                done_ns=ends + _MS // 5, status=200, spans=tuple(spans),
            )
        )  # fmt: skip
    return Recording(
        target="app:app", rate=rate, duration_s=_COUNT / rate, requests=tuple(requests), machine={"cores": "1"},
        pilot=Pilot(threads=40, versions={"torch": "2"}, libraries={"Net": "torch"}),
    )  # fmt: skip


def bodies(distinct: int, count: int = _COUNT) -> list[bytes]:
    return [b'{"id":%d}' % (number * 7919 % distinct) for number in range(count)]


def advice(recording: Recording, *, distinct: int = 10, slo: str = "p95=5ms", known: Known | None = None) -> Advice:
    sent = bodies(distinct)
    diversity = read_diversity(((n / recording.rate, body) for n, body in enumerate(sent)), timed=False)
    known = know(recording, sent, diversity, recording.rate, known)
    found = advise(recording, known=known, slo=parse_objectives(slo), diversity=diversity)
    assert found is not None
    return found


def reasons(found: Advice) -> dict[str, str]:
    return {one.lever: one.reason for one in found.levers}


def test_work_is_told_from_waiting() -> None:
    """CPU of the model and the code, waiting for the database; what a thread pool cost is no work."""
    work = read_work(recording := pilot(), attribute(recording))
    assert work.cpu_of(Stage.MODEL) == pytest.approx(1.0 * _MS)
    assert work.wait_of(Stage.SQL) == pytest.approx(6.0 * _MS, rel=0.05)
    assert work.cpu_of(Stage.SQL) == pytest.approx(0.0, abs=1000)
    assert work.mean_ns(Stage.CODE) == pytest.approx(0.2 * _MS, rel=0.05)


def test_the_way_is_as_long_whoever_is_late_on_it() -> None:
    """On one machine a request that is taken late waits for the server; what is played again has that time, too."""
    draw = np.random.default_rng(1)
    early = [int(draw.exponential(_MS)) for _ in range(_COUNT)]
    late = [
        msgspec.structs.replace(one, intended_ns=one.intended_ns - ns, sent_ns=one.sent_ns - ns)
        for one, ns in zip(pilot().requests, early, strict=True)
    ]
    ways = []
    for loop in ("", "asyncio"):
        recording = msgspec.structs.replace(pilot(), requests=tuple(late), pilot=Pilot(threads=40, loop=loop))
        ways.append(read_work(recording, attribute(recording)).mean_ns(Stage.NETWORK))
    assert ways[0] == pytest.approx(ways[1])
    assert ways[0] > 0.4 * _MS


def test_a_drivers_cpu_is_found_inside_the_code_around_it() -> None:
    """Where the code's CPU time holds more than its own span lasted, its queries had the rest."""
    recording = pilot(model_ms=0.0)
    requests = tuple(
        replace_cpu(one, cpu_ns=1_400_000) for one in recording.requests
    )  # 0.2 ms of code, 1.2 of the driver
    changed = Recording(target="", rate=_RATE, duration_s=1, requests=requests, machine={"cores": "1"})
    work = read_work(changed, attribute(changed))
    assert work.cpu_of(Stage.SQL) == pytest.approx(1.2 * _MS, rel=0.05)


def replace_cpu(request: Request, cpu_ns: int) -> Request:
    spans = tuple(
        msgspec.structs.replace(span, cpu_ns=cpu_ns) if span.stage == Stage.CODE else span for span in request.spans
    )
    return msgspec.structs.replace(request, spans=spans)


def test_the_simulation_repeats_what_was_measured() -> None:
    """At the rate of the recording, median and p95."""
    recording = pilot()
    _, calibration = calibrate(begin(read_work(recording, attribute(recording)), Known()))
    assert calibration.simulated_p50_ms == pytest.approx(calibration.measured_p50_ms, rel=0.05)
    assert abs(calibration.p95_error) < 0.1
    assert calibration.wait_scale == pytest.approx(1.0, abs=0.1)


def test_profiling_is_taken_out() -> None:
    """A tenth of the median, of CPU that is not the model's."""
    recording = pilot(code_ms=3.0)
    cost = Overhead(rate=1.0, rounds=(), p50_share=0.1, p95_share=0.1)
    plain, less = (
        read_work(one, attribute(one)) for one in (recording, msgspec.structs.replace(recording, overhead=cost))
    )
    assert less.cpu_ns == pytest.approx(plain.cpu_ns - np.median(plain.latency_ns) * 0.1 / 1.1, rel=0.01)
    assert less.cpu_of(Stage.MODEL) == plain.cpu_of(Stage.MODEL)


def test_removing_a_stage_wins_more_where_the_queue_is_long() -> None:
    """Half a millisecond of CPU at nine tenths of the capacity is worth more than half a millisecond."""
    recording = pilot(sql_ms=0.001, model_ms=1.0, code_ms=0.2)
    state = begin(read_work(recording, attribute(recording)), Known(family="torch", runtime=measured(2.0)))
    slow, quick = state, pull(state, "runtime")
    busy, idle = 0.9 / slow.work.cpu_ns * 1e9, 0.02 / slow.work.cpu_ns * 1e9
    won_busy = forecast(slow, busy).p95_ms - forecast(quick, busy).p95_ms
    won_idle = forecast(slow, idle).p95_ms - forecast(quick, idle).p95_ms
    assert won_idle == pytest.approx(0.5, abs=0.1)
    assert won_busy > 4 * won_idle
    assert capacity(quick, 10.0) > 1.4 * capacity(slow, 10.0)


@pytest.mark.parametrize(
    "lever",
    [
        "feature cache",
        "concurrent I/O",
        "runtime",
        "INT8",
        "batching",
        "prediction cache",
        "serving path",
        "more executors",
    ],
)
def test_a_bound_is_no_worse_than_the_estimate(lever: str) -> None:
    """What a lever is aimed at takes no time: nothing that was estimated can be better."""
    recording = pilot(model_ms=4.0)
    hits = {number: 0.7 for number in range(_COUNT)}
    known = Known(family="torch", feature_hits=hits, prediction_hits={n: n % 2 == 0 for n in hits})
    known = replace(known, cores=2 if lever == "more executors" else 1)
    state = begin(read_work(recording, attribute(recording)), known)
    before = forecast(state, _RATE).p95_ms
    estimate = forecast(pull(state, lever), _RATE).p95_ms  # type: ignore[arg-type]
    bound = forecast(pull(state, lever, bound=True), _RATE).p95_ms  # type: ignore[arg-type]
    assert bound <= estimate * 1.01
    assert estimate <= before * 1.01


def test_more_executors_have_no_more_cores_than_the_machine() -> None:
    """Ten milliseconds of CPU a request: two cores bear 200 of them, however many processes there are."""
    recording = pilot(sql_ms=0.001, model_ms=5.0, code_ms=5.0)
    state = begin(read_work(recording, attribute(recording)), Known(cores=2))
    for bound in (False, True):
        more = pull(state, "more executors", bound=bound)
        assert 150.0 < capacity(more, 1000.0) <= 200.0 * 1.01
        assert forecast(more, 260.0).p95_ms > 200.0


@pytest.mark.whole
def test_at_best_a_feature_cache_has_the_features_that_code_computes() -> None:
    """20 ms of Python beside 1 ms of SQL: what it is of them cannot be told, but it may be all."""
    found = {one.lever: one for one in advice(pilot(sql_ms=1.0, code_ms=20.0, rate=20.0)).levers}["feature cache"]
    assert found.bound_p95_ms < 5.0 < 20.0 < found.p95_ms
    assert "your own code is 8" in found.reason
    nothing = advice(pilot(queries=0, sql_ms=0.001, code_ms=20.0, rate=20.0)).levers
    found = {one.lever: one for one in nothing}["feature cache"]
    assert found.reason.startswith("not worth it: no request fetches from a database, a cache or an address; your own")
    assert found.bound_p95_ms < 5.0


def test_own_code_that_takes_much_is_named_before_the_levers() -> None:
    slow = advice(pilot(sql_ms=1.0, code_ms=20.0, rate=20.0))
    (said,) = [one for one in slow.summary if "is your own code" in one]
    assert said.startswith("predict (app.py:1) is your own code and takes 20 ms of a request near the percentile, 8")
    assert slow.summary.index(said) < next(
        number for number, one in enumerate(slow.summary) if one.startswith(("in this order", "none of these"))
    )
    quick = advice(pilot(sql_ms=10.0, code_ms=0.2))
    assert not [one for one in quick.summary if "is your own code" in one]
    content = advice(pilot(sql_ms=1.0, code_ms=20.0, rate=20.0), slo="p95=100ms")
    assert not [one for one in content.summary if "is your own code" in one]


def test_at_best_is_never_worse_than_as_it_is() -> None:
    """Nor than the estimate; and of a lever that changes nothing it is the same, to the last digit."""
    found = advice(pilot(model_ms=0.0, code_ms=3.0))
    for one in found.levers:
        assert one.bound_p95_ms <= min(one.p95_ms, found.now.p95_ms)
        assert one.bound_capacity >= max(one.capacity, found.now.capacity or 0.0)
    runtime = {one.lever: one for one in found.levers}["runtime"]
    assert (runtime.bound_p95_ms, runtime.bound_capacity) == (found.now.p95_ms, found.now.capacity)


def test_a_capacity_is_never_a_rate_that_misses_the_limit() -> None:
    """One thread that waits for 50 ms bears 20 a second; by its CPU alone it would be 100,000."""
    recording = pilot(sql_ms=50.0, model_ms=0.0, code_ms=0.01)
    recording = msgspec.structs.replace(recording, pilot=Pilot(threads=1))
    found = capacity(begin(read_work(recording, attribute(recording)), Known()), 300.0)
    assert 5.0 < found < 20.0


def test_what_is_known_goes_through_a_file() -> None:
    """benchmarks.profile_ladder keeps its small runs so."""
    known = Known(feature_hits={3: 0.5}, fetches={3: ((1.0, 2.0),)}, int8=measured(1.5, "a run"), database_cores=1)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=Known) == known


def test_fetches_at_once_wait_as_long_as_the_longest() -> None:
    """Three of a third each: a third remains."""
    recording = pilot(queries=3)
    state = begin(read_work(recording, attribute(recording)), Known())
    after = pull(state, "concurrent I/O")
    assert after.work.wait_of(Stage.SQL) == pytest.approx(state.work.wait_of(Stage.SQL) / 3, rel=0.01)


def test_other_statements_are_those_of_the_same_request() -> None:
    """What was timed for a request stays with it: who asks about many rows is slow in all of them."""
    recording = pilot()
    found = read_work(recording, attribute(recording))
    timed = {number: ((0.1 * _MS, number * 1000.0),) * 2 for number in range(0, _COUNT, 2)}
    state = pull(begin(found, Known(fetches=timed, fetches_share=0.5)), "serving path")
    for number, before, after in zip(found.numbers.tolist(), found.jobs, state.work.jobs, strict=True):
        asked = [(part.cpu_ns, part.wait_ns) for part in after if part.stage == Stage.SQL]
        recorded = [(part.cpu_ns, part.wait_ns) for part in before if part.stage == Stage.SQL]
        assert asked == (list(timed[number]) if number in timed else recorded)
        assert not any(part.beside_ns for part in after if part.stage == Stage.SQL)  # who waits for it takes no core
    assert state.service.database_share == 0.5


def test_what_the_database_computes_has_its_cores() -> None:
    """Half of a wait on the way: the other half is what its one core can be busy with."""
    recording = pilot(sql_ms=6.0, model_ms=0.0)
    work = read_work(recording, attribute(recording))
    whole, half = (begin(work, Known(database_cores=1, database_share=share)) for share in (1.0, 0.5))
    assert capacity(whole, 100.0) == pytest.approx(1e3 / 6.0, rel=0.15)
    assert capacity(half, 100.0) == pytest.approx(2e3 / 6.0, rel=0.15)
    assert forecast(half, 10.0).p50_ms == pytest.approx(forecast(whole, 10.0).p50_ms, rel=0.05)


def test_the_database_first_then_the_model() -> None:
    """Greedy, by what remains; and the SLO is met by the first."""
    found = advice(pilot(sql_ms=12.0, model_ms=2.0), slo="p95=6ms", known=Known(prediction_hits={0: False}))
    order = [one.lever for one in found.levers if one.order]
    assert order[0] == "feature cache"
    assert "runtime" in order
    assert reasons(found)["prediction cache"].startswith("not worth it: 0.0% of the requests repeat")
    assert reasons(found)["more executors"] == "not worth it: there is one core"
    afters = [one.after_p95_ms for one in found.levers if one.order]
    assert all(one is not None for one in afters)
    assert any(line.startswith("in this order: feature cache") for line in found.summary)
    assert any(line.startswith("the SLO should be met after") for line in found.summary)


def test_nothing_repeats() -> None:
    """Caches are not worth it."""
    found = reasons(advice(pilot(), distinct=100_000))
    assert found["feature cache"].startswith("not worth it: 0.0% of the requests repeat, fewer than 5%")
    assert found["prediction cache"].startswith("not worth it: 0.0%")


def test_the_slo_is_met_already() -> None:
    """Nothing needs doing, and every lever says so."""
    found = advice(pilot(), slo="p95=200ms")
    assert not any(one.worth for one in found.levers)
    assert found.summary[0].startswith("the SLO is met:")
    assert reasons(found)["runtime"].startswith("not needed: the SLO is met")


@pytest.mark.whole
def test_a_model_that_is_a_trifle() -> None:
    """Below 3 % of the time, though INT8 and another runtime make it twice as quick; and one of a quarter."""
    known = Known(feature_hits={0: 0.0}, prediction_hits={0: False})
    trifle, large = (reasons(advice(pilot(sql_ms=sql_ms, model_ms=4.0), known=known)) for sql_ms in (90.0, 6.0))
    for lever in ("runtime", "INT8", "batching"):
        assert trifle[lever].startswith("not worth it: the model is 2.")
        assert "the model is" not in large[lever]


def test_requests_that_are_batches_already() -> None:
    """Fifty rows each: the batcher has nothing to win."""
    sent = [b'{"rows":[%s]}' % b",".join(b"%d" % (50 * n + k) for k in range(50)) for n in range(_COUNT)]
    recording = pilot()
    diversity = read_diversity(((float(n), body) for n, body in enumerate(sent)), timed=False)
    found = advise(recording, known=know(recording, sent, diversity, _RATE), diversity=diversity)
    assert found is not None
    assert reasons(found)["batching"] == "not worth it: requests are already batches: 50 rows each"


@pytest.mark.whole
def test_rows_with_columns_that_change_are_no_batches() -> None:
    """Forty of three hundred names each: few of them, over and over; of things to ask about there are always others."""
    draw, payloads = np.random.default_rng(0), []
    for names in (300, 100_000):
        chosen = [draw.choice(names, 40, replace=False).tolist() for _ in range(200)]
        sent = [msgspec.json.encode({"by": {f"name_{one}": draw.random() for one in some}}) for some in chosen]
        payloads.append(read_diversity(((float(n), body) for n, body in enumerate(sent)), timed=False))
    recording = pilot()
    columns, rows = (advise(recording, known=Known(), diversity=one) for one in payloads)
    assert columns is not None
    assert rows is not None
    assert "already batches" not in reasons(columns)["batching"]
    assert reasons(rows)["batching"] == "not worth it: requests are already batches: 40 rows each"


def test_nothing_was_answered() -> None:
    """No advice rather than a wrong one."""
    recording = Recording(target="", rate=1.0, duration_s=1.0, requests=())
    assert advise(recording, known=Known()) is None


def test_priors_say_that_they_are_priors() -> None:
    """And what was measured says that."""
    found = advice(pilot(model_ms=4.0))
    basis = {one.lever: one.basis[0] for one in found.levers}
    assert basis["runtime"].startswith("prior: 2 times quicker (1.4 to 2.7)")
    known = advice(pilot(model_ms=4.0), known=Known(runtime=measured(3.0, "a run of 100 calls")))
    assert {one.lever: one.basis[0] for one in known.levers}["runtime"].startswith("3 times quicker, measured")
    assert runtime_prior("onnxruntime", 1.0) is None
    assert int8_prior(0.5).mid == 1.0


@pytest.mark.whole
def test_what_the_path_takes_here_goes_before_what_it_takes_elsewhere() -> None:
    """A recording that measured it says so, and the serving path is estimated with it."""
    plain = pilot()
    recording = msgspec.structs.replace(plain, pilot=Pilot(path_ns=0.5 * _MS))
    elsewhere, here = (advise(one, known=know(one, [], None, _RATE)) for one in (plain, recording))
    said = {one.lever: one for one in here.levers}["serving path"]
    prior = {one.lever: one for one in elsewhere.levers}["serving path"]
    assert said.basis == ("0.50 ms of a core a request in tailcut's path, measured: at 50 requests/s",)
    assert prior.basis[0].startswith("prior: 0.15 ms of a core a request in tailcut's path (0.13 to 0.52)")
    assert said.p95_ms > prior.p95_ms + 0.2


def test_the_way_to_tailcut_is_the_one_that_was_seen_here() -> None:
    """And not the pilot's, whose HTTP server reads a request before the application is called."""
    recording = pilot()
    work = read_work(recording, attribute(recording))
    seen_ns = tuple(np.linspace(0.1, 0.5, 100) * _MS)
    plain, here = (pull(begin(work, Known(path_waits_ns=one)), "serving path").work for one in ((), seen_ns))

    def ways_ms(jobs: Sequence[Job]) -> list[float]:
        return [sum(part.wait_ns for part in job if part.stage is Stage.NETWORK) / _MS for job in jobs]

    assert ways_ms(plain.jobs) == ways_ms(work.jobs)
    drawn = ways_ms(here.jobs)
    assert np.quantile(drawn, (0.05, 0.5, 0.95)) == pytest.approx([0.12, 0.3, 0.48], rel=0.02)
    assert max(drawn) == pytest.approx(0.48, rel=0.02), "what stalls the machine is no way"
    assert drawn != sorted(drawn), "no request has it because of what it asks for"
    bound = pull(begin(work, Known(path_waits_ns=seen_ns)), "serving path", bound=True).work
    assert ways_ms(bound.jobs) == drawn


def test_a_way_on_which_much_was_sent_stays_as_it_was_recorded() -> None:
    jobs = [(Part(Stage.NETWORK, -1, 0.0, wait_ms * _MS, False),) for wait_ms in (2.0, 2.4, 2.6)]
    assert max(ways_ns(jobs, (0.5 * _MS, 0.5 * _MS))) == 0.5 * _MS
    assert ways_ns(jobs, (0.1 * _MS, 0.1 * _MS)) == [2.0 * _MS, 2.4 * _MS, 2.6 * _MS]
    assert ways_ns([], (0.5 * _MS,)) == []


def test_who_comes_while_another_is_answered_waits() -> None:
    assert queued_ns([0.0, 1.0, 1.5, 9.0], 2.0).tolist() == [0.0, 1.0, 2.5, 0.0]
    assert queued_ns([], 2.0).tolist() == []


def test_of_what_an_entity_cache_misses_tensors_that_are_known_need_no_model() -> None:
    work = read_work(pilot(model_ms=3.0), attribute(pilot(model_ms=3.0)))
    numbers = work.numbers.tolist()
    entity, tensor = dict.fromkeys(numbers[:200], True), dict.fromkeys(numbers[200:300], True)
    path = measured(500_000.0)
    known = Known(prediction_hits=entity, tensor_hits=tensor, path=path)
    jobs = pull(pull(begin(work, known), "serving path"), "prediction cache").work.jobs

    def model_ms(part: slice) -> float:
        return sum(one.cpu_ns for job in jobs[part] for one in job if one.stage is Stage.MODEL) / 1e6

    def handed_over(part: slice) -> int:
        return sum(one.name == HANDED_OVER for job in jobs[part] for one in job)

    def looked_up_ms(part: slice) -> float:
        of_path = sum(one.cpu_ns for job in jobs[part] for one in job if one.name == OWN_PATH) / 1e6
        return of_path - 0.5 * len(jobs[part])

    hit, known_tensors, missed = slice(0, 200), slice(200, 300), slice(300, 400)
    assert model_ms(hit) == model_ms(known_tensors) == 0.0
    assert model_ms(missed) == pytest.approx(300.0, rel=0.05)
    assert (handed_over(known_tensors), handed_over(missed)) == (0, 100)
    # A look-up is paid where there is a model to leave out, whether it finds something or not.
    assert looked_up_ms(hit) == pytest.approx(0.0)
    assert looked_up_ms(known_tensors) == pytest.approx(100 * 0.5 * TENSORS_SHARE)
    assert looked_up_ms(missed) == pytest.approx(100 * 0.5 * TENSORS_SHARE)


@pytest.mark.parametrize("bound", [False, True])
def test_a_feature_cache_leaves_the_look_up_of_tensors_alone(bound: bool) -> None:
    work = read_work(pilot(), attribute(pilot()))
    numbers = work.numbers.tolist()
    everything = Known(feature_hits=dict.fromkeys(numbers, 1.0), tensor_hits=dict.fromkeys(numbers, True))
    features_first = pull(pull(begin(work, everything), "feature cache", bound=bound), "prediction cache")
    tensors_first = pull(pull(begin(work, everything), "prediction cache"), "feature cache", bound=bound)
    one, other = features_first.work.cpu_ns, tensors_first.work.cpu_ns
    assert one == pytest.approx(other)


def test_a_feature_cache_leaves_the_batchs_way_to_its_executor_to_batching() -> None:
    """Whichever is pulled first, tailcut's path or the cache: only a batcher has the model on the event loop."""
    work = read_work(pilot(model_ms=0.5), attribute(pilot(model_ms=0.5)))
    known = Known(feature_hits=dict.fromkeys(work.numbers.tolist(), 1.0), path=measured(300_000.0))
    for order in (("serving path", "feature cache"), ("feature cache", "serving path")):
        state = begin(work, known)
        for lever in order:
            state = pull(state, lever)  # type: ignore[arg-type]
        handed = [part for job in state.work.jobs for part in job if part.name == HANDED_OVER]
        assert len(handed) == _COUNT
        assert handed[0].cpu_ns + handed[0].wait_ns == pytest.approx(300_000.0 * THREAD_SHARE)
        inline = pull(state, "batching")
        assert not [part for job in inline.work.jobs for part in job if part.name == HANDED_OVER]
        assert forecast(inline, _RATE).p95_ms < forecast(state, _RATE).p95_ms - 0.15


def test_without_a_tensor_cache_a_request_that_is_not_known_is_as_it_was() -> None:
    state = begin(read_work(pilot(), attribute(pilot())), Known(prediction_hits={}))
    assert pull(state, "prediction cache").work.jobs == state.work.jobs


def test_what_hits_leave_over_comes_seldom_and_takes_more_of_a_core() -> None:
    """By the power of the rate that was measured, as far as it is believed; what hits go through too, as before."""
    work = read_work(pilot(), attribute(pilot()))
    numbers = work.numbers.tolist()
    hits = {number: number % 3 != 0 for number in numbers}
    known = Known(prediction_hits=hits, path_slope=0.3)
    before, after = (
        pull(begin(work, one), "prediction cache").work.jobs for one in (replace(known, path_slope=0.0), known)
    )
    for number, job, other in zip(numbers, before, after, strict=True):
        for part, now in zip(job, other, strict=True):
            colder = 1.0 if hits[number] or part.stage in INGRESS else 2.0**0.3
            assert now.cpu_ns == pytest.approx(part.cpu_ns * colder)
            assert now.wait_ns == part.wait_ns
    assert any(part.stage is Stage.MODEL and part.cpu_ns for job in after for part in job)


@pytest.mark.whole
def test_a_feature_cache_is_not_told_to_fetch_little_where_queries_take_most() -> None:
    """Little repeats, so that it wins little; large code is the reason only where it is more than what is fetched."""
    fetching, computing = (
        reasons(advice(pilot(sql_ms=sql_ms, code_ms=code_ms), distinct=_COUNT - 30))
        for sql_ms, code_ms in ((6.0, 4.0), (1.0, 9.0))
    )
    assert "fetches are a small part" not in fetching["feature cache"]
    assert "fetches are a small part" in computing["feature cache"]
