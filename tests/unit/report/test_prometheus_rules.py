"""The exported rules: promtool has each of them fire on planted series, and stay quiet on others."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tailcut.manifest.schema import Slo
from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.rules import RULES
from tailcut.observe.latency_figures import LatencyFigures
from tailcut.report.monitoring.prometheus_rules import rules_text

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")

WEEK_M = 7 * 24 * 60


def rules_of(settings: Settings, *, has_features: bool = True) -> str:
    """The rules of one model with p95 of 50 ms and 0.1 % errors."""
    figures, slo = LatencyFigures(), Slo(p95_s=0.05)
    figures.set_objectives(slo.latency, slo.errors)
    return rules_text(settings, figures.objectives, has_features=has_features)


class Case(NamedTuple):
    """Series of one rule.

    Attributes:
        series: name with labels to values in promtool's notation.
        at: minutes after which it is asked.
        fires: the labels of the alert, without those of ``series``; None: it stays quiet.
        step: minutes between the values.
        says: part of the summary.
    """

    alert: str
    series: dict[str, str]
    at: int
    fires: dict[str, str] | None
    step: int = 1
    says: str = ""


def objective(bad: float, minutes: int, slo: str = "p95", step: int = 1, then: str = "") -> dict[str, str]:
    """100 requests a minute of which this share misses the objective."""
    labels = f'model="m", slo="{slo}", objective="{"0.95" if slo == "p95" else "0.999"}", limit="0.05"'
    count = minutes // step
    return {
        f"tailcut_slo_requests_total{{{labels}}}": f"0+{100 * step}x{count}",
        f"tailcut_slo_good_total{{{labels}}}": f"0+{100 * step * (1 - bad):g}x{count}{then}",
    }


def week(factor: float, requests: int = 100) -> dict[str, str]:
    """p95 of a week of 5-minute steps, then an hour and a half of it times ``factor``; the features alone grew."""
    before, after = WEEK_M // 5 - 6, 24
    return {
        'tailcut_latency_seconds{model="m", variant="a", stage="request", quantile="0.95"}': (
            f"0.02x{before} {0.02 * factor:g}x{after}"
        ),
        'tailcut_latency_seconds{model="m", variant="a", stage="infer", quantile="0.95"}': f"0.01x{before + after}",
        'tailcut_latency_seconds{model="m", variant="a", stage="features", quantile="0.95"}': (
            f"0.01x{before} {0.01 + 0.02 * (factor - 1):g}x{after}"
        ),
        'tailcut_requests_total{model="m", code="ok", outcome="ok"}': f"0+{requests * 5}x{before + after + 6}",
    }


def lookups(hits: int, misses: int, stale: int = 0) -> dict[str, str]:
    """Look-ups of a minute of one group."""
    labels = 'model="m", group="weather", entity_type="origin"'
    return {
        f'tailcut_feature_cache_lookups_total{{{labels}, result="hit"}}': f"0+{hits}x60",
        f'tailcut_feature_cache_lookups_total{{{labels}, result="miss"}}': f"0+{misses}x60",
        f"tailcut_feature_stale_total{{{labels}}}": f"0+{stale}x60",
    }


def ends(failed: float = 0, shed: float = 0, ok: float = 100) -> dict[str, str]:
    """Requests of a minute by their end."""
    kinds = (
        ("ok", "ok", ok),
        ("5xx", "feature_unavailable", failed),
        ("4xx", "shed", shed),
        ("4xx", "bad_request", 50),
    )
    return {
        f'tailcut_requests_total{{model="m", outcome="{outcome}", code="{code}"}}': f"0+{count:g}x60"
        for outcome, code, count in kinds
    }


def burn(window: str, severity: str, slo: str = "p95") -> dict[str, str]:
    """Labels of a burn rate's alert."""
    share = "0.95" if slo == "p95" else "0.999"
    return {"model": "m", "slo": slo, "objective": share, "window": window, "severity": severity}


MODEL, GROUP = {"model": "m"}, {"model": "m", "group": "weather", "entity_type": "origin"}
PAGE, TICKET = {"severity": "page"}, {"severity": "ticket"}
THROTTLED = 'tailcut_cpu_throttled_periods_total{instance="i"}'
PERIODS = 'tailcut_cpu_periods_total{instance="i"}'
HOST_READY = 'tailcut_host_ready{instance="i"}'
LEAK = 'tailcut_alerts{alert="memory_leak", model="", severity="ticket", instance="i"}'
DESCRIPTORS, THREADS = 'process_open_fds{instance="i"}', 'tailcut_process_threads{instance="i"}'
GPU_BYTES, GPU_CELSIUS = 'tailcut_gpu_bytes{instance="i"}', 'tailcut_gpu_celsius{instance="i"}'
GPU_SLOWED = 'tailcut_gpu_slowed{instance="i"}'
INSTANCE_TICKET = {"instance": "i", "severity": "ticket"}
ERROR = 'tailcut_alerts{alert="errors", model="m", severity="page", instance="i"}'
EVALUATED = 'tailcut_alert_evaluations_total{outcome="ok", instance="i"}'

