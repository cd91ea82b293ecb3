"""How a hook's time is divided among what it calls."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tailcut.profiler.deployments.hook_steps import divided
from tailcut.profiler.records import Recording, Request, Sample, Span, Stage

LABELS = {"preprocess": "serving:prepare"}
HOOK = ("preprocess prepare", "serving.py:3")


def recording(*requests: tuple[Span, ...], samples: tuple[Sample, ...] = ()) -> Recording:
    made = (Request(number=n, intended_ns=0, sent_ns=0, done_ns=1000, spans=spans) for n, spans in enumerate(requests))
    return Recording(target="deployment", rate=1.0, duration_s=1.0, requests=tuple(made), samples=samples)


def span(stage: Stage, label: str, start: int, end: int, parent: int = -1, place: str = "") -> Span:
    return Span(stage=stage, label=label, place=place, start_ns=start, end_ns=end, parent=parent)


def served(*lengths: int) -> Recording:
    """Each request with a hook, and the model's run after it."""
    return recording(
        *(
            (span(Stage.CODE, "serving:prepare", 0, length), span(Stage.MODEL, "onnx", length, length + 7))
            for length in lengths
        )
    )


def hook(start: int, end: int, parent: int = -1) -> Span:
    return span(Stage.CODE, HOOK[0], start, end, parent, HOOK[1])


def test_parts_take_their_share_of_the_hook() -> None:
    traced = recording(
        (
            span(Stage.FRAMEWORK, "tailcut", 0, 120),
            hook(10, 110, 0),
            span(Stage.MODEL, "Words", 20, 70, 1, "serving.py:5"),
            span(Stage.MODEL, "Linear", 20, 45, 2, "serving.py:9"),
            span(Stage.ENCODE, "json", 110, 115, 0),
        )
    )
    found = divided(served(1000, 200), traced, LABELS).requests
    assert [(one.label, one.end_ns - one.start_ns, one.parent) for one in found[0].spans] == [
        ("serving:prepare", 1000, -1), ("Words", 500, 0), ("Linear", 250, 1), ("onnx", 7, -1),
    ]  # fmt: skip
    assert found[0].spans[0].place == HOOK[1]
    assert [one.end_ns - one.start_ns for one in found[1].spans] == [200, 100, 50, 7]


def test_calls_are_as_many_as_were_seen() -> None:
    queries = tuple(span(Stage.SQL, "SELECT 1", 10 * n, 10 * n + 5, 0) for n in range(4))
    found = divided(served(100), recording((hook(0, 100), *queries)), LABELS).requests[0].spans
    assert [one.end_ns - one.start_ns for one in found if one.stage is Stage.SQL] == [5] * 4


def test_what_few_calls_do_is_laid_into_as_few_and_into_the_long_ones() -> None:
    """One hook in ten runs a query of 100 ms after its own millisecond."""
    quick, slow = (hook(0, 1000),), (hook(0, 101_000), span(Stage.SQL, "SELECT 1", 1000, 101_000, 0))
    lengths = [101_000 + n if n % 10 == 3 else 1000 + n for n in range(40)]
    found = divided(served(*lengths), recording(*(slow if n % 10 == 7 else quick for n in range(20))), LABELS).requests
    queries = [[one for one in request.spans if one.stage is Stage.SQL] for request in found]
    assert [n for n, each in enumerate(queries) if each] == [3, 13, 23, 33]
    assert all(99_000 < one.end_ns - one.start_ns < 101_000 for each in queries for one in each)


def test_a_hook_that_was_not_seen_stays_whole() -> None:
    whole = served(100)
    assert divided(whole, recording((span(Stage.CODE, "other", 0, 10),)), LABELS) == whole


def test_stacks_are_those_of_the_hook_under_its_name() -> None:
    seen = Sample(stack=("prepare (serving.py:4)",), at_ns=0, weight_ns=5, code=HOOK)
    other = Sample(stack=("app (app.py:4)",), at_ns=0, weight_ns=5, code=("app", "app.py:1"))
    found = divided(served(100), recording((hook(0, 100),), samples=(seen, other)), LABELS)
    assert [one.code for one in found.samples] == [("serving:prepare", HOOK[1])]


@given(
    length=st.integers(1, 10**9),
    parts=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=8),
)
def test_parts_stay_within_the_hook(length: int, parts: list[tuple[int, int]]) -> None:
    """Also where they overlapped, side by side in threads."""
    below = tuple(span(Stage.SQL, f"SELECT {n}", min(pair), max(pair), 0) for n, pair in enumerate(parts))
    spans = divided(served(length), recording((hook(0, 100), *below)), LABELS).requests[0].spans
    inside = [one for one in spans if one.parent == 0]
    assert all(spans[0].start_ns <= one.start_ns <= one.end_ns <= spans[0].end_ns for one in inside)
    assert all(one.end_ns <= other.start_ns for one, other in pairwise(inside))
