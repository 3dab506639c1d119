"""Announces each partition's lag at intervals."""

from __future__ import annotations

from seekpoint import events
from seekpoint.errors import KafkaUnavailable
from seekpoint.events import Announcer
from seekpoint.worker.assignment import WorkerAssignment


class LagSampler:
    """Announces the lag every ``interval`` seconds; asks the brokers for the ends of the logs."""

    def __init__(self, assignment: WorkerAssignment, interval: float, announce: Announcer) -> None:
        self._assignment, self._interval, self._announce = assignment, interval, announce
        self._due, self._is_answered = 0.0, True

    def maintain(self, now: float) -> None:
        """Announce the lag, if it is due."""
        if now < self._due:
            return
        self._due = now + self._interval
        try:
            lag, unknown = self._assignment.lag()
        except KafkaUnavailable as error:  # a partition without a leader must not stop reading the others
            # Announce it only once: the loop announces Recovered soon after, so readiness would change with each
            # sample.
            if self._is_answered:
                self._announce(events.KafkaTrouble(error=str(error)))
            self._is_answered = False
            return
        self._is_answered = True
        self._announce(events.LagSampled(lag=lag, not_due=self._assignment.scheduler.not_due(), unknown=unknown))
