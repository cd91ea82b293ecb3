"""Drive one run: send each request at its time, watch, and hand out samples."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import ssl
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

import msgspec
import uvloop

from tailcut.common.certificates import certificate_hint
from tailcut.common.slo import hopeless
from tailcut.errors import LoadTestError
from tailcut.load.client import LoadClient
from tailcut.load.payloads import build_requests
from tailcut.load.plan import LoadPlan, check_plan, intended_times, parse_url
from tailcut.load.recorder import LoadRecorder
from tailcut.load.result import LoadResult
from tailcut.load.samples import Samples
from tailcut.load.summary import RunFacts, summarise_run
from tailcut.system.cpu_time import cpu_seconds

_TICK_S = 0.005
_WATCH_S = 0.1
_BURST = 64
_LEAD_NS = 20_000_000
_NO_HANDSHAKE = ssl.SSLError, ConnectionResetError, ConnectionAbortedError


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A run so far."""

    elapsed_s: float
    total_s: float
    sent: int
    planned: int
    outstanding: int
    failed: int
    late: int


OnProgress = Callable[[Progress], None]


def run(plan: LoadPlan, *, on_progress: OnProgress | None = None) -> LoadResult:
    """Run a load plan to its end and work out its figures.

    Args:
        plan: what to do.
        on_progress: called about ten times a second; it runs between sends, so it must be quick.

    Raises:
        LoadTestError: the plan is wrong, or nobody listens at the URL.
    """
    samples, facts = measure(plan, on_progress=on_progress)
    return summarise_run(plan, samples, facts)


def measure(
    plan: LoadPlan, *, on_progress: OnProgress | None = None, stop_hopeless: bool = False
) -> tuple[Samples, RunFacts]:
    """Run a load plan and hand out the raw samples.

    Args:
        plan: what to do.
        on_progress: as in ``run``.
        stop_hopeless: end the run as soon as an objective can no longer be met.

    Raises:
        LoadTestError: as in ``run``.
    """
    check_plan(plan)
    offsets = intended_times(plan)
    window_s = plan.duration_s
    if plan.trace:
        window_s = float(offsets[-1]) / 1e9 - plan.warmup_s
        if window_s <= 0:
            lasts_s = float(offsets[-1]) / 1e9
            raise LoadTestError(
                f"the arrivals of {plan.trace} last {lasts_s:g} s, and --warmup is {plan.warmup_s:g} s",
                hint="lower --warmup, for example to 0s"
                if lasts_s > 0
                else "a measurement needs requests at two times at least: log more requests",
            )
    requests = build_requests(plan, parse_url(plan.url), int(offsets.size))
    recorder = LoadRecorder(offsets, int(plan.warmup_s * 1e9), plan.slo)
    drive = _Drive(plan, recorder, requests, window_s, on_progress, stop_hopeless)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, _without_gc():
        runner.run(drive.run())
    return recorder.samples(), drive.facts()