CASES = [
    Case("TailcutBurnRate 1h", objective(0.80, 80), 75, burn("1h", "page"), says="80% of the requests of the last 1h"),
    Case("TailcutBurnRate 1h", objective(0.60, 80), 75, None),
    Case("TailcutBurnRate 1h", objective(0.80, 80, then=" 1600+100x20"), 95, None, says="it is over"),
    Case(
        "TailcutBurnRate 1h", objective(0.02, 80, "errors"), 75, burn("1h", "page", "errors"), says="were not answered"
    ),
    Case("TailcutBurnRate 1h", objective(0.009, 80, "errors"), 75, None),
    Case("TailcutBurnRate 6h", objective(0.40, 400), 390, burn("6h", "page")),
    Case("TailcutBurnRate 6h", objective(0.25, 400), 390, None),
    Case("TailcutBurnRate 3d", objective(0.07, 4500, step=5), 4400, burn("3d", "ticket"), 5),
    Case("TailcutBurnRate 3d", objective(0.04, 4500, step=5), 4400, None, 5),
    Case(
        "TailcutP95Growth",
        week(1.15),
        WEEK_M + 60,
        MODEL | TICKET | {"stage": "request"},
        5,
        "stage features grew most",
    ),
    Case("TailcutP95Growth", week(1.08), WEEK_M + 60, None, 5),
    Case("TailcutP95Growth", week(1.50, requests=10), WEEK_M + 60, None, 5, "too few requests"),
    Case("TailcutFeatureHitRate", lookups(60, 40), 50, GROUP | TICKET, says="group weather (entity type origin) hit"),
    Case("TailcutFeatureHitRate", lookups(80, 20), 50, None),
    Case("TailcutFeatureHitRate", lookups(6, 4), 50, None, says="too few look-ups"),
    Case("TailcutFeaturesStale", lookups(90, 10, stale=8), 50, GROUP | TICKET),
    Case("TailcutFeaturesStale", lookups(90, 10, stale=3), 50, None),
    Case("TailcutErrors", ends(failed=3), 50, MODEL | PAGE),
    Case("TailcutErrors", ends(failed=0.5, shed=5), 50, None),
    Case("TailcutErrors", ends(failed=3, ok=1), 50, None, says="too few requests"),
    Case("TailcutShed", ends(shed=3), 50, MODEL | PAGE),
    Case("TailcutShed", ends(failed=5, shed=0.5), 50, None),
    Case("TailcutNotReady", {HOST_READY: "0x60"}, 50, {"instance": "i"} | PAGE, says="i: a required model"),
    Case("TailcutNotReady", {HOST_READY: "1x30 0x3 1x30"}, 34, None, says="a restart"),
    Case("TailcutNotReady", {HOST_READY: "1x60", 'tailcut_ready{model="m"}': "0x60"}, 50, None, says="unloaded"),
    Case("TailcutCpuThrottled", {PERIODS: "0+600x60", THROTTLED: "0+90x60"}, 50, {"instance": "i"} | TICKET),
    Case("TailcutCpuThrottled", {PERIODS: "0+600x60", THROTTLED: "0+30x60"}, 50, None),
    Case("TailcutCpuThrottled", {PERIODS: "0x60", THROTTLED: "0x60"}, 50, None, says="no quota"),
    Case("TailcutDescriptorLeak", {DESCRIPTORS: "100+10x600"}, 550, INSTANCE_TICKET, says="open files grew by more"),
    Case("TailcutDescriptorLeak", {DESCRIPTORS: "100+20x100 2100x500"}, 550, None, says="it has stopped"),
    Case("TailcutDescriptorLeak", {DESCRIPTORS: "100+0.2x600"}, 550, None, says="few"),
    Case("TailcutThreadLeak", {THREADS: "20+1x600"}, 550, INSTANCE_TICKET, says="threads grew"),
    Case("TailcutThreadLeak", {THREADS: "20x300 200x300"}, 550, None, says="one step"),
    Case("TailcutGpuMemoryLeak", {GPU_BYTES: "1e9+2e6x600"}, 550, INSTANCE_TICKET),
    Case("TailcutGpuMemoryLeak", {GPU_BYTES: "0x600"}, 550, None, says="no GPU"),
    Case("TailcutGpuHot", {GPU_CELSIUS: "91x60", GPU_SLOWED: "0x60"}, 50, INSTANCE_TICKET),
    Case("TailcutGpuHot", {GPU_CELSIUS: "60x60", GPU_SLOWED: "1x60"}, 50, INSTANCE_TICKET, says="a GPU is hot, or its"),
    Case("TailcutGpuHot", {GPU_CELSIUS: "80x60", GPU_SLOWED: "0x60"}, 50, None),
    Case("TailcutAlarm", {LEAK: "1x60"}, 50, {"alert": "memory_leak", "severity": "ticket", "instance": "i"}),
    Case("TailcutAlarm", {LEAK: "0x60", ERROR: "1x60"}, 50, None, says="errors have a rule of their own"),
    Case("TailcutAlertsNotEvaluated", {EVALUATED: "7x60"}, 50, {"instance": "i", "outcome": "ok"} | TICKET),
    Case("TailcutAlertsNotEvaluated", {EVALUATED: "0+1x60"}, 50, None),
]


