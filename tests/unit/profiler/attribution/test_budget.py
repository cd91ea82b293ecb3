"""A latency budget from a recording: stages, culprits, queries, perception, the SLO's verdict."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.budget import LEAST_NEAR, make_budget, near_percentile
from tailcut.profiler.attribution.calls import normalise_address, normalise_command, normalise_query
from tailcut.profiler.records import (
    Moment,
    ProfiledProcess,
    RecordedRequest,
    RecordedSpan,
    Recording,
    StackSample,
    Stage,
)
from tailcut.report.ladder.perception import perceived, perception
from tailcut.report.profile.document import bottleneck, culprits_table

_MS = 1_000_000


def request(number: int, sql_ms: float, code_ms: float, status: int = 200) -> RecordedRequest:
    """One that queries twice, alike but for a value, then computes."""
    start = number * 10_000 * _MS
    middle, end = start + int(sql_ms * _MS), start + int((sql_ms + code_ms) * _MS)
    spans = (
        RecordedSpan(stage=Stage.CODE, label="predict", place="app.py:9", start_ns=start, end_ns=end),
        *(
            RecordedSpan(
                stage=Stage.SQL, label=f"SELECT * FROM t\nWHERE id = {number + place}", place="app.py:12", parent=0,
                start_ns=start + (middle - start) * place // 2, end_ns=start + (middle - start) * (place + 1) // 2,
            )
            for place in (0, 1)
        ),
    )  # fmt: skip
    return RecordedRequest(
        number=number, intended_ns=start, sent_ns=start, entered_ns=start, left_ns=end, done_ns=end,
        status=status, spans=spans,
    )  # fmt: skip


def recording(*requests: RecordedRequest, **more: object) -> Recording:
    return Recording(target="app:app", rate=10.0, duration_s=1.0, requests=requests, **more)  # type: ignore[arg-type]


def test_shares_are_of_the_requests_near_the_p95() -> None:
    """Not of the mean: 90 quick requests that compute, 10 slow ones that wait for the database."""
    quick = [request(number, 1.0, 9.0) for number in range(900)]
    slow = [request(number, 90.0, 10.0) for number in range(900, 1000)]
    budget = make_budget(recording(*quick, *slow))
    assert budget.near == 41
    assert budget.bottleneck is not None
    assert budget.bottleneck.stage == Stage.SQL
    assert budget.bottleneck.near_share == pytest.approx(0.9)
    assert budget.bottleneck.p50_ms == pytest.approx(1.0)
    assert sum(line.near_ms for line in budget.lines) == pytest.approx(budget.near_ms)
    top = budget.culprits[0]
    assert (top.label, top.place) == ("SELECT * FROM t WHERE id = ?", "app.py:12")
    assert top.near_ms == pytest.approx(90.0)
    assert [(call.text, call.calls, call.per_request) for call in budget.calls] == [(top.label, 2000, 2.0)]
    assert budget.calls[0].total_ms == pytest.approx(900 + 9000)


def test_code_that_stacks_say_nothing_of_is_named() -> None:
    """Where it takes a tenth of the time, and only where anybody looked."""
    much, little = ([request(number, sql_ms, 1.0) for number in range(30)] for sql_ms in (1.0, 99.0))
    elsewhere = StackSample(stack=("other (app.py:40)",), weight_ns=_MS, place="", code=("other", "app.py:40"))

    def said(requests: list[RecordedRequest], *samples: StackSample) -> list[str]:
        return [note for note in make_budget(recording(*requests, samples=samples)).notes if "stack samples" in note]

    assert said(much, elsewhere) == ["predict (app.py:9): too few stack samples to tell which functions take its time"]
    assert said(little, elsewhere) == []
    assert said(much) == []


def test_functions_of_code_are_told_by_samples() -> None:
    """Only by those in the code's own time: a stack in which a query ran says nothing of the code."""
    requests = [request(number, 10.0, 10.0) for number in range(30)]
    samples = [
        StackSample(
            stack=("predict (app.py:9)", *inner), weight_ns=looks * 20 * _MS,
            place=f"{name} (app.py:{line})", code=code,
        )
        for name, line, looks, code, inner in (
            ("query", 12, 50, ("", ""), ("execute (driver.py:3)",)),
            ("slow", 20, 5, SPAN, ()),
            ("slow", 20, 1, SPAN, ("lower (library.py:7)",)),
            ("quick", 30, 2, SPAN, ()),
            ("other", 40, 90, ("other", "app.py:40"), ()),
        )
    ]  # fmt: skip
    budget = make_budget(recording(*requests, samples=tuple(samples), sample_interval_ns=20 * _MS))
    code = budget.culprits_of(Stage.CODE)[0]
    assert [(one.function, one.samples) for one in code.functions] == [
        ("slow (app.py:20)", 6),
        ("quick (app.py:30)", 2),
    ]
    assert code.functions[0].share == pytest.approx(0.75)


