"""Puts the client's times and the server's together, request by request, by the number that each carried."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tailcut.load import Samples
from tailcut.profiler.records import Request


def match_requests(samples: Samples, start_ns: int, heard: Iterable[Request]) -> tuple[Request, ...]:
    """Give each measured request of the load what the server knows of it.

    Args:
        samples: the client's; times count from ``start_ns``.
        start_ns: of the monotonic clock.
        heard: the server's, in any order; a number that comes twice (a client that sent again) counts once.
    """
    server = {one.number: one for one in heard}
    found = []
    columns = zip(
        samples.intended_ns.tolist(),
        samples.sent_ns.tolist(),
        samples.done_ns.tolist(),
        samples.status.tolist(),
        strict=True,
    )
    for number, (intended_ns, sent_ns, done_ns, status) in enumerate(columns):
        if intended_ns < samples.measured_from_ns or status == 0:
            continue
        times = {
            "intended_ns": start_ns + intended_ns,
            "sent_ns": start_ns + sent_ns if sent_ns >= 0 else -1,
            "done_ns": start_ns + done_ns if done_ns >= 0 else -1,
            "status": status,
        }
        known = server.get(number)
        if known is None:
            found.append(Request(number=number, **times))
        else:
            found.append(msgspec.structs.replace(known, **times))
    return tuple(found)
