"""Settings of the whole test run."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from tests.scale import ALL

from tailcut.builder.children import StepRunner
from tailcut.code import loaded
from tailcut.manifest import modules

REQUIRE_SERVERS = "REQUIRE_SERVERS"  # not TAILCUT_...: those are settings of the manifest, and unknown ones are errors
_TESTS = Path(__file__).parent
_INTEGRATION = _TESTS / "integration"
_HAVE_QUIET = ("integration", "faults", "gpu")
"""Folders whose quiet tests are run one by one."""
_LIBRARIES: set[str] = set()
"""Modules that are of no test's deployment."""

_SMALLEST = [sys.float_info.min * sys.float_info.epsilon]

# Examples take as long as the machine is busy; a deadline would only test the neighbours.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dev")

# A shell starts what it runs in the background with SIGINT ignored, and so would be whatever the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what lies in tests/integration, so that no test there can be forgotten; leave out what ``whole`` marks.

    Raises:
        UsageError: a test is quiet in a folder that scripts/run_tests.py does not look for quiet tests in.
    """
    for item in items:
        if (
            item.get_closest_marker("quiet")
            and _TESTS in item.path.parents
            and item.path.parent.name not in _HAVE_QUIET
        ):
            raise pytest.UsageError(f"{item.nodeid} is marked quiet outside of {', '.join(_HAVE_QUIET)}: move it there")
        if item.path.is_relative_to(_INTEGRATION):
            item.add_marker(pytest.mark.integration)
    left_out = [] if ALL else [item for item in items if item.get_closest_marker("whole")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("whole")]


def pytest_runtest_setup() -> None:
    """Undo what a session of onnxruntime left behind, so that no test depends on those before it.

    session.set_denormal_as_zero switches the thread that opens the first session to flushing subnormal numbers, for
    good; hypothesis refuses to draw floats then.
    """
    if sys.platform == "linux" and _SMALLEST[0] * 1.0 == 0.0:
        ctypes.CDLL(None).fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV of <fenv.h>


@pytest.fixture(autouse=True, scope="module")
def _objects_of_other_modules() -> None:
    """Have collections pass over what earlier modules left: libraries and caches are a million objects and more.

    Without it a collection takes a second in the middle of a test, and finds the garbage of another module's tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _modules_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not count the tests' own modules as the code of a deployment: no other process has them."""
    own = loaded._own_modules
    monkeypatch.setattr(
        loaded, "_own_modules", lambda: (each for each in own() if not each[2].startswith(f"{_TESTS.parent}/"))
    )


@pytest.fixture(autouse=True, scope="module")
def _deployments_of_other_modules() -> Iterator[None]:
    """Forget a module's deployments: one of examples/, which stays on the path, would clash with a copy of its own."""
    before = dict(modules._claims)
    yield
    modules._claims.clear()
    modules._claims.update(before)


@pytest.fixture(scope="module")
def step_runner() -> Iterator[StepRunner]:
    """The steps of builds, as forks of one warm process for a module's tests."""
    with StepRunner() as runner:
        yield runner


@pytest.fixture(autouse=True)
def _modules_of_deployments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget what a test's deployments imported: the next test's modules have the same names and other files."""
    before = list(sys.path)
    yield
    # By where files are, and not by the deployments: some may be collected by now.
    base = f"{tmp_path_factory.getbasetemp()}{os.sep}"
    sys.path[:] = [folder for folder in sys.path if folder in before or not folder.startswith(base)]
    for name in set(sys.modules) - _LIBRARIES:
        if (modules.loaded_file(name) or "").startswith(base):
            del sys.modules[name]
        else:
            _LIBRARIES.add(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail an integration test that was skipped where servers must be there: a skip would look like a pass."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.get_closest_marker("integration"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a whole file of integration tests that was skipped where servers must be there."""
    report = yield
    if report.skipped and collector.path.is_relative_to(_INTEGRATION):
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get(REQUIRE_SERVERS) == "1":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\n{REQUIRE_SERVERS}=1: here this must run (scripts/install_servers.sh)"