class _Drive:
    """One run in progress. Lives on one event loop."""

    def __init__(
        self,
        plan: LoadPlan,
        recorder: LoadRecorder,
        requests: list[bytes],
        window_s: float,
        on_progress: OnProgress | None,
        stop_hopeless: bool,
    ) -> None:
        self._plan = plan
        self._recorder = recorder
        self._window_s = window_s
        self._on_progress = on_progress
        self._stop_hopeless = stop_hopeless
        self._client = LoadClient(
            parse_url(plan.url),
            requests,
            recorder,
            timeout_ns=int(plan.timeout_s * 1e9),
            cap=plan.connections,
        )
        self._next = 0
        self._stopped = ""
        self._cpu_s: float | None = None
        self._own_cpu_share = 0.0
        self._seen_s = window_s
        self._started_at = ""

    async def run(self) -> None:
        """Send everything, and wait until each request has ended or been given up."""
        loop = asyncio.get_running_loop()
        await self._probe()
        self._timer = FdTimer(loop, self._send_due)
        self._started_at = datetime.now(UTC).isoformat(timespec="seconds")
        recorder = self._recorder
        recorder.start_ns = time.monotonic_ns() + _LEAD_NS
        self._timer.arm(recorder.start_ns + recorder.intended[0])
        try:
            await self._watch()
        finally:
            self._timer.close()
            self._client.close()

    def facts(self) -> RunFacts:
        """Say what the samples do not hold."""
        recorder = self._recorder
        return RunFacts(
            started_at=self._started_at,
            start_ns=recorder.start_ns,
            window_s=self._seen_s,
            cpu_s=self._cpu_s,
            generator_cpu_share=self._own_cpu_share,
            connections_opened=recorder.connections_opened,
            sent_again=recorder.sent_again,
            delayed_by_cap=recorder.delayed_by_cap,
            max_outstanding=recorder.max_outstanding,
            bodies={str(status): body for status, body in recorder.bodies.items()},
            stopped=self._stopped,
        )

    def _send_due(self) -> None:
        # Bounded, so that a backlog of due requests does not keep replies from being read.
        recorder, client = self._recorder, self._client
        intended, start_ns, count = recorder.intended, recorder.start_ns, recorder.count
        index, last = self._next, min(self._next + _BURST, recorder.count)
        while index < last and start_ns + intended[index] <= time.monotonic_ns():
            client.send(index)
            index += 1
        self._next = index
        if index < count:
            self._timer.arm(start_ns + intended[index])

    async def _watch(self) -> None:
        recorder, client = self._recorder, self._client
        window = _CpuWindow(self._plan.pid, recorder.start_ns + recorder.measured_from_ns)
        next_look_s = 0.0
        while recorder.finished < recorder.count and not self._stopped:
            await asyncio.sleep(_TICK_S)
            now_ns = time.monotonic_ns()
            client.expire(now_ns)
            window.observe(now_ns)
            elapsed_s = (now_ns - recorder.start_ns) / 1e9
            if elapsed_s >= next_look_s:
                next_look_s = elapsed_s + _WATCH_S
                self._look(now_ns, elapsed_s)
        ended_ns = time.monotonic_ns()
        window.observe(ended_ns, ended=True)
        self._cpu_s, self._own_cpu_share = window.cpu_s, window.own_cpu_share
        if self._stopped:
            self._seen_s = max((ended_ns - recorder.start_ns - recorder.measured_from_ns) / 1e9, 1e-3)

    def _look(self, now_ns: int, elapsed_s: float) -> None:
        recorder, client = self._recorder, self._client
        if self._stop_hopeless:
            tally = recorder.tally_now(now_ns, client.oldest_unfinished(self._next))
            self._stopped = hopeless(self._plan.slo, tally)
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    elapsed_s=elapsed_s,
                    total_s=self._plan.warmup_s + self._window_s,
                    sent=self._next,
                    planned=recorder.count,
                    outstanding=client.outstanding,
                    failed=recorder.tally.failed,
                    late=max(recorder.tally.late, default=0),
                )
            )

    async def _probe(self) -> None:
        # One connection before the clock starts: a wrong address is an error, not a run full of them.
        try:
            async with asyncio.timeout(max(5.0, self._plan.timeout_s)):
                await self._client.open_one()
        except (OSError, TimeoutError) as error:
            raise LoadTestError(
                f"cannot connect to {self._plan.url}: {str(error) or 'no answer'}", hint=self._way_out(error)
            ) from error

    def _way_out(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return certificate_hint(error.verify_code, "SSL_CERT_FILE=FILE")
        if self._plan.url.startswith("https:") and isinstance(error, _NO_HANDSHAKE):
            return "check that the server uses TLS; for plain HTTP write http://"
        return "check that the server runs at this address"


class _CpuWindow:
    """CPU time between the start of the measured window and its end, or the last reply if that comes later."""

    def __init__(self, pid: int, from_ns: int) -> None:
        self._pid = pid
        self._from_ns = from_ns
        self._begun: tuple[float, float, int] | None = None
        self.cpu_s: float | None = None
        self.own_cpu_share = 0.0

    def observe(self, now_ns: int, *, ended: bool = False) -> None:
        """Sample at the window's start and, with ``ended``, at its end."""
        if self._begun is None and now_ns >= self._from_ns:
            self._begun = self._sample(now_ns)
        if ended and self._begun is not None:
            server_s, own_s, then_ns = self._begun
            self.own_cpu_share = (time.process_time() - own_s) / max((now_ns - then_ns) / 1e9, 1e-9)
            # A server that died under load takes its CPU figure with it, and no other.
            with suppress(LoadTestError):
                self.cpu_s = cpu_seconds(self._pid) - server_s if self._pid else None

    def _sample(self, now_ns: int) -> tuple[float, float, int]:
        return (cpu_seconds(self._pid) if self._pid else 0.0, time.process_time(), now_ns)


@contextmanager
def _without_gc() -> Iterator[None]:
    # A collection in the middle of a run would stop sending for milliseconds.
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


# -- Timers: event loops round theirs to a millisecond, Linux's timerfd wakes within tens of microseconds --


_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o2004000
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_int64), ("tv_nsec", ctypes.c_int64))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class FdTimer:
    """A Linux timerfd watched by the event loop."""

    def __init__(self, loop: AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop = loop
        self._spec = _Itimerspec()
        self._spec_ref = ctypes.byref(self._spec)
        self._callback = callback
        self._armed = False
        loop.add_reader(self._fd, self._on_ready)

    def arm(self, at_ns: int) -> None:
        """Set the time of the next call. Setting the timer also clears a pending expiry, so it is never read."""
        self._armed = True
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(max(at_ns, 1), 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, self._spec_ref, None)

    def close(self) -> None:
        """Stop and free the timer."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_ready(self) -> None:
        self._armed = False
        self._callback()
        if not self._armed and self._fd >= 0:
            # The expiry stays readable until it is read or the timer is set: a loop would spin on it.
            self._spec.it_value.tv_sec = self._spec.it_value.tv_nsec = 0
            self._libc.timerfd_settime(self._fd, 0, self._spec_ref, None)
