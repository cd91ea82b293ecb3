"""The page in a real browser, over a real server: its numbers are those of /metrics, and its states are shown."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.app_kit import FEATURES, GOOD, HOOKS
from tests.browser_kit import CHROMIUM, Page, browser
from tests.host_kit import add_model, add_models
from tests.integration.serving import Served

pytestmark = pytest.mark.integration

RISK = (
    FEATURES.replace("app_hooks", "ui_hooks")
    + """
[slo]
p95 = "250us"
p99 = "200ms"
"""
)
NUMBER = re.compile("(< )?[\\d.\u202f]+(\N{MULTIPLICATION SIGN}| (%|s|ms|µs|B|KiB|MiB))?")
PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Page]]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


class Metrics:
    """A scrape of /metrics of one model, or of the process."""

    def __init__(self, server: Served, model: str = "") -> None:
        text = server.request("GET", "/metrics")[2].decode()
        self._samples = [
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not model or sample.labels.get("model") == model
        ]

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the values that have these labels."""
        return sum(self.values(name, **labels))

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values that have these labels."""
        return [each.value for each in self._samples if each.name == name and labels.items() <= each.labels.items()]

    def only(self, name: str, **labels: str) -> float:
        """Return the one value that has these labels."""
        (found,) = self.values(name, **labels)
        return found


SHED = ("shed", "queue_timeout")


def expected(key: str, metrics: Metrics, window_s: float, answered_only: bool) -> float | None:
    """Return what a figure of a model's page should be, by the path that the page names; NaN: nothing is compared."""
    kind, *rest = key.split(".")
    match kind:
        case "requests":
            return _requests(rest, metrics, window_s)
        case "head" | "stages":
            return _stage(rest, metrics, answered_only)
        case "objectives":
            return _objective(*rest, metrics)
        case "burn":
            slos = [each for each in ("p95", "p99", "errors") if metrics.values("tailcut_slo_good_total", slo=each)]
            return max(_objective(each, "burn", metrics) or 0.0 for each in slos)
        case "features" | "caches":
            return _lookups(kind, rest[0].partition("/")[0], ".".join(rest[1:]), metrics)
        case "batches":
            return _batches(".".join(rest), metrics, window_s)
        case "variants":
            return _variant(rest[-1], metrics)
        case "now":
            found = metrics.values(f"tailcut_{rest[0]}")
            return found[0] if found else None
    raise AssertionError(f"the page shows {key}, which this test knows nothing of")


def _stage(rest: list[str], metrics: Metrics, answered_only: bool) -> float:
    stage, what = rest if len(rest) == 2 else ("request", rest[0])
    if what != "mean_s":
        quantile = {"p50_s": "0.5", "p95_s": "0.95", "p99_s": "0.99"}[what]
        return metrics.only("tailcut_latency_seconds", stage=stage, quantile=quantile)
    count = metrics.sum("tailcut_request_seconds_count", outcome="ok")
    if stage == "request":
        return metrics.sum("tailcut_request_seconds_sum", outcome="ok") / count
    return metrics.only("tailcut_stage_seconds_sum", stage=stage) / count if answered_only else float("nan")


def _variant(what: str, metrics: Metrics) -> float | None:
    found = {"share": 1.0, "total": metrics.sum("tailcut_requests_total"), "cost": None, "busy_share": None}
    return found[what] if what in found else _stage([what], metrics, True)


def _requests(rest: list[str], metrics: Metrics, window_s: float) -> float:
    def of(**labels: str) -> float:
        return metrics.sum("tailcut_requests_total", **labels)

    shed = sum(of(code=code) for code in SHED)
    found = {
        "all": of(),
        "answered": of(code="ok"),
        "shed": shed,
        "failed": of(outcome="5xx") - of(code="queue_timeout"),
        "lost": of(outcome="5xx") + of(code="shed"),
    }
    total = of(code=rest[1]) if rest[0] == "codes" else found[rest[0]]
    return total if rest[-1] == "total" else total / window_s


def _objective(name: str, what: str, metrics: Metrics) -> float | None:
    good, total = (metrics.only(f"tailcut_slo_{each}_total", slo=name) for each in ("good", "requests"))
    budget = {"p95": 0.05, "p99": 0.01, "errors": 0.001}[name]
    burn = (total - good) / total / budget if total else None
    found = {"good": good, "total": total, "met": good / total if total else None}
    return found.get(what, burn)  # all is of the last five minutes


