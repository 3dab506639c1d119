"""Keeps a worker out of its group while it may not claim, because of a reload to its version or of other declared
tables.

The group's other workers continue.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

from seekpoint import events
from seekpoint.backoff import Backoff
from seekpoint.errors import DeclarationDiffers, StandbyRequired
from seekpoint.events import Announcer
from seekpoint.ledger import GroupLedger
from seekpoint.pipeline.pipeline import Pipeline
from seekpoint.postgres.sqlstates import is_transient

Reason: TypeAlias = StandbyRequired | DeclarationDiffers
"""Why a worker waits outside the group, as the error that its claim would raise."""


class Standby:
    """Checks every ``Limits.idle_check`` seconds whether a worker may join its group."""

    def __init__(self, ledger: GroupLedger, pipeline: Pipeline, announce: Announcer, stopping: threading.Event) -> None:
        self._ledger, self._pipeline, self._announce, self._stopping = ledger, pipeline, announce, stopping

    def until_free(self, known: Reason | None = None) -> bool:
        """Wait until a claim would be accepted; False if the worker was stopped before that.

        ``known`` is the refusal of an earlier claim. Also waits while the database does not answer. Raises
        HandlerOutdated if this worker's declaration was replaced.
        """
        announced, wait = None, 0.0
        if known is not None:
            announced, wait = self._announce_change(None, known), self._ledger.limits.idle_check
        waits, in_trouble = Backoff().waits(), False
        while True:
            if self._stopping.wait(wait):
                return False
            try:
                reason = self._ledger.standby() or self._ledger.differs(self._pipeline.topics)
                became = (
                    self._ledger.outcome_of(announced.run)
                    if reason is None and isinstance(announced, StandbyRequired)
                    else None
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
            if (announced := self._announce_change(announced, reason, became)) is None:
                return True
            wait = self._ledger.limits.idle_check

    def _announce_change(
        self, announced: Reason | None, reason: Reason | None, became: tuple[str, str | None] | None = None
    ) -> Reason | None:
        """Announce a changed reason to wait; returns the new one."""
        if isinstance(announced, StandbyRequired) and not isinstance(reason, StandbyRequired):
            state, error = became or ("gone", None)
            self._announce(events.StandbyEnded(run=announced.run, state=state, error=error))
        match reason:
            case StandbyRequired() if not isinstance(announced, StandbyRequired) or (
                announced.run,
                announced.state,
            ) != (
                reason.run,
                reason.state,
            ):
                self._announce(events.OnStandby(run=reason.run, state=reason.state, reason=str(reason)))
            case DeclarationDiffers() if str(announced) != str(reason):
                self._announce(
                    events.DeclarationRefused(
                        topic=reason.topic, stored=reason.stored, declared=reason.declared, reason=str(reason)
                    )
                )
        return reason