def written(folder: Path, case: Case) -> Path:
    """The rules with that of the case alone, beside what is recorded, and the test of it."""
    name, _, window = case.alert.partition(" ")
    made = yaml.safe_load(rules_of(Settings()))
    recorded, alerts = (group["rules"] for group in made["groups"])
    kept = [rule for rule in alerts if rule["alert"] == name]
    kept = [rule for rule in kept if not window or rule["labels"]["window"] == window]
    assert kept, name
    used = json.dumps(kept)
    recorded = [rule for rule in recorded if rule["record"] in used]
    groups = [{"name": "recorded", "rules": recorded}, {"name": "alerts", "rules": kept}]
    rules = folder / "rules.yml"
    rules.write_text(json.dumps({"groups": groups}))
    expected = [] if case.fires is None else [{"exp_labels": case.fires}]
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{case.step}m",
        "tests": [
            {
                "interval": f"{case.step}m",
                "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
                "alert_rule_test": [{"eval_time": f"{case.at}m", "alertname": name, "exp_alerts": expected}],
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(json.dumps(test))
    return path


@needs_promtool
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.alert}-{'fires' if case.fires else 'quiet'}-{case.says}"
)
def test_each_rule_fires_and_stays_quiet(case: Case, tmp_path: Path) -> None:
    command = ["promtool", "test", "rules", str(written(tmp_path, case))]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if case.fires is None:
        assert found.returncode == 0, found.stdout + found.stderr
    else:
        # Annotations are compared whole; what is got stands in the message.
        text = found.stdout + found.stderr
        got = text.partition("got:")[2]
        assert all(f'{name}="{value}"' in got for name, value in case.fires.items()), text
        assert case.says in got, got


@needs_promtool
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(rules_of(Settings()))
    found = subprocess.run(["promtool", "check", "rules", str(rules)], check=False, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "SUCCESS" in found.stdout


def test_every_rule_has_a_case_that_fires_and_one_that_stays_quiet() -> None:
    made = yaml.safe_load(rules_of(Settings()))
    names = {rule["alert"] for group in made["groups"] for rule in group["rules"] if "alert" in rule}
    for fires in (True, False):
        assert {case.alert.partition(" ")[0] for case in CASES if (case.fires is not None) == fires} == names


def test_rules_follow_the_manifest() -> None:
    def names(settings: Settings, has_features: bool = True) -> set[str]:
        made = yaml.safe_load(rules_of(settings, has_features=has_features))
        return {rule["alert"] for rule in made["groups"][1]["rules"]}

    everything = names(Settings())
    assert everything - names(Settings(off=("hit_rate", "errors"))) == {"TailcutFeatureHitRate", "TailcutErrors"}
    assert everything - names(Settings(), has_features=False) == {"TailcutFeatureHitRate", "TailcutFeaturesStale"}
    off = names(Settings(enabled=False))
    assert everything - off == {
        "TailcutCpuThrottled",
        "TailcutGpuMemoryLeak",
        "TailcutGpuHot",
        "TailcutAlarm",
        "TailcutAlertsNotEvaluated",
    }
    everything_off = names(Settings(off=tuple(rule.alert for rule in RULES)))
    assert everything_off == {"TailcutNotReady", "TailcutAlertsNotEvaluated"}
    assert "0.85" in rules_of(Settings(hit_rate=0.85))