def _lookups(kind: str, name: str, what: str, metrics: Metrics) -> float | None:
    prefix, label = ("feature_cache", "group") if kind == "features" else ("prediction_cache", "cache")
    hits, misses = (
        metrics.only(f"tailcut_{prefix}_lookups_total", **{label: name}, result=each) for each in ("hit", "miss")
    )
    stale = "feature_stale_total" if kind == "features" else "prediction_cache_stale_total"
    found = {
        "hits.total": lambda: hits,
        "misses.total": lambda: misses,
        "share": lambda: hits / (hits + misses) if hits + misses else None,
        "stale": lambda: metrics.only(f"tailcut_{stale}", **{label: name}),
        "errors": lambda: metrics.only("tailcut_feature_source_errors_total", group=name),
        "size_bytes": lambda: metrics.only("tailcut_prediction_cache_bytes", cache=name),
    }
    return found[what]()


def _batches(what: str, metrics: Metrics, window_s: float) -> float:
    count, rows = (metrics.only(f"tailcut_batch_rows_{each}") for each in ("count", "sum"))
    if what.startswith("sizes."):
        high = what.removeprefix("sizes.").rpartition("\N{EN DASH}")[2]
        below = {"1": None, "2": "1", "4": "2"}[high]
        before = 0.0 if below is None else metrics.only("tailcut_batch_rows_bucket", le=below)
        return metrics.only("tailcut_batch_rows_bucket", le=high) - before
    found = {
        "count.total": count,
        "count.rate": count / window_s,
        "rows_mean": rows / count,
        "rows_total": rows,
        "seconds_mean": metrics.only("tailcut_batch_seconds_sum") / count,
    }
    return found[what]


READ = """JSON.stringify([document.querySelector("main").dataset, [...document.querySelectorAll("[data-key]")].filter(
    each => each.checkVisibility()).map(each => [each.dataset.key, each.dataset.value, each.textContent])])"""


def figures(page: Page) -> tuple[float, dict[str, tuple[str, str]]]:
    """Return the window, and value and text of each figure that a page shows, by its path."""
    told, found = json.loads(page.run(READ))
    assert len(found) == len({key for key, *_ in found}), "a path is used twice"
    return float(told["window"]), {key: (value, text) for key, value, text in found}


def compare(shown: dict[str, tuple[str, str]], prefix: str, wanted: Callable[[str], float | None]) -> int:
    """Compare the figures of a model with what they should be; return how many were compared."""
    compared = 0
    for key, (value, text) in shown.items():
        if not key.startswith(prefix):
            continue
        found = wanted(key.removeprefix(prefix))
        if found is None:
            assert (value, text) == ("", "\N{EN DASH}"), key
        elif found == found:
            assert float(value) == pytest.approx(found, rel=1e-6, abs=1e-9), key
            assert NUMBER.fullmatch(text), (key, text)
            compared += 1
    return compared


def ask(server: Served) -> None:
    """Send what the pages then show: answers, hits and misses, and errors to one of the models."""
    for number in range(40):
        assert server.post("/predict/risk", {"entities": [number % 20]})[0] == 200
        assert server.post("/v2/models/plain/infer")[0] == 200
    rows = {"inputs": [{"name": "x", "shape": [4, 2], "datatype": "FP32", "data": list(range(8))}]}
    assert server.post("/v2/models/plain/infer", rows)[0] == 200
    assert server.post("/v2/models/plain/infer", {})[0] == 400
    late = server.request("POST", "/v2/models/plain/infer", GOOD, {"x-tailcut-timeout-ms": "0.000001"})
    assert late[0] == 504


