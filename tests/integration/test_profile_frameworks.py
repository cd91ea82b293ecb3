"""What frameworks call for a request: the user's time is code wherever it is spent, and the frameworks' is theirs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.integration.profile_asking import Said

from tailcut.profiler.attribution.span_table import STAGES
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.records import Recording, Stage

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
_MS = 1_000_000

LAYERED = {
    "/plain": ("answer", b"3"),
    "/before": ("before", b"3"),
    "/after": ("Stamping.dispatch", b"3"),
    "/frozen": ("Frozen.__call__", b"3"),
    "/sending": ("Frozen.__call__.passing", b"3"),
    "/handled": ("refused", b'"refused"'),
    "/custom": ("Timed.get_route_handler.timed", b"3"),
    "/classy": ("Classy.post", b'"classy"'),
    "/mounted/it": ("mounted", b'"mounted"'),
    "/instance": ("Instance.__call__", b'"mounted"'),
    "/stream": ("pieces", b"piecepiecepiece"),
    "/generator": ("generate", b"0\n1\n2\n"),
}
UNHOOKED = {
    "/plain": (Stage.UNATTRIBUTED, "litestar"),
    "/thread": (Stage.CODE, "in_thread"),
    "/mine": (Stage.CODE, "features"),
    "/called": (Stage.HTTP, "GET http://else.example/x"),
}
"""Paths of an application of a framework without a hook, and the span that holds their time."""


def driven(folder: Path, module: str, targets: Sequence[str], paths: Sequence[str]) -> dict[tuple[str, str], Said]:
    """Call an application as a server would, in a process of its own, in which it is hooked."""
    for name in (module, "dozing"):
        shutil.copy(HERE / f"profile_{name}.py", folder / f"{name}.py")
    done = subprocess.run(
        [sys.executable, str(HERE / "profile_asking.py"), *targets, *paths],
        cwd=folder, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found = msgspec.msgpack.decode(done.stdout, type=list[Said])
    return {(one.application, one.path): one for one in found}


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Said]:
    folder = tmp_path_factory.mktemp("layered")
    return driven(folder, "layered", ["layered:app", "layered:outer"], list(LAYERED))


@pytest.fixture(scope="module")
def unhooked(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Said]:
    return driven(tmp_path_factory.mktemp("litestar"), "litestar_app", ["litestar_app:app"], list(UNHOOKED))


def stages(said: Said) -> dict[Stage, int]:
    """Nanoseconds per stage; sent, received and done as the application saw it."""
    one = said.request
    request = msgspec.structs.replace(one, intended_ns=one.entered_ns, sent_ns=one.entered_ns, done_ns=one.left_ns)
    found = attribute(Recording(target="", rate=1.0, duration_s=1.0, requests=(request,)))
    assert found.stage_ns.sum() == one.left_ns - one.entered_ns
    return dict(zip(STAGES, found.stage_ns[0].tolist(), strict=True))


def least_ns(said: Said) -> int:
    """What it timed itself, but for when its thread had no core: there a nap takes longer, and that is a wait.

    Half of it at least: what is all delay is no answer.
    """
    delayed_ns = sum(max(span.delay_ns, 0) for span in said.request.spans if span.parent >= 0)
    return max(said.naps_ns - delayed_ns, said.naps_ns // 2)


def astray(
    found: Mapping[tuple[str, str], Said], application: str, paths: Mapping[str, tuple[str, bytes]]
) -> list[str]:
    """Name the paths whose time is not where it was spent."""
    wrong = []
    for path in paths:
        said = found[application, path]
        took = stages(said)[Stage.CODE]
        if not 0.9 * least_ns(said) <= took <= 1.1 * said.naps_ns + _MS:
            wrong.append(f"{path}: {took / 1e6:.2f} of {said.naps_ns / 1e6:.2f} ms in {stages(said)}")
    return wrong


def named(said: Said) -> dict[str, int]:
    """How long spans of code were open, by label."""
    labels: dict[str, int] = {}
    for span in said.request.spans:
        if span.stage is Stage.CODE:
            labels[span.label] = labels.get(span.label, 0) + span.end_ns - span.start_ns
    return labels


def test_the_users_functions_in_fastapi_are_code(layered: dict[tuple[str, str], Said]) -> None:
    assert astray(layered, "layered:app", LAYERED) == []


def test_a_function_around_the_application_is_code_and_what_is_in_it_is_not(
    layered: dict[tuple[str, str], Said],
) -> None:
    """The planted time of the path itself comes on top of its own."""
    assert astray(layered, "layered:outer", LAYERED) == []
    assert stages(layered["layered:outer", "/plain"])[Stage.FRAMEWORK] > 0


def test_each_is_named_and_answers_as_it_would(layered: dict[tuple[str, str], Said]) -> None:
    for path, (label, body) in LAYERED.items():
        said = layered["layered:app", path]
        assert said.body == body, path
        assert named(said).get(label, 0) >= 0.9 * said.naps_ns, (path, named(said))
        assert said.notes == []


def test_a_streamed_reply_is_no_wait_for_the_body(layered: dict[tuple[str, str], Said]) -> None:
    """The server is asked all the while whether the client is still there."""
    took = stages(layered["layered:app", "/stream"])
    assert took[Stage.RECEIVE] < _MS
    assert took[Stage.CODE] > 8 * _MS


@pytest.mark.parametrize("path", UNHOOKED)
def test_of_a_framework_without_a_hook_threads_and_telemetry_are_seen(
    unhooked: dict[tuple[str, str], Said], path: str
) -> None:
    """The rest, its own work and the handlers on the event loop, is unattributed, and a note says so."""
    said = unhooked["litestar_app:app", path]
    stage, label = UNHOOKED[path]
    assert said.body.decode() == path.removeprefix("/")
    assert 0.9 * least_ns(said) <= stages(said)[stage] <= 1.1 * said.naps_ns + 5 * _MS, stages(said)
    assert label in [span.label for span in said.request.spans if span.stage is stage]
    assert not [span.label for span in said.request.spans if span.label.endswith("http send")]
    (note,) = said.notes
    assert note.startswith(
        "litestar has no hook: its own work, and your code that it runs on the event loop, are shown"
    )
