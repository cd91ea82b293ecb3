"""``tailcut load`` as people run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.servers import load_stub
from tests.scale import sized

from tailcut.cli.app import run
from tailcut.load import load_samples

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with load_stub() as (url, _):
        yield url


Done = subprocess.CompletedProcess[str]
SHORT = ["--duration", "500ms", "--warmup", "100ms"]


def tailcut(*arguments: str) -> Done:
    command = [sys.executable, "-m", "tailcut", "load", *arguments, *SHORT]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def inside(capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Return what runs the command in this process, which takes a second less."""

    def load(*arguments: str) -> Done:
        code = run(["load", *arguments, *SHORT])
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return load


def test_an_slo_that_is_met_exits_0(url: str, tmp_path: Path) -> None:
    files = ["--json", str(tmp_path / "out.json"), "--raw", str(tmp_path / "out.npz")]
    done = tailcut(f"{url}/delay/5", "--slo", "p95=5s,errors=0.1%", "--timeout", "10s", *files)
    assert done.returncode == 0, done.stderr
    assert "SLO p95 met" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["latency_ms"]["p50"] >= 5
    assert load_samples(tmp_path / "out.npz").status.size > 0


def test_an_slo_that_is_missed_exits_1_and_says_which_objective(url: str) -> None:
    done = tailcut(f"{url}/delay/50", "--slo", "p50=10ms,errors=0.1%")
    assert done.returncode == 1
    (missed_ms,) = re.findall(r"SLO p50 MISSED: ([\d.]+)", done.stdout)
    assert float(missed_ms) >= 50
    assert "limit 10 ms" in done.stdout
    assert "SLO errors met" in done.stdout


def test_failed_requests_miss_the_errors_objective(url: str, inside: Callable[..., Done]) -> None:
    done = inside(f"{url}/status/500", "--slo", "errors=0.1%")
    assert done.returncode == 1
    assert "SLO errors MISSED: 100 %, limit 0.1 %" in done.stdout
    assert 'first 500 body: {"error": "as asked"}' in done.stdout


def test_a_target_that_is_not_there_exits_3_with_a_hint() -> None:
    done = tailcut("http://127.0.0.1:9/")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "error: cannot connect" in done.stderr
    assert "hint: check that the server runs" in done.stderr


@pytest.mark.quiet
def test_a_capacity_search_shows_every_step(url: str) -> None:
    done = tailcut(
        f"{url}/serial/10",
        "--slo",
        "p90=100ms",
        "--find-capacity",
        "--rate",
        "50",
        "--arrivals",
        "constant",
        "--max-search",
        sized("3s", "60s"),
    )
    assert done.returncode == 0, done.stderr
    assert "capacity within p90=100ms" in done.stdout
    assert "MISS: p90" in done.stderr
    assert "pass" in done.stderr


def test_results_that_cannot_be_written_are_refused_before_the_run(
    url: str, inside: Callable[..., Done], tmp_path: Path
) -> None:
    """Seen before: a run of minutes ended in an error, and its figures were never printed."""
    for flags in (["--raw", str(tmp_path / "out.txt")], ["--json", "/proc/no/out.json"]):
        for search in ([], ["--find-capacity", "--slo", "p95=50ms"]):
            done = inside(f"{url}/delay/0", *flags, *search)
            assert (done.returncode, done.stdout) == (2, "")
            assert "hint: " in done.stderr
            assert "unexpected" not in done.stderr
            assert "/s" not in done.stderr


def test_a_capacity_search_writes_into_a_new_folder(url: str, inside: Callable[..., Done], tmp_path: Path) -> None:
    file = tmp_path / "new" / "out.json"
    done = inside(f"{url}/delay/0", "--find-capacity", "--slo", "p95=1s", "--max-search", "1s", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["rate"] > 0


@pytest.mark.parametrize("flag", ["--raw=out.npz", "--ramp=1:5", "--trace=times.txt"])
def test_flags_that_a_capacity_search_has_no_use_for_are_refused(
    url: str, inside: Callable[..., Done], flag: str
) -> None:
    """Seen before: they were taken and ignored."""
    done = inside(f"{url}/delay/0", "--find-capacity", "--slo", "p95=50ms", flag)
    assert (done.returncode, done.stdout) == (2, "")
    assert flag.partition("=")[0] in done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--rate", "0"], "--rate is 0"),
        (["--rate", "nan"], "--rate is nan"),
        (["--arrivals", "uniform"], "arrivals is 'uniform'"),
        (["--slo", "p95=25"], '--slo: "25" has no unit'),
        (["--timeout", "soon"], "--timeout: "),
        (["--max-search", "5"], "--max-search: "),
        (["--ramp", "5"], "--ramp is '5'"),
    ],
)
def test_a_wrong_flag_is_named_and_exits_2(url: str, inside: Callable[..., Done], flags: list[str], says: str) -> None:
    done = inside(f"{url}/delay/0", *flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "hint: " in done.stderr


def test_failures_are_judged_also_where_the_slo_does_not_name_them(url: str, inside: Callable[..., Done]) -> None:
    """Seen before: a server that died in the run met p95."""
    done = inside(f"{url}/status/500", "--slo", "p95=500ms")
    assert done.returncode == 1
    assert "SLO: p95=500ms,errors=0.1%" in done.stderr
    assert "SLO p95 MISSED" in done.stdout
    assert "SLO errors MISSED: 100 %, limit 0.1 %" in done.stdout


def test_without_an_slo_failures_are_a_warning(url: str, inside: Callable[..., Done]) -> None:
    done = inside(f"{url}/status/500")
    assert done.returncode == 0
    assert "warning: 100.0% of the requests failed, but nothing is judged" in done.stdout
