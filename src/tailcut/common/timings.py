"""The per-request record of stage times: the single source of every latency figure.

One record feeds the reply's Server-Timing header, the histograms behind /metrics, traces and the ladder's breakdown,
so they can never disagree. Times are nanoseconds of one monotonic clock.
"""

from __future__ import annotations

from enum import IntEnum, auto


class Stage(IntEnum):
    """A named step of the request path, in the order in which a request meets them."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    RECEIVE = auto()
    VALIDATE = auto()
    ADMIT = auto()
    ENTITY_CACHE = auto()
    FEATURES = auto()
    PREPROCESS = auto()
    TENSOR_CACHE = auto()
    QUEUE = auto()
    INFER = auto()
    POSTPROCESS = auto()
    ENCODE = auto()


STAGE_NAMES: tuple[str, ...] = tuple(stage.name.lower() for stage in Stage)
"""Names as they appear in Server-Timing, metrics and reports."""

_STAGES, _QUEUE, _INFER = len(Stage), int(Stage.QUEUE), int(Stage.INFER)  # plain numbers: the enum costs more

_TEMPLATES: dict[tuple[bool, ...], str] = {}
"""Server-Timing by which stages took time: about a dozen of 2**11 ever occur."""


class Timings:
    """Nanoseconds spent per stage by one request.

    ``lap`` closes the running stage: the time since the last lap goes to the stage it names, so nothing between two
    laps is lost or counted twice and the stages always sum to the total.
    """

    __slots__ = ("last_ns", "ns", "start_ns")

    def __init__(self, start_ns: int) -> None:
        self.start_ns = start_ns
        self.last_ns = start_ns
        self.ns = [0] * _STAGES

    def lap(self, stage: int, now_ns: int) -> None:
        """Give the time since the last lap to ``stage``."""
        self.ns[stage] += now_ns - self.last_ns
        self.last_ns = now_ns

    def waited(self, infer_ns: int, now_ns: int) -> None:
        """Give the time since the last lap to the infer stage as far as the model ran, and the rest to the queue.

        Waiting for an executor and waiting for the event loop to take the answer back are both queueing.
        """
        ns = self.ns
        ns[_QUEUE] += now_ns - self.last_ns - infer_ns
        ns[_INFER] += infer_ns
        self.last_ns = now_ns

    @property
    def total_ns(self) -> int:
        """Nanoseconds from the request's start to the last lap."""
        return self.last_ns - self.start_ns

    def server_timing(self) -> str:
        """Format as a Server-Timing header: a stage each that took time, then the total, ms with three decimals.

        Source: https://www.w3.org/TR/server-timing/ (``name;dur=milliseconds``).
        """
        # One template for all stages that took time: formatting them one by one would take twice as long.
        took = tuple(map(bool, self.ns))
        template = _TEMPLATES.get(took)
        if template is None:
            names = [name for name, shown in zip(STAGE_NAMES, took, strict=True) if shown]
            template = _TEMPLATES[took] = ", ".join([f"{name};dur=%.3f" for name in [*names, "total"]])
        return template % (*[ns / 1e6 for ns in self.ns if ns], (self.last_ns - self.start_ns) / 1e6)
