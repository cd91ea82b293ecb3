"""A pilot of another shape (tokenisation and a model in a synchronous handler): a known delay in each stage in turn."""

from __future__ import annotations

import pytest
from tests.integration.planting import HERE, Recorded, found_shares, missed, of_path, only, record_planted

from tailcut.profiler.attribution.budget import Culprit, make_budget
from tailcut.profiler.records import Stage
from tailcut.report.profile.document import bottleneck

pytestmark = pytest.mark.integration

STAGES = {
    "validation": Stage.DECODE,
    "tokenizer": Stage.CODE,
    "query": Stage.SQL,
    "model": Stage.MODEL,
    "encoder": Stage.ENCODE,
    "lock": Stage.LOCK,
    "hook": Stage.CODE,
    "pool": Stage.WAIT,
}
TEXT = "Solve the linear system by decomposition"


def path_of(part: str) -> str:
    return f"/embed/{part}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_planted(
        tmp_path_factory.mktemp("embedder"),
        "embedder",
        [path_of(part) for part in STAGES],
        {"texts": [TEXT]},
        rate=30.0,
        duration_s=3.0,
        sample_s=2.0,
    )


def line_of(text: str, module: str = "embedder") -> str:
    lines = (HERE / f"profile_{module}.py").read_text().splitlines()
    return f"{module}.py:{next(place for place, line in enumerate(lines, 1) if text in line)}"


def culprit(recorded: Recorded, part: str) -> tuple[Culprit, str]:
    """What takes most of a part's slow requests, by name, and how the report says it."""
    budget = make_budget(only(recorded[0], path_of(part)))
    assert budget.bottleneck is not None
    assert budget.bottleneck.stage is STAGES[part]
    return budget.culprits_of(STAGES[part])[0], bottleneck(budget)


def test_every_planted_delay_is_found_in_its_stage(recorded: Recorded) -> None:
    assert missed(found_shares(recorded, {path_of(part): stage for part, stage in STAGES.items()})) == {}


@pytest.mark.parametrize(
    ("part", "label", "module", "begins"),
    [
        ("query", "SELECT prefix()", "embedder", 'execute("SELECT prefix()")'),
        # The part of the user's own module that sleeps, not all of the module.
        ("model", "Sequential", "embedder", "hidden = self.layers("),
        ("lock", "", "embedder", "with one_at_a_time, torch"),
        ("hook", "dependency authorise", "parts", "async def authorise"),
        # A function's place is where its decorators begin.
        ("tokenizer", "embed", "embedder", '@app.post("/embed/{part}")'),
    ],
)
def test_the_bottleneck_named_is_the_planted_one(
    recorded: Recorded, part: str, label: str, module: str, begins: str
) -> None:
    found, said = culprit(recorded, part)
    assert (found.label, found.place) == (
        label or f"threading.Lock of {line_of('one_at_a_time = threading.Lock()')}",
        line_of(begins, module),
    )
    assert line_of(begins, module) in said


@pytest.mark.parametrize(
    ("part", "label", "words"),
    [
        ("validation", "body validation", "is decoding and validating the body"),
        ("encoder", "response model", "is encoding the reply"),
        ("pool", "thread pool", "is waiting for thread pool"),
    ],
)
def test_the_framework_s_steps_are_named(recorded: Recorded, part: str, label: str, words: str) -> None:
    found, said = culprit(recorded, part)
    assert found.label == label
    assert words in said


def test_the_slow_function_is_named(recorded: Recorded) -> None:
    """Of code in a thread of the pool, and of a hook on the event loop."""
    for part, name in (("tokenizer", "tokenise"), ("hook", "authorise")):
        found, said = culprit(recorded, part)
        module = "parts" if name == "authorise" else "embedder"
        assert found.functions[0].function.startswith(f"{name} ({module}.py:")
        first = found.functions[0]
        assert name == "authorise" or f"of the samples ({first.samples}) are in {first.function}" in said


def test_a_stage_that_is_not_slow_is_not_blamed(recorded: Recorded) -> None:
    """The same handler takes a tenth of that in each stage where nothing is planted."""
    recording, _ = recorded
    quick = [
        span.end_ns - span.start_ns
        for part in ("query", "encoder", "pool")
        for one in of_path(recording, path_of(part))
        for span in one.spans
        if span.stage is Stage.MODEL
    ]
    assert sorted(quick)[len(quick) // 2] < 2_000_000


def test_everything_was_hooked(recorded: Recorded) -> None:
    recording, _ = recorded
    assert not [note for note in recording.notes if "hooked" in note]
    assert {"fastapi", "sqlite3", "torch"} <= set(recording.pilot.hooks)
    assert recording.pilot.libraries == dict.fromkeys(("Encoder", "Embedding", "Sequential"), "torch")
