"""Sources that fail, in the log: a line at the beginning, one a minute meanwhile, and one when they answer again.

A source may fail for one key and answer for all others: its outage is over when it answers, and no call has failed for
five seconds.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tailcut.common.redaction import without_secrets
from tailcut.features.entry import FetchFailure
from tailcut.features.groups import Group

_log = logging.getLogger("tailcut.features")

_INTERVAL_S = 60.0
_QUIET_S = 5.0
"""Without a failure for so long, a source that answers has no outage any more."""

DATABASE = "features.database"


@dataclass(slots=True)
class _Outage:
    """One outage; ``answered`` are calls between its failures, ``since`` those after the latest one."""

    began_s: float
    told_s: float
    failed_s: float
    failed: int = 0
    answered: int = 0
    since: int = 0


class Outages:
    """Sources that fail now. A database that cannot be reached is one, however many groups ask it.

    Args:
        database: its URL; empty where no group has one.
    """

    def __init__(self, database: str) -> None:
        self._database = f"{DATABASE} {without_secrets(database)}"
        self._outages: dict[str, _Outage] = {}

    def explains(self, group: Group) -> bool:
        """Whether a call of this group that is not answered in time belongs to an outage of the database."""
        outage = self._outages.get(self._database)
        return outage is not None and not outage.since and _asks_database(group)

    def failed(self, group: Group, failure: FetchFailure, now_s: float) -> None:
        """Note a call that failed as a whole.

        Args:
            now_s: by the monotonic clock.
        """
        place = self._database if failure.unreachable else _place(group)
        outage = self._outages.get(place)
        if outage is not None and outage.since and now_s - outage.failed_s >= _QUIET_S:
            self._end(place, outage)
            outage = None
        if outage is None:
            outage = self._outages[place] = _Outage(now_s, now_s, now_s)
            _log.warning(
                "%s %s: %s; cached values are served for their ttl and stale_for, then requests get %s; %s",
                place,
                "cannot be reached" if failure.unreachable else "fails",
                failure.message,
                "500 feature_failed" if failure.misfit else "503 feature_unavailable",
                _way_out(failure),
                exc_info=failure.cause,
            )
        outage.answered += outage.since
        outage.since = 0
        outage.failed += 1
        outage.failed_s = now_s
        if now_s - outage.told_s >= _INTERVAL_S:
            outage.told_s = now_s
            _log.warning("%s has failed for %s, the latest: %s", place, _figures(outage), failure.message)

    def answered(self, group: Group, now_s: float) -> None:
        """Note a call that was answered."""
        if not self._outages:
            return
        for place in (_place(group), *((self._database,) if _asks_database(group) else ())):
            outage = self._outages.get(place)
            if outage is not None:
                outage.since += 1
                if now_s - outage.failed_s >= _QUIET_S:
                    self._end(place, outage)

    def _end(self, place: str, outage: _Outage) -> None:
        del self._outages[place]
        _log.warning("%s answers again: it had failed for %s", place, _figures(outage))


def _figures(outage: _Outage) -> str:
    """Return how long it lasted and how many calls failed; of how many, where others were answered meanwhile."""
    total = outage.failed + outage.answered
    failed = f"{outage.failed} of {total}" if outage.answered else str(outage.failed)
    return f"{outage.failed_s - outage.began_s:.1f} s ({failed} call{'s' if total > 1 else ''})"


def _asks_database(group: Group) -> bool:
    return bool(group.spec.sql or group.spec.preload_sql)


def _way_out(failure: FetchFailure) -> str:
    if failure.unreachable:
        return "start the database, or correct features.database"
    if failure.hint and not failure.timed_out:
        return failure.hint
    return "check its source, or raise features.timeout" if failure.timed_out else "fix its source"


def _place(group: Group) -> str:
    return f'feature group "{group.name}"'
