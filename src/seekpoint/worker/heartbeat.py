"""Keeps the group membership while one transaction takes long."""

from __future__ import annotations

import threading
from time import monotonic

from seekpoint import events
from seekpoint.events import Announcer
from seekpoint.kafka.client import Client


class Heartbeat:
    """Renews the group membership from a separate thread while one transaction takes long, up to a deadline.

    ``max_poll`` is ``max.poll.interval.ms`` in seconds. It consumes zero messages, which renews the membership without
    running a callback. So a rebalance waits, for ``Limits.transaction_age`` seconds at most.
    """

    def __init__(self, client: Client, max_poll: float, deadline: float, announce: Announcer) -> None:
        self._client, self._every, self._deadline, self._announce = client, max_poll / 3, deadline, announce
        self._busy_since: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seekpoint-heartbeat", daemon=True)
        self._thread.start()

    def __enter__(self) -> None:
        self._busy_since = monotonic()

    def __exit__(self, *_: object) -> None:
        self._busy_since = None

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(min(self._every / 4, 1.0)):
            since, now = self._busy_since, monotonic()
            if since is None or now - since > self._deadline or now - self._client.contact < self._every:
                continue
            if self._client.renew_membership():
                self._announce(events.MembershipRenewed())