def awaiting(pilot: ProfiledProcess, held_ms: float, **more: object) -> Recording:
    """An asynchronous handler of 32 ms each, whose callbacks held the loop for some of them."""
    requests, moments = [], []
    for number in range(40):
        start = number * 100 * _MS
        end = start + 32 * _MS
        spans = (RecordedSpan(stage=Stage.CODE, label="predict", place="app.py:9", start_ns=start, end_ns=end),)
        requests.append(
            RecordedRequest(
                number=number, intended_ns=start, sent_ns=start, entered_ns=start, left_ns=end, done_ns=end,
                status=200, spans=spans,
            )
        )  # fmt: skip
        held = start + int(held_ms * _MS)
        moments.append(Moment(stage=Stage.LOOP, start_ns=start, end_ns=held, label="predict", request=number))
    samples = (
        StackSample(stack=("burn (app.py:1)",), weight_ns=80 * _MS, place="burn (app.py:1)", code=SPAN),
    )  # fmt: skip
    return recording(*requests, moments=tuple(moments), samples=samples, pilot=pilot, **more)


SPAN = ("predict", "app.py:9")


def test_an_await_of_what_is_not_hooked_is_no_functions_fault() -> None:
    """Two milliseconds ran, thirty were awaited: samples see the two only."""
    budget = make_budget(awaiting(ProfiledProcess(loop="asyncio", watched=True, cpu_s=40 * 0.0025), held_ms=2.0))
    first, second = budget.culprits_of(Stage.CODE)
    assert (first.awaits, first.near_ms, first.functions) == (True, pytest.approx(29.5), ())
    assert (second.awaits, second.near_ms) == (False, pytest.approx(2.5))
    assert second.functions[0].function == "burn (app.py:1)"
    said = bottleneck(budget)
    assert said.startswith(
        "92 % of the p95 request is waiting for something that is not hooked, which predict at app.py:9"
    )
    assert "burn" not in said
    table = culprits_table(budget)
    assert any("predict at app.py:9 awaits what is not hooked" in row[-1] for row in table.rows)


@pytest.mark.parametrize(
    ("pilot", "held_ms"),
    [
        (ProfiledProcess(loop="asyncio", watched=True, cpu_s=40 * 0.002), 32.0),
        (ProfiledProcess(loop="asyncio", watched=True, cpu_s=40 * 0.031), 0.0),
        (ProfiledProcess(loop="asyncio", watched=True), 0.0),
    ],
    ids=[
        "it blocks the loop",
        "it computes in short callbacks",
        "nobody told the CPU time",
    ],
)
def test_code_that_runs_awaits_nothing(pilot: ProfiledProcess, held_ms: float) -> None:
    """Nor is it said where that cannot be known."""
    budget = make_budget(awaiting(pilot, held_ms, sample_interval_ns=20 * _MS))
    assert [one.awaits for one in budget.culprits_of(Stage.CODE)] == [False]
    assert "is your own code: predict at app.py:9" in bottleneck(budget)
    assert "100 % of the samples (4) are in burn (app.py:1)" in bottleneck(budget)


