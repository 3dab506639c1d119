"""Produces the flights of 2013 at once, then those of the following years at a fixed rate, until it is stopped."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Self

import msgspec

from demo.flights import Flight
from demo.reload.handling import TOPIC
from demo.wire import Wire
from demo.worker_pool import DemoFailed

TICK = 0.02  # seconds between two groups of records

Log = Mapping[int, Mapping[int, Flight]]  # partition -> offset -> flight


class Load:
    """Produces flights, and remembers the offset of each. The end of the block stops it."""

    def __init__(self, bootstrap: str, year: Sequence[Flight]) -> None:
        self._wire = Wire(bootstrap, TOPIC)
        self._year = year
        self._flights = later(year)
        self._encode = msgspec.json.Encoder().encode
        self._log: defaultdict[int, dict[int, Flight]] = defaultdict(dict)
        self._heard = threading.Condition()
        self.sent = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def send(self, count: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Produce the next ``count`` flights, and wait until the broker has them."""
        self._send(count, progress)
        self._wire.flush()

    def start(self, rate: int) -> None:
        """Produce ``rate`` flights a second from now on."""
        self._thread = threading.Thread(target=self._go_on, args=(rate,), name="load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop producing, and wait until the broker has all flights; raises the error that ended producing early."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        self._wire.flush()

    def log_to(self, ends: Mapping[int, int], patience: float) -> Log:
        """The flights that were sent, all before these offsets: workers may commit before the producer's reports come.

        Raises DemoFailed if a report is missing after ``patience`` seconds.
        """
        with self._heard:
            if not self._heard.wait_for(lambda: self._behind(ends) is None, patience):
                if self._error is not None:
                    raise self._error
                raise DemoFailed(
                    f"waited {patience:.0f} s for the delivery reports of {TOPIC}-{self._behind(ends)}, in vain"
                )
        return self._log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _go_on(self, rate: int) -> None:
        began, sent = monotonic(), 0
        try:
            while not self._stop.wait(TICK):
                due = int((monotonic() - began) * rate)
                self._send(due - sent)
                sent = due
        except BaseException as error:  # noqa: BLE001 -- raised by stop()
            self._error = error

    def _send(self, count: int, progress: Callable[[int], None] = lambda _: None) -> None:
        for _ in range(count):
            flight = next(self._flights)
            # Carrier and number: enough keys for all partitions to get about the same number of records.
            self._wire.send(self._encode(flight), f"{flight.carrier}{flight.flight}", heard=partial(self._keep, flight))
            self.sent += 1
            progress(self.sent)

    def _keep(self, flight: Flight, partition: int, offset: int) -> None:
        with self._heard:
            self._log[partition][offset] = flight
            self._heard.notify_all()

    def _behind(self, ends: Mapping[int, int]) -> int | None:
        """A partition with missing reports, or None. Reports come in order, and no one else writes to the topic."""
        return next((partition for partition, end in ends.items() if len(self._log[partition]) < end), None)


def later(year: Sequence[Flight]) -> Iterator[Flight]:
    """The flights of a year, then the same ones in each following year, with ids that continue."""
    yield from year
    number, since = len(year), 0
    while True:
        since += 1
        for flight in year:
            number += 1
            yield msgspec.structs.replace(flight, id=number, year=flight.year + since)
