from __future__ import annotations

import pytest

from tailcut.errors import ManifestError
from tailcut.ladder.evidence import evidence_of
from tailcut.ladder.pilot import queue_grows
from tailcut.ladder.planning import choose_rungs, merge_settings, plan_rungs, round_order
from tailcut.load import LoadPlan, LoadResult
from tailcut.manifest import Rung
from tailcut.registry import VariantRecord, Version

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
            "torch": VariantRecord(runtime="torch", sha256="0" * 64, evidence={"metrics": {"auc": 0.75}}),
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
        latency_ms=None,
        lag_ms=None,
        stopped=stopped,
    )


def test_a_queue_grows_where_answers_fall_behind() -> None:
    assert queue_grows(result(100, 99.5)) == ""
    assert queue_grows(result(100, 95)).startswith("answers fall behind: 95.0/s of 100.0/s")
    assert queue_grows(result(100, 20, stopped="p95 is lost")) == "p95 is lost"
