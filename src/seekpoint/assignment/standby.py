"""Outside the group, until the reload to this worker's version has ended: the older workers go on undisturbed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random

from seekpoint import events
from seekpoint.errors import StandsBy
from seekpoint.events import Announcer
from seekpoint.guard import passes
from seekpoint.ledger import Ledger
from seekpoint.policy import Backoff


class StandBy:
    """Looks, each ``Limits.idle_check`` seconds, whether the run is open; for one worker."""

    def __init__(self, ledger: Ledger, announce: Announcer, stopping: threading.Event) -> None:
        self._ledger, self._announce, self._stopping = ledger, announce, stopping
        self._chance = Random()  # noqa: S311 -- jitter

    def until_free(self, known: StandsBy | None = None) -> bool:
        """Return when no reload to this version is open; False if the end was asked for while one is.

        ``known`` is the one that a claim met. Without it, in the first look, an error of the database is raised, as at
        any start; a database that goes away later is waited for.
        """
        told = self._tell(None, known or self._ledger.stands_by())
        waits, wait, in_trouble = self._backoff(), self._ledger.limits.idle_check, False
        while told is not None:
            if self._stopping.wait(wait):
                return False
            try:
                found = self._ledger.stands_by()
                became = self._ledger.became_of(told.run) if found is None else None
            except Exception as error:
                if not passes(error):
                    raise
                in_trouble, wait = True, next(waits)
                self._announce(events.DatabaseTrouble(error=error, wait=wait))
                continue
            if in_trouble:
                self._announce(events.Recovered())
                waits, wait, in_trouble = self._backoff(), self._ledger.limits.idle_check, False
            told = self._tell(told, found, became)
        return True

    def _backoff(self) -> Iterator[float]:
        return Backoff().waits(self._chance)

    def _tell(
        self, told: StandsBy | None, found: StandsBy | None, became: tuple[str, str | None] | None = None
    ) -> StandsBy | None:
        """Say what is new; returns what is waited for from now on."""
        if found is None:
            if told is not None:
                state, error = became or ("gone", None)
                self._announce(events.TookOver(run=told.run, state=state, error=error))
        elif told is None or (told.run, told.state) != (found.run, found.state):
            self._announce(events.StoodBy(run=found.run, state=found.state, reason=str(found)))
        return found