def test_every_number_on_the_page_is_that_of_the_metrics(tmp_path: Path, tab: Callable[[], Page]) -> None:
    folder = tmp_path / "models"
    add_model(folder, "risk", more=RISK)
    (folder / "risk" / "ui_hooks.py").write_text(HOOKS)
    add_model(folder, "plain", more='[slo]\np95 = "100ms"\n')
    with Served(tmp_path, prepared=True, what=["-m", str(folder)]) as server:
        pages = {"": tab(), "risk": tab(), "plain": tab()}
        for name, page in pages.items():
            page.look(*DESK)
            page.open(f"http://127.0.0.1:{server.port}/ui{f'/models/{name}' if name else ''}")
            page.until("document.querySelector('main')?.dataset.at")
        ask(server)
        metrics = {name: Metrics(server, name) for name in pages}
        at = pages[""].run("document.querySelector('main').dataset.at")
        for page in pages.values():  # a snapshot that was begun after the last request
            page.until(f"document.querySelector('main').dataset.at > {float(at) + 1}")
        shown = {name: figures(page) for name, page in pages.items()}
        compared = 0
        for name in ("risk", "plain"):
            window_s, found = shown[name]
            compared += compare(
                found,
                f"models.{name}.",
                lambda key, name=name, window_s=window_s: expected(key, metrics[name], window_s, name == "risk"),
            )
            window_s, found = shown[""]
            compared += compare(
                found,
                f"models.{name}.",
                lambda key, name=name, window_s=window_s: expected(_on_host(key), metrics[name], window_s, False),
            )
        assert compared > 140
        _compare_process(shown[""][1], shown[""][0], metrics)
        assert [page.errors for page in pages.values()] == [[], [], []]
        assert server.get("/ui/data")[1]["models"][1]["requests"]["answered"]["total"] == 40


def _on_host(key: str) -> str:
    return key.replace("stages.request.p", "head.p")


def _compare_process(shown: dict[str, tuple[str, str]], window_s: float, metrics: dict[str, Metrics]) -> None:
    total = sum(_requests(["all", "rate"], metrics[name], window_s) for name in ("risk", "plain"))
    lost = sum(_requests(["lost", "rate"], metrics[name], window_s) for name in ("risk", "plain"))
    process = metrics[""]
    assert float(shown["requests.rate"][0]) == pytest.approx(total)
    assert float(shown["requests.lost"][0]) == pytest.approx(lost)
    assert shown["process.state"] == ("ready", "ready")
    memory = float(shown["process.memory_bytes"][0])
    assert memory == pytest.approx(process.only("process_resident_memory_bytes"), rel=0.1)
    assert float(shown["process.open_files"][0]) == pytest.approx(process.only("process_open_fds"), abs=6)
    assert 0 < float(shown["process.cpu_cores"][0]) < process.only("process_cpu_seconds_total")
    assert 0 <= float(shown["process.loop_lag_s"][0]) <= process.only("tailcut_loop_lag_seconds_sum")
    assert 0 < float(shown["process.started_s"][0]) < 600


@pytest.mark.quiet
def test_the_first_figures_of_twenty_models_are_painted_within_a_second(
    tmp_path: Path, tab: Callable[[], Page]
) -> None:
    folder = add_models(tmp_path / "models", **{f"model-{number:02}": 1.0 for number in range(20)})
    with Served(tmp_path, prepared=True, what=["-m", str(folder)]) as server:
        page, address = tab(), f"http://127.0.0.1:{server.port}/ui"
        page.look(*DESK)
        page.open(address)
        page.until("document.querySelectorAll('tbody tr').length == 20")
        times = json.loads(
            page.until(  # the rows are there a moment before they are painted
                "performance.getEntriesByName('first-contentful-paint').length && "
                "JSON.stringify([performance.getEntriesByName('first-contentful-paint')[0].startTime,"
                "performance.getEntriesByName('figures')[0].startTime])"
            )
        )
        assert max(times) < 1000, times
        for dark in (False, True):
            page.look(*PHONE, dark=dark)
            assert page.run("document.documentElement.scrollWidth <= innerWidth")
        page.look(*DESK)
        page.press("Tab", 9)
        assert page.run("document.activeElement.textContent") == "Skip to the figures"
        page.press("Tab", 9)
        page.press("Tab", 9)
        assert page.run("document.activeElement.textContent") == "model-00"
        page.run("document.activeElement.click()")
        page.until("document.querySelector('main')?.dataset.at && location.pathname == '/ui/models/model-00'")
        assert page.until("document.querySelector('#empty').textContent").startswith("No requests yet")
        assert server.post("/v2/models/model-00/infer")[0] == 200
        page.until("document.querySelector('#empty').hidden")
        page.run("document.querySelector('svg.plot').focus()")
        page.press("ArrowLeft", 37)
        assert page.until("document.querySelector('.readout').textContent")
        assert page.errors == []