def test_functions_that_samples_saw_for_a_moment_only_speak_for_nothing() -> None:
    """All CPU time is the handler's, and still they saw it for a sixteenth of its time: its name is all there is."""
    seen = awaiting(
        ProfiledProcess(loop="asyncio", watched=True, cpu_s=40 * 0.032),
        32.0,
        sample_interval_ns=20 * _MS,
        sampled_s=1.0,
    )
    (code,) = make_budget(seen).culprits_of(Stage.CODE)
    assert (code.awaits, code.functions) == (False, ())
    assert "Inside it" not in bottleneck(make_budget(seen))


def in_framework(framework_ms: float, stage: Stage = Stage.FRAMEWORK) -> Recording:
    """Requests of 10 ms; half of the framework's samples are in a function of the user's that it called unasked."""
    requests = []
    for number in range(40):
        start = number * 100 * _MS
        inner, end = start + int(framework_ms * _MS), start + 10 * _MS
        spans = (
            RecordedSpan(stage=stage, label="fastapi", start_ns=start, end_ns=end),
            RecordedSpan(stage=Stage.MODEL, label="Net", place="app.py:12", parent=0, start_ns=inner, end_ns=end),
        )
        requests.append(
            RecordedRequest(
                number=number, intended_ns=start, sent_ns=start, entered_ns=start, left_ns=end, done_ns=end,
                status=200, spans=spans,
            )
        )  # fmt: skip
    samples = tuple(
        StackSample(stack=(), weight_ns=looks * 20 * _MS, place=place, code=("fastapi", ""))
        for looks, place in ((12, "Mine.simple_response (app.py:7)"), (11, ""), (1, "seldom (app.py:20)"))
    )
    return recording(*requests, samples=samples, sample_interval_ns=20 * _MS)


def test_where_a_framework_takes_much_the_users_functions_in_it_are_named() -> None:
    """Of all its samples, and only where they are worth it."""
    much, little = make_budget(in_framework(8.0)), make_budget(in_framework(1.5))
    (framework,) = much.culprits_of(Stage.FRAMEWORK)
    assert [(one.function, one.share) for one in framework.functions] == [("Mine.simple_response (app.py:7)", 0.5)]
    assert "Inside it, 50 % of the samples (12) are in Mine.simple_response (app.py:7)" in bottleneck(much)
    assert any("Mine.simple_response" in row[-1] for row in culprits_table(much).rows)
    assert little.culprits_of(Stage.FRAMEWORK)[0].functions == ()


def test_of_a_framework_without_a_hook_the_users_functions_are_named_in_what_is_unattributed() -> None:
    budget = make_budget(in_framework(8.0, Stage.UNATTRIBUTED))
    (framework,) = budget.culprits_of(Stage.UNATTRIBUTED)
    assert [one.function for one in framework.functions] == ["Mine.simple_response (app.py:7)"]
    assert any("Mine.simple_response" in row[-1] for row in culprits_table(budget).rows)


def test_what_held_the_loop_is_named() -> None:
    """By the callback and its place, for the requests that waited for it."""
    late = RecordedRequest(
        number=0, intended_ns=0, sent_ns=0, entered_ns=20 * _MS, left_ns=21 * _MS, done_ns=21 * _MS, status=200
    )
    held = Moment(stage=Stage.LOOP, start_ns=0, end_ns=20 * _MS, label="hook", place="app.py:3")
    budget = make_budget(recording(late, moments=(held,)))
    assert budget.culprits[0].stage == Stage.ACCEPT
    assert budget.culprits[0].functions[0].function == "hook (app.py:3)"
    assert next(line.near_share for line in budget.lines if line.stage is Stage.UNATTRIBUTED) == pytest.approx(1 / 21)
    assert "rest on only 1 requests" in budget.notes[0]


def test_failed_requests_are_later_than_any_limit() -> None:
    """They count for the SLO, and for nothing else."""
    good = [request(number, 1.0, 1.0) for number in range(90)]
    bad = [request(number, 1.0, 1.0, status=500) for number in range(90, 100)]
    budget = make_budget(recording(*good, *bad), parse_objectives("p50=10ms,p95=10ms,errors=1%"))
    assert [finding.met for finding in budget.findings] == [True, False, False]
    assert (budget.answered, budget.failed) == (90, 10)


