"""Picks the variant that answers a request."""

from __future__ import annotations

from time import perf_counter_ns

from tailcut.common.timings import Stage
from tailcut.errors import DeadlineExceeded, NotReady, Shed, TailcutError
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.served_variant import ServedVariant


class Router:
    """The loaded variants of a deployment that may answer. Owned by the event loop.

    A switch is one call of ``put`` on the event loop, so that a request sees the variants before it or those after it.

    Attributes:
        serving: answers.
        fallback: takes what ``serving`` has no room for; None where there is none (yet).
    """

    def __init__(self, serving: ServedVariant) -> None:
        self.serving = serving
        self.fallback: ServedVariant | None = None

    def put(self, serving: ServedVariant, fallback: ServedVariant | None = None) -> None:
        """Route requests to these variants from now on; those that were admitted stay where they are."""
        self.serving, self.fallback = serving, fallback

    @property
    def healthy(self) -> bool:
        """Whether at least one of the variants has an executor that is not stuck."""
        return self.serving.dispatcher.healthy or (self.fallback is not None and self.fallback.dispatcher.healthy)

    def admit(self, context: RequestContext, rows: int, *, recalls: bool = False) -> None:
        """Choose the variant that answers a request, which keeps it; refuse what none can answer.

        Args:
            recalls: whether a cache may have the answer: then ``context.refusal`` is set instead of raised where there
                is no room, and it is raised where the cache does not have it.

        Raises:
            DeadlineExceeded: the deadline has passed.
            Shed, NotReady: there is no room.
        """
        served, fallback = self.serving, None if context.is_exact else self.fallback
        context.served = served
        if served.name:
            context.variant = served.name
        now_ns = perf_counter_ns()
        if now_ns >= context.deadline_ns:
            raise DeadlineExceeded("the deadline passed before the request was admitted", hint="send a longer timeout")
        if fallback is not None and not served.dispatcher.healthy:
            # It does not wait for the next executor where the fallback can answer.
            if _takes(fallback, context, rows):
                context.timings.lap(Stage.ADMIT, now_ns)
                return
            fallback = None  # asked, and once is enough
        try:
            served.dispatcher.check_room(rows, context.deadline_ns, priority=context.priority, tenant=context.tenant)
        except (Shed, NotReady) as error:
            if fallback is None or not _takes(fallback, context, rows):
                if not recalls:
                    raise
                context.refusal = error
        context.timings.lap(Stage.ADMIT, now_ns)

    def refused_unread(self, now_ns: int) -> TailcutError | None:
        """Return why a request of the usual kind is shed before its body is read; see ``Dispatcher.refused_unread``.

        None where a fallback may answer it.
        """
        return None if self.fallback is not None else self.serving.dispatcher.refused_unread(now_ns)


def _takes(fallback: ServedVariant, context: RequestContext, rows: int) -> bool:
    """Give a request to the fallback; False where there is no room either."""
    try:
        fallback.dispatcher.check_room(rows, context.deadline_ns, priority=context.priority, tenant=context.tenant)
    except (Shed, NotReady):
        return False
    context.served = fallback
    context.variant = fallback.name
    return True