def test_a_server_that_goes_away_is_waited_for_and_a_model_that_is_not_there_is_said(
    tmp_path: Path, tab: Callable[[], Page]
) -> None:
    with Served(tmp_path) as server:
        page, missing = tab(), tab()
        page.open(f"http://127.0.0.1:{server.port}/ui")
        page.until("document.querySelector('#status')?.dataset.state == 'live'")
        assert page.errors == []
        missing.open(f"http://127.0.0.1:{server.port}/ui/models/nothing")
        missing.until("document.querySelector('#empty')?.textContent.includes('unknown')")
        port = server.port
    page.until("document.querySelector('#status').dataset.state == 'lost'")
    with Served(tmp_path, port=port):
        page.until("document.querySelector('#status').dataset.state == 'live'")


def test_a_kept_request_opens_as_a_waterfall_with_its_times(tmp_path: Path, tab: Callable[[], Page]) -> None:
    with Served(tmp_path, settings=["observe.traces.sample=100%"]) as server:
        assert server.post("/v2/models/m/infer")[0] == 200
        page = tab()
        page.open(f"http://127.0.0.1:{server.port}/ui/models/m")
        page.until("document.querySelector('a[href*=requests]') != null")
        page.run("document.querySelector('a[href*=requests]').click()")
        page.until("document.querySelectorAll('.timeline svg').length > 4")
        trace = page.run("location.pathname").rpartition("/")[2]
        status, debug = server.get(f"/debug/requests/{trace}")
        assert status == 200
        _, shown = figures_of_request(page)
        assert float(shown["request.total_s"][0]) == pytest.approx(debug["duration_ms"] / 1e3)
        took = {key: float(value) for key, (value, _) in shown.items() if key.endswith("duration_s")}
        begun = {key: float(value) for key, (value, _) in shown.items() if key.endswith("start_s")}
        assert sorted(took.values()) == pytest.approx(sorted(each["duration_ns"] / 1e9 for each in debug["spans"]))
        starts = [(each["start_ns"] - debug["spans"][0]["start_ns"]) / 1e9 for each in debug["spans"]]
        assert sorted(begun.values()) == pytest.approx(sorted(starts), abs=1e-9)
        stages = Metrics(server, "m").sum("tailcut_stage_seconds_sum")
        assert float(shown["request.total_s"][0]) == pytest.approx(stages, rel=1e-6)
        page.look(*PHONE)
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        assert page.errors == []
        page.open(f"http://127.0.0.1:{server.port}/ui/requests/{'f' * 32}")
        page.until("document.querySelector('#empty')?.textContent.includes('is not kept')")


def figures_of_request(page: Page) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Return what the page of a request shows, by the paths of its figures."""
    told, found = json.loads(page.run(READ))
    return told, {key: (value, text) for key, value, text in found}


def test_with_tokens_a_browser_logs_in_and_out(tmp_path: Path, tab: Callable[[], Page]) -> None:
    (tmp_path / "managers").write_text(hashlib.sha256(b"secret").hexdigest())
    with Served(tmp_path, settings=["server.management_tokens=managers"]) as server:
        page = tab()
        page.open(f"http://127.0.0.1:{server.port}/ui/models/m")
        for token, error in (("wrong", "not valid"), ("secret", "")):
            page.until("document.querySelector('#token') != null")
            page.until("getComputedStyle(document.querySelector('.gate')).borderRadius == '8px'")  # it is styled
            page.run(f"document.querySelector('#token').value = '{token}', document.querySelector('button').click()")
            if error:
                page.until(f"document.querySelector('#why')?.textContent.includes('{error}')")
        page.until("document.querySelector('#status')?.dataset.state == 'live' && location.pathname == '/ui/models/m'")
        assert page.run("document.cookie") == "", "no script can read the cookie"
        assert page.run("fetch('/ui/data').then(reply => reply.status)") == 200
        page.run("document.querySelector('#logout button').click()")
        page.until("document.querySelector('#token') != null && location.pathname == '/ui'")
        assert page.run("fetch('/ui/data').then(reply => reply.status)") == 401
        assert [each for each in page.errors if "401" not in each] == []
