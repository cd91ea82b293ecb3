"""What a load run does: one frozen record, checked before the first request."""

from __future__ import annotations

from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt

from tailcut.common.redaction import without_secrets
from tailcut.common.slo import Objectives
from tailcut.errors import LoadTestError
from tailcut.load.arrivals import MAX_SPAN_S, Kind, Offsets, Pace, offsets_ns, trace_ns
from tailcut.load.replay import is_replay, read_arrivals, read_replay

DEFAULT_RATE = 100.0


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One open-loop run.

    Args:
        url: where requests go, http:// or https://; payloads may carry their own path.
        rate: requests per second; None where ``ramp`` or ``trace`` says it.
        ramp: requests per second at the start and at the end.
        trace: file with one send time per line, in seconds, or a request log.
        arrivals: ``poisson`` or ``constant``.
        duration_s: seconds that are measured; a trace has its own.
        speed: how many times as fast as the trace's own times.
        warmup_s: seconds before them that are sent but not measured (of a trace: its first seconds).
        payloads: a .jsonl file, a request log, or ``module:callable`` of (seed) that yields bodies or (path, body);
            empty: no body.
        method: HTTP method; empty: POST with payloads, GET without.
        headers: (name, value) pairs sent with each request.
        numbered: name of a header that carries each request's number in the order of sending; empty: none does.
        timeout_s: after this long from its intended time a request is given up.
        connections: most connections at once.
        slo: objectives that the run is judged by.
        pid: server process whose CPU time, with its children's, is measured; 0: none.
        seed: of arrivals and payloads.
        payload_seed: of payloads; None: ``seed``.
        payload_offset: payloads left out at the start, so that one run goes on where another ended.
    """

    url: str
    rate: float | None = None
    ramp: tuple[float, float] | None = None
    trace: str = ""
    speed: float = 1.0
    arrivals: Kind = "poisson"
    duration_s: float = 30.0
    warmup_s: float = 2.0
    payloads: str = ""
    method: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    numbered: str = ""
    timeout_s: float = 1.0
    connections: int = 512
    slo: Objectives = Objectives()
    pid: int = 0
    seed: int = 0
    payload_seed: int | None = None
    payload_offset: int = 0

    @property
    def http_method(self) -> str:
        """The method that is sent."""
        return self.method.upper() or ("POST" if self.payloads else "GET")

    @property
    def trace_flag(self) -> str:
        """The flag that gave the times: with ``--replay`` the bodies are of the same file."""
        return "--replay" if self.trace and self.trace == self.payloads else "--trace"


class TargetUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A URL taken apart."""

    host: str
    port: int
    path: str
    tls: bool

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_url(url: str) -> TargetUrl:
    """Take an http or https URL apart.

    Raises:
        LoadTestError: another scheme, no host, a user or password, a port out of range, or characters that are not
            encoded.
    """
    hint = "give a full URL such as http://127.0.0.1:8700/predict/model"
    shown = repr(without_secrets(url))
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise LoadTestError(f"the URL {shown} is malformed: {error}", hint=hint) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise LoadTestError(f"the URL {shown} is not an http URL with a host", hint=hint)
    if parts.username is not None:
        raise LoadTestError(
            f"the URL {shown} contains a user or a password, which would not be sent",
            hint="give --header 'Authorization: ...'",
        )
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise LoadTestError(
            f"the URL {shown} has a space or a non-ASCII character",
            hint="percent-encode it, for example %20 for a space",
        )
    tls = parts.scheme == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return TargetUrl(host=parts.hostname, port=port or (443 if tls else 80), path=path, tls=tls)


def check_plan(plan: LoadPlan) -> None:
    """Refuse what cannot run.

    Raises:
        LoadTestError: contradicting paces, or a value that is out of range.
    """
    paces = {"--rate": plan.rate, "--ramp": plan.ramp, plan.trace_flag: plan.trace}
    given = [flag for flag, value in paces.items() if value]
    if len(given) > 1:
        raise LoadTestError(f"{' and '.join(given)} exclude each other", hint=f"give one of {', '.join(given)}")
    if plan.rate is not None and not 0 < plan.rate < inf:
        raise LoadTestError(f"--rate is {plan.rate:g} requests/s", hint="give a finite rate above 0")
    if not 0 < plan.speed < inf:
        raise LoadTestError(f"--speed is {plan.speed:g}", hint="give a finite number above 0; 2 is twice as fast")
    if plan.seed < 0:
        raise LoadTestError(f"--seed is {plan.seed}", hint="give a whole number of at least 0")
    if plan.connections < 1:
        raise LoadTestError(f"--connections is {plan.connections}", hint="allow at least 1")
    if plan.timeout_s <= 0:
        raise LoadTestError(f"--timeout is {plan.timeout_s:g} s", hint="give a timeout above 0, such as 1s")
    if plan.http_method == "HEAD":
        raise LoadTestError("HEAD requests are not supported", hint="use GET or POST")
    for name, value in plan.headers:
        if any(char in name + value for char in "\r\n") or not name or name.lower() in _OWN_HEADERS:
            raise LoadTestError(
                f"the header {name!r}: {value!r} cannot be sent",
                hint=f"remove line breaks; {', '.join(sorted(_OWN_HEADERS))} cannot be set",
            )


_OWN_HEADERS = {"host", "content-length", "transfer-encoding", "connection"}


def intended_times(plan: LoadPlan) -> Offsets:
    """Compute every intended send time, in nanoseconds from the start, warm-up included.

    Raises:
        LoadTestError: the pace or the trace is wrong.
    """
    if is_replay(plan.trace):
        # Where the bodies are the log's, too, those that cannot be sent again are left out of both.
        read = read_replay if plan.payloads == plan.trace else read_arrivals
        return _sped(plan, read(plan.trace).times_s())
    if plan.trace:
        return _sped(plan, read_trace(Path(plan.trace)))
    rate = plan.rate or DEFAULT_RATE
    start_rate, end_rate = plan.ramp or (rate, rate)
    pace = Pace(
        start_rate=start_rate,
        end_rate=end_rate,
        duration_s=plan.duration_s,
        warmup_s=plan.warmup_s,
        kind=plan.arrivals,
    )
    times = offsets_ns(pace, plan.seed)
    if times.size == 0:
        raise LoadTestError("the run would send no request", hint="raise the rate or the duration")
    return times


def _sped(plan: LoadPlan, times_s: npt.NDArray[np.float64]) -> Offsets:
    lasts_s = float(times_s[-1] - times_s[0]) if times_s.size else 0.0
    if plan.speed < 1 and lasts_s / plan.speed > MAX_SPAN_S:
        raise LoadTestError(
            f"--speed {plan.speed:g} makes the arrivals of {plan.trace} last {lasts_s / plan.speed:g} s; the limit is "
            f"{MAX_SPAN_S:g} s",
            hint=f"give a higher speed; with --speed 1 they last {lasts_s:g} s",
        )
    return trace_ns(times_s / plan.speed)


def read_trace(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Read send times in seconds: the first column of each line; '#' starts a comment.

    Raises:
        LoadTestError: the file is missing, or a line does not start with a number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LoadTestError(f"cannot read the trace {path}: {error}", hint="give a text file of times") from None
    times: list[float] = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            times.append(float(text.split(",")[0]))
        except ValueError:
            raise LoadTestError(
                f"line {number} of {path} is {line!r}, expected a number of seconds",
                hint="write one arrival time per line, in seconds since the start, such as 0.25",
            ) from None
    return np.asarray(times, dtype=np.float64)