def test_nothing_answered() -> None:
    """A budget without figures, not a division by zero."""
    budget = make_budget(recording(request(0, 1, 1, status=503)), parse_objectives("p95=10ms"))
    assert (budget.lines, budget.culprits, budget.bottleneck, budget.wall) == ((), (), None, None)
    assert not budget.findings[0].met


def test_near_takes_twenty_where_there_are_few() -> None:
    """Those before the rank, and none of the slowest; all where there are not twenty."""
    wall = np.arange(100.0)[::-1]
    assert sorted(wall[near_percentile(wall)]) == list(range(77, 97))
    assert len(near_percentile(np.arange(7.0))) == 7
    assert len(near_percentile(np.arange(10_000.0))) == 401 > LEAST_NEAR
    assert len(near_percentile(np.array([]))) == 0


def test_perception() -> None:
    """100 ms instant, 300 ms noticed, 1 s focus lost."""
    assert [perceived(ms) for ms in (99, 101, 301, 1001)] == ["instant", "noticed", "slow", "focus lost"]
    shares = perception(np.array([1.0, 100.0, 200.0, 2000.0]))
    assert shares == {"instant": 0.5, "noticed": 0.25, "slow": 0.0, "focus lost": 0.25}
    assert perception(np.array([])) == {}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT *  FROM t -- why\n WHERE a = 1 AND b='it''s'", "SELECT * FROM t WHERE a = ? AND b=?"),
        ("select a1 from t2 where id IN (1, 2,3)", "select a1 from t2 where id IN (?…)"),
        ("insert into t values (1,'a'), (2,'b'), (3,'c');", "insert into t values (?…), …"),
        ("select $1::int, %(now)s::bigint, :later, ?", "select ?::int, ?::bigint, ?, ?"),
        ("select `A 1`, x.y2 from /* all */ x", "select `A 1`, x.y2 from x"),
        ('select "t"."id", "n" from "t" where "order" = $1', 'select "t"."id", "n" from "t" where "order" = ?'),
    ],
)
def test_queries_that_differ_in_values_are_one(text: str, shown: str) -> None:
    """Names, quoted or with digits, stay."""
    assert normalise_query(text) == shown


SECRET = "bob"
_SECRETIVE = (
    'select * from t where mail = "bob@example.com"',
    'select * from t where name = "bob" and x = 1',
    'insert into t ("name") values ("bob", "bob")',
    "select * from t where a = 'it\\'s bob' and b = 'bob'",
    "select * from t where path = 'C:\\' and b = 'bob'",
    f"insert into t values ('a', '{'x' * 1950}bob{'x' * 1000}",
    "select 'it''s bob",
    'select concat("bob", x) from t',
    "select $$bob$$, $a$ it is bob $a$, $b$ bob",
    "select 1 /* for bob",
    "select * from t where a = `bob smith's",
)


@pytest.mark.parametrize("text", _SECRETIVE)
def test_no_value_of_a_query_is_told(text: str) -> None:
    """Whichever way a database takes quotes, and where the text was cut off."""
    assert SECRET in text
    assert SECRET not in normalise_query(text)
    assert normalise_query(text).startswith(("select", "insert"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://h:80/users/123/orders?x=1", "GET http://h:80/users/{}/orders"),
        ("POST https://bob:pw@h/v1/users/alice@example.com/new", "POST https://h/v1/users/{}/new"),
        ("GET https://api.example.com/bot123456:AAF-x/getMe", "GET https://api.example.com/{}/getMe"),
        ("GET http://[::1]:80/deadbeefcafe/feed.json", "GET http://[::1]:80/{}/feed.json"),
        ("gRPC /pkg.v1.Service/Method", "gRPC /pkg.v1.Service/Method"),
    ],
)
def test_addresses_without_who_asks_and_about_whom(text: str, shown: str) -> None:
    assert normalise_address(text) == shown


def test_commands_without_keys_and_counts() -> None:
    """As the hooks write them: what is asked of a cache, not about whom."""
    assert [normalise_command(text) for text in ("GET", "MGET (3 arguments)", "SET bob 1")] == ["GET", "MGET", "SET"]
    assert normalise_command("pipeline of 3 (GET, SET bob 1)") == "pipeline (GET, SET)"
