"""Announces each partition's lag, every so often."""

from __future__ import annotations

from seekpoint import events
from seekpoint.errors import KafkaUnavailable
from seekpoint.events import Announcer
from seekpoint.worker.assignment import WorkerAssignment


class LagSampler:
    """Announces the lag every ``interval`` seconds, by the watermarks that the client has."""

    def __init__(self, assignment: WorkerAssignment, interval: float, announce: Announcer) -> None:
        self._assignment, self._interval, self._announce = assignment, interval, announce
        self._due = 0.0

    def maintain(self, now: float) -> None:
        """Announce the lag where that is due."""
        if now < self._due:
            return
        self._due = now + self._interval
        try:
            lag, unknown = self._assignment.lag()
        except KafkaUnavailable as error:  # one partition without a leader keeps no other from being read
            self._announce(events.KafkaTrouble(error=str(error)))
            return
        self._announce(events.LagSampled(lag=lag, not_due=self._assignment.scheduler.not_due(), unknown=unknown))
