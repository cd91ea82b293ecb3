from __future__ import annotations

import msgspec
import pytest

from tailcut.common.slo import LatencyObjective, Objectives
from tailcut.errors import ManifestError
from tailcut.ladder.climb import (
    choose_rungs,
    describe_pilot,
    evidence_of,
    harder_than_errors,
    merge_settings,
    plan_rungs,
    queue_grows,
    round_order,
)
from tailcut.ladder.places import FileNames
from tailcut.load import CapacityResult, LoadPlan, LoadResult
from tailcut.manifest import Rung
from tailcut.registry import VariantEvidence, VariantRecord, Version

RUNGS = (
    Rung(name="off", set=("serve.variant=torch", "features.cache=off"), variant="torch"),
    Rung(name="cache", set=("features.cache=memory",)),
    Rung(name="onnx", set=("serve.variant=onnx",), variant="onnx"),
    Rung(name="int8", set=("serve.variant=int8-dynamic",), variant="int8-dynamic"),
    Rung(name="batching", set=("batching.mode=auto",)),
)


def test_settings_add_up_and_later_ones_replace_earlier_ones() -> None:
    planned = plan_rungs(RUNGS, {})
    assert planned[1].settings == ("serve.variant=torch", "features.cache=memory")
    assert planned[4].settings == ("serve.variant=int8-dynamic", "features.cache=memory", "batching.mode=auto")
    assert [rung.added for rung in planned] == [rung.set for rung in RUNGS]


def test_a_refused_rung_leaves_no_trace_in_the_rungs_above() -> None:
    planned = plan_rungs(RUNGS, {"int8-dynamic": "auc fell 0.01, budget 0.004"})
    assert (planned[3].refused, planned[3].settings) == ("auc fell 0.01, budget 0.004", ())
    assert planned[4].settings == ("serve.variant=onnx", "features.cache=memory", "batching.mode=auto")
    assert planned[4].refused == ""


def test_a_rung_without_a_variant_has_the_quality_of_the_rung_below() -> None:
    planned = plan_rungs(RUNGS, {"int8-dynamic": "slow"}, first_variant="torch")
    assert [rung.variant for rung in planned] == ["torch", "torch", "onnx", "int8-dynamic", "onnx"]
    assert plan_rungs((Rung(name="first"),), {}, first_variant="torch")[0].variant == "torch"


def test_a_chosen_rung_keeps_the_settings_of_the_whole_ladder() -> None:
    (chosen,) = choose_rungs(plan_rungs(RUNGS, {}), ("pilot", "onnx"))
    assert chosen.settings == ("serve.variant=onnx", "features.cache=memory")
    with pytest.raises(ManifestError, match="no rung 'fp16'") as caught:
        choose_rungs(plan_rungs(RUNGS, {}), ("fp16",))
    assert "pilot, off, cache" in caught.value.hint


def test_merged_settings_know_paths_with_blanks() -> None:
    assert merge_settings(("a.b=1", "c=2"), ("a.b =3",)) == ("a.b =3", "c=2")


@pytest.mark.parametrize(("count", "rounds"), [(1, 3), (2, 3), (7, 3), (7, 7), (0, 3)])
def test_every_round_has_every_rung_once_and_starts_with_another(count: int, rounds: int) -> None:
    orders = [round_order(count, index, rounds) for index in range(rounds)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    if count >= rounds:
        assert len({order[0] for order in orders}) == rounds


def test_evidence_comes_from_the_registry_and_a_missing_variant_is_refused() -> None:
    version = Version(
        model="m",
        id="abc",
        created="",
        source="torch",
        inputs=(),
        outputs=(),
        variants={
            "torch": VariantRecord(runtime="torch", sha256="0" * 64, evidence=VariantEvidence(metrics={"auc": 0.75})),
            "int8-dynamic": VariantRecord(runtime="onnxruntime", refused="auc fell 0.01, budget 0.004"),
        },
    )
    evidence = evidence_of(version, ["torch", "onnx", "int8-dynamic"])
    assert evidence.source == "torch"
    assert evidence.quality["torch"] == {"auc": 0.75}
    assert evidence.refusals == {
        "int8-dynamic": "auc fell 0.01, budget 0.004",
        "onnx": "not in the registry (version abc has torch, int8-dynamic)",
    }


def result(offered: float, throughput: float, stopped: str = "") -> LoadResult:
    return LoadResult(
        plan=LoadPlan(url="http://x/"),
        started_at="",
        window_s=10.0,
        requests=int(offered * 10),
        answered=int(throughput * 10),
        sheds=0,
        errors={},
        statuses={},
        offered_rps=offered,
        throughput_rps=throughput,
        goodput_rps=throughput,
        replied_rps=throughput,
        latency_ms=None,
        lag_ms=None,
        stopped=stopped,
    )


def test_a_queue_grows_where_answers_fall_behind() -> None:
    assert queue_grows(result(100, 99.5)) == ""
    assert queue_grows(result(100, 95)).startswith("answers fall behind: 95.0/s of 100.0/s")
    assert queue_grows(result(100, 20, stopped="p95 is lost")) == "p95 is lost"


def result_of_search(**values: object) -> CapacityResult:
    found = CapacityResult(
        objectives="p95=100ms",
        rate=55.0,
        confirmed=True,
        limit="p95 (at 57 req/s)",
        complete=True,
        generator_limited=False,
        steps=(),
    )
    return msgspec.structs.replace(found, **values)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "capacity: 55 req/s without a growing queue (p95 within 4 times the unloaded 31.2 ms)."),
        ({"complete": False}, "capacity: at least 55 req/s"),
        ({"complete": False}, "31.2 ms; the search ran out of time)"),
        (
            {"limit": ""},
            "at least 55 req/s without a growing queue (p95 within 4 times the unloaded 31.2 ms; no tried rate",
        ),
        ({"generator_limited": True}, "at least 55 req/s"),
        ({"generator_limited": True, "confirmed": False}, "itself was late; the repeat failed)"),
    ],
)
def test_how_sure_the_pilots_capacity_is_stands_beside_it(values: dict[str, object], says: str) -> None:
    assert says in describe_pilot(result_of_search(**values), 31.2, Objectives(), True)


def test_percentiles_that_are_harder_than_the_errors_objective_are_named() -> None:
    limits = tuple(LatencyObjective(share=share, limit_s=0.025) for share in (0.95, 0.99))
    (said,) = harder_than_errors(Objectives(latency=limits, errors=0.02))
    assert "p99 allows 1 %" in said
    assert "the 2 % of the errors objective" in said
    assert harder_than_errors(Objectives(latency=limits, errors=0.001)) == ()
    assert harder_than_errors(Objectives(latency=limits, errors=0.01)) == ()
    assert harder_than_errors(Objectives(latency=limits)) == ()
    tenth = LatencyObjective(share=0.9, limit_s=1.0)
    assert harder_than_errors(Objectives(latency=(tenth,), errors=0.1)) == ()
    assert (
        "p100" not in harder_than_errors(Objectives(latency=(LatencyObjective(share=1.0, limit_s=1),), errors=0.1))[0]
    )


def test_rungs_that_differ_in_punctuation_only_have_files_of_their_own() -> None:
    names = FileNames()
    rungs = ("a+b", "a b", "A b", "+ a+b", "?", "rung")
    found = [names.of(name) for name in rungs]
    assert found == ["a-b", "a-b-2", "A-b-3", "a-b-4", "rung", "rung-2"]
    assert [names.of(name) for name in rungs] == found
