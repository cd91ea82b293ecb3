"""The pilot: a URL, an application that is started here, or the command of the manifest."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tailcut.common.redaction import without_secrets
from tailcut.errors import ManifestError, MissingExtra
from tailcut.ladder.process import ServerProcess, free_port
from tailcut.load.plan import parse_url
from tailcut.manifest import Manifest
from tailcut.parity.asking import Asker
from tailcut.parity.plan import ParityPlan, is_url
from tailcut.profiler.child_channel import Options
from tailcut.profiler.diagnosis import check_target, choose_path
from tailcut.profiler.launching import PilotProcess
from tailcut.profiler.recording.model_inputs import ModelCall

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Pilot:
    """A pilot that answers.

    Attributes:
        name: for the report.
        asker: posts to it.
        inputs: what it handed to its models since the last time; None where that cannot be seen.
    """

    name: str
    asker: Asker
    inputs: Callable[[], tuple[ModelCall, ...]] | None = None


@contextmanager
def open_pilot(plan: ParityPlan, manifest: Manifest, environment: Mapping[str, str], tell: Tell) -> Iterator[Pilot]:
    """Start the pilot where it does not run, and stop it in the end.

    Raises:
        ManifestError: there is no pilot to ask.
        ProfileError, StartError: it does not start.
        MissingExtra: uvicorn, which runs applications, is not installed.
    """
    if is_url(plan.pilot):
        url = _with_path(plan.pilot, plan.path)
        yield Pilot(without_secrets(url), _asker(url, plan))
    elif plan.pilot:
        with _application(plan, manifest, environment, tell) as pilot:
            yield pilot
    elif manifest.deployment.ladder.pilot:
        with _command(plan, manifest, environment, tell) as pilot:
            yield pilot
    else:
        raise ManifestError("no pilot is given", hint="give --pilot URL or module:app, or ladder.pilot in the manifest")


@contextmanager
def _application(plan: ParityPlan, manifest: Manifest, environment: Mapping[str, str], tell: Tell) -> Iterator[Pilot]:
    check_target(plan.pilot)
    if find_spec("uvicorn") is None:
        raise MissingExtra("uvicorn is not installed", hint="pip install 'tailcut[profile]'")
    tell(f"starting the pilot {plan.pilot}")
    options = Options(target=plan.pilot, report=0, profiled=False, inputs=True)
    with PilotProcess(options, directory=plan.directory, environment=environment) as process:
        ready = process.wait_ready(plan.ready_s, tell)
        known = manifest.deployment.ladder.pilot_path
        is_there = any(route.path == known and "POST" in route.methods for route in ready.routes)
        path = plan.path or (known if is_there else choose_path(ready.routes, "POST"))
        yield Pilot(plan.pilot, _asker(f"{process.url}{path}", plan), process.inputs)


@contextmanager
def _command(plan: ParityPlan, manifest: Manifest, environment: Mapping[str, str], tell: Tell) -> Iterator[Pilot]:
    ladder, port = manifest.deployment.ladder, free_port()
    filled = {"{port}": str(port), "{python}": sys.executable}
    command = [_filled(word, filled) for word in ladder.pilot]
    tell(f"starting the pilot: {' '.join(command)}")
    with tempfile.TemporaryDirectory(prefix="tailcut-parity-") as folder:
        process = ServerProcess(
            command, port, Path(folder) / "pilot.log", environment=environment, directory=manifest.directory, core=None
        )
        with process:
            process.wait_until_ready("/", timeout_s=plan.ready_s)
            url = f"http://127.0.0.1:{port}{plan.path or ladder.pilot_path}"
            yield Pilot("ladder.pilot", _asker(url, plan))


def _asker(url: str, plan: ParityPlan) -> Asker:
    return Asker(url, headers=plan.headers, timeout_s=plan.timeout_s)


def _with_path(url: str, path: str) -> str:
    target = parse_url(url)
    return f"{'https' if target.tls else 'http'}://{target.authority}{path}" if path else url


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
