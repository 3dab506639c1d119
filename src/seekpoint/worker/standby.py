"""Outside the group, while this worker may not claim: a reload to its version is open, or its declared tables differ.

The group's workers continue undisturbed.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TypeAlias

from seekpoint import events
from seekpoint.backoff import Backoff
from seekpoint.errors import DeclarationDiffers, StandbyRequired
from seekpoint.events import Announcer
from seekpoint.ledger import Ledger
from seekpoint.postgres.sqlstates import is_transient

Reason: TypeAlias = StandbyRequired | DeclarationDiffers
"""Why a worker waits outside the group, as the error that its claim would meet."""


class Standby:
    """Looks, each ``Limits.idle_check`` seconds, whether the worker may join its group; for one worker."""

    def __init__(self, ledger: Ledger, topics: Collection[str], announce: Announcer, stopping: threading.Event) -> None:
        self._ledger, self._topics, self._announce, self._stopping = ledger, topics, announce, stopping

    def until_free(self, known: Reason | None = None) -> bool:
        """Return when a claim would be let in; False if the end was asked for before.

        ``known`` is the one that a claim met. A database that is away is waited for. Raises HandlerOutdated where this
        worker's declaration was replaced.
        """
        told, wait = None, 0.0
        if known is not None:
            told, wait = self._announce_change(None, known), self._ledger.limits.idle_check
        waits, in_trouble = Backoff().waits(), False
        while True:
            if self._stopping.wait(wait):
                return False
            try:
                found = self._ledger.standby() or self._ledger.differs(self._topics)
                became = (
                    self._ledger.outcome_of(told.run) if found is None and isinstance(told, StandbyRequired) else None
                )
            except Exception as error:
                if not is_transient(error):
                    raise
                in_trouble, wait = True, next(waits)
                self._announce(events.DatabaseTrouble(error=error, wait=wait))
                continue
            if in_trouble:
                self._announce(events.Recovered())
                waits, in_trouble = Backoff().waits(), False
            if (told := self._announce_change(told, found, became)) is None:
                return True
            wait = self._ledger.limits.idle_check

    def _announce_change(
        self, told: Reason | None, found: Reason | None, became: tuple[str, str | None] | None = None
    ) -> Reason | None:
        """Say what is new; returns what is waited for from now on."""
        if isinstance(told, StandbyRequired) and not isinstance(found, StandbyRequired):
            state, error = became or ("gone", None)
            self._announce(events.StandbyEnded(run=told.run, state=state, error=error))
        match found:
            case StandbyRequired() if not isinstance(told, StandbyRequired) or (told.run, told.state) != (
                found.run,
                found.state,
            ):
                self._announce(events.OnStandby(run=found.run, state=found.state, reason=str(found)))
            case DeclarationDiffers() if str(told) != str(found):
                self._announce(
                    events.DeclarationRefused(
                        topic=found.topic, stored=found.stored, declared=found.declared, reason=str(found)
                    )
                )
        return found
