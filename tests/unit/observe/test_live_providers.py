"""Kept requests, drift and alerts as the page shows them."""

from __future__ import annotations

from types import SimpleNamespace as Made
from typing import Any

from tailcut.observe.live.figures import DriftColumn
from tailcut.observe.live.live import alert_figures, drift_figures, kept_requests, request_detail

NOW_S = 1_700_000_000.0


def kept(took_ms: float, *, ago_s: float = 10.0, model: str = "m", code: str = "ok") -> Any:
    total_ns = int(took_ms * 1e6)
    return Made(
        reason="slow", model=model, route="infer", code=code, variant="onnx",
        trace=Made(trace_id=int(took_ms * 1000)), start_ns=5_000, total_ns=total_ns,
        wall_ns=int((NOW_S - ago_s) * 1e9) - 5_000 - total_ns,
    )  # fmt: skip


def test_the_slowest_and_the_latest_failed_of_the_last_ten_minutes_are_shown() -> None:
    held = [kept(took) for took in range(1, 31)]
    held += [kept(2, ago_s=300, code="shed"), kept(1, ago_s=2, code="model_error"), kept(900, ago_s=4000)]
    held += [kept(50, model="other"), kept(70, code="")]
    found = kept_requests(held, NOW_S)
    assert set(found) == {"m", "other"}
    answered = [each for each in found["m"] if each.code == "ok"]
    assert [round(each.total_s * 1e3) for each in answered] == [*range(30, 20, -1)]
    assert [each.code for each in found["m"] if each.code != "ok"] == ["model_error", "shed"]
    assert (answered[0].trace, round(answered[0].ended_s - NOW_S)) == (f"{30_000:032x}", -10)


def span(name: str, own: str, parent: str, start_ms: float, took_ms: float, **attributes: Any) -> Any:
    return Made(
        name=name, span_id=own, parent_id=parent, start_ns=int(NOW_S * 1e9 + start_ms * 1e6),
        duration_ns=int(took_ms * 1e6), attributes=attributes, error="infer_timeout" if name == "model" else "",
    )  # fmt: skip


def test_steps_stand_below_what_they_are_a_part_of_in_the_order_of_their_begin() -> None:
    found = Made(
        trace_id="a" * 32, model="m", route="predict", code="ok", reason="slow", variant="onnx", started_s=NOW_S,
        duration_ms=10.0, batch=[Made(trace_id="b" * 32, reason="sample", duration_ms=4.0)],
        spans=[
            span("POST /predict/m", "1", "caller", 0, 10),
            span("features", "2", "1", 1, 5),
            span("batch", "4", "1", 7, 2, **{"tailcut.batch.rows": 3, "tailcut.model": "m", "http.route": "/"}),
            span("model", "5", "4", 7, 1),
            span("feature late", "6", "2", 2, 1),
            span("feature early", "3", "2", 1, 1),
        ],
    )  # fmt: skip
    detail = request_detail(found)
    assert [(each.name, each.depth) for each in detail.spans] == [
        ("POST /predict/m", 0), ("features", 1), ("feature early", 2), ("feature late", 2), ("batch", 1), ("model", 2),
    ]  # fmt: skip
    batch, model = detail.spans[-2:]
    assert (round(batch.start_s, 6), batch.duration_s, batch.facts, model.failed) == (0.007, 0.002, {"rows": "3"}, True)
    assert [(each.trace, each.total_s) for each in detail.batch] == [("b" * 32, 0.004)]
    assert detail.request.ended_s == NOW_S + 0.01


def test_columns_that_drift_come_first_with_both_distributions() -> None:
    def column(name: str, psi: float, drifting: bool) -> DriftColumn:
        return DriftColumn(
            role="input", name=name, psi=psi, evidence=None, drifting=drifting, since_s=None, missing=0.1,
            unseen=0.0, labels=("low", "high"), reference=(0.5, 0.5), current=(0.25, 0.75),
        )  # fmt: skip

    state = Made(rows=9, alarms=1, columns=[column("a", 0.1, False), column("b", 0.3, False), column("c", 0.2, True)])
    found = drift_figures(state)
    assert drift_figures(None) is None
    assert found is not None
    assert [each.name for each in found.columns] == ["c", "b", "a"]
    assert (found.columns[0].evidence, found.columns[0].labels, found.columns[0].current) == (
        None, ("low", "high"), (0.25, 0.75),
    )  # fmt: skip


def test_alerts_that_page_come_first() -> None:
    def alarm(name: str, severity: str, since_s: float) -> Any:
        finding = Made(alert=name, severity=severity, model="m", text=f"{name} is high", place="queue", subject="g")
        return Made(finding=finding, since_s=since_s)

    found = alert_figures([alarm("drift", "ticket", 1.0), alarm("burn_rate", "page", 2.0)])
    assert [(each.name, each.stage, each.text) for each in found] == [
        ("burn_rate", "queue", "burn_rate is high"),
        ("drift", "queue", "drift is high"),
    ]
    assert all(each.hint and each.subject == "g" for each in found)
