"""Which tenants asked lately, and how many rows each may still ask for: a bucket of tokens each."""

from __future__ import annotations

from collections import OrderedDict

_ACTIVE_NS = 2_000_000_000
_MOST = 1024
"""A tenant is there for two seconds after its last request; so many are remembered."""


class Tenants:
    """Remembers tenants.

    Args:
        rows_per_s: most rows a second of one, a second's worth at once; 0: no limit.
    """

    def __init__(self, rows_per_s: float = 0.0) -> None:
        self.rows_per_s = rows_per_s
        self._known: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Tenant -> when it last asked, and the rows that it could still ask for, then."""

    def asks(self, now_ns: int, tenant: str, rows: int) -> float:
        """Record a request; return the nanoseconds until its tenant may ask for so many rows, 0 for now."""
        rate, most = self.rows_per_s, max(self.rows_per_s, 1.0)
        asked_ns, tokens = self._known.get(tenant, (now_ns, most))
        tokens = min(tokens + rate * (now_ns - asked_ns) / 1e9, most)
        self._known[tenant] = now_ns, tokens
        self._known.move_to_end(tenant)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        short = min(rows, most) - tokens
        return short / rate * 1e9 if rate and short > 0 else 0.0

    def charge(self, tenant: str, rows: int) -> None:
        """Take the rows of a request that is let in from what its tenant may ask for."""
        asked_ns, tokens = self._known[tenant]
        # Below zero where one request brings more than a second's worth: it is paid for by waiting afterwards.
        self._known[tenant] = asked_ns, tokens - rows

    def others(self, now_ns: int, tenant: str) -> bool:
        """Whether another tenant asked lately."""
        if len(self._known) < 2:
            return False
        for other in reversed(self._known):
            if other != tenant:
                return now_ns - self._known[other][0] <= _ACTIVE_NS
        return False
