"""How records are broken, and what must become of each. No I/O; the same seed breaks the same records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from demo.flights import Flight
from seekpoint.admin import Cause

ONE_IN = 1_000
SOUND = 500  # the first records, none of them broken: each common carrier has a flight that is in the table
ID = "id"  # the header with the flight's true number, whatever the value says

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to break a record.

    ``damage`` gets the flight's values and the id of an earlier flight of its carrier, and returns the record's value.
    The dead letter must have ``cause``, ``sqlstate`` and ``error``; a record without a cause is applied in the end,
    without a replay. ``number`` is how many records are broken so, None for a share of the rest. ``outages`` is how
    often the record is delayed before it is applied. ``crashes``: the record ends its process.
    """

    name: str
    damage: Callable[[Values, int], Values | bytes]
    cause: Cause | None
    error: str = ""
    sqlstate: str | None = None
    number: int | None = None
    outages: int = 0
    crashes: bool = False

    @property
    def is_undecodable(self) -> bool:
        """Whether no handler gets the record, not even the fixed one."""
        return self.cause is Cause.DECODE


def _with(**changed: Callable[[Values], Any]) -> Callable[[Values, int], Values]:
    return lambda values, _: values | {name: change(values) for name, change in changed.items()}


def _trouble(what: str) -> Callable[[Values, int], Values]:
    return lambda values, _: values | {"trouble": what}


KINDS = (
    Kind("not JSON", lambda _, __: b"\xff\xfe{" + b"\x00" * 8, Cause.DECODE, "JSON is malformed"),
    Kind("wrong type", _with(distance=lambda v: f"{v['distance']} miles"), Cause.DECODE, "Expected `int`, got `str`"),
    Kind("NUL character", _with(dest=lambda v: v["dest"] + "\0"), Cause.DATABASE, "cannot contain NUL"),
    Kind("too long", _with(origin=lambda v: v["origin"] + ", New York"), Cause.DATABASE, "value too long", "22001"),
    Kind("out of range", _with(distance=lambda v: v["distance"] * 1_000_000), Cause.DATABASE, "out of range", "22003"),
    Kind("CHECK", _with(distance=lambda v: -v["distance"]), Cause.DATABASE, "check constraint", "23514"),
    Kind("NOT NULL", _with(hour=lambda _: None), Cause.DATABASE, "not-null constraint", "23502"),
    Kind("unique", lambda values, taken: values | {"id": taken}, Cause.DATABASE, "unique constraint", "23505"),
    Kind("Poison, named", _with(minute=lambda v: v["minute"] + 60), Cause.POISON, "no such minute"),
    Kind("Poison, unnamed", _with(month=lambda v: v["month"] + 12), Cause.POISON, "no such month"),
    Kind("handler fails", _with(day=lambda v: v["day"] + 31), Cause.HANDLER, "ValueError: day", number=3),
    Kind("fails once", _trouble("outage 1"), None, number=3, outages=1),
    Kind("fails twice", _trouble("outage 2"), None, number=3, outages=2),
    Kind("os._exit", _trouble("exit"), Cause.CRASHED, "each attempt ended the process", number=1, crashes=True),
    Kind("segfault", _trouble("segfault"), Cause.CRASHED, "each attempt ended the process", number=1, crashes=True),
)
CRASHING = sum(kind.crashes for kind in KINDS)


@dataclass(slots=True)
class Sent:
    """A record that was broken: what was sent, and where the brokers put it."""

    kind: Kind
    key: bytes
    value: bytes
    partition: int = -1
    offset: int = -1

    def heard(self, partition: int, offset: int) -> None:
        """Note where the brokers have stored the record."""
        self.partition, self.offset = partition, offset

    @property
    def tag(self) -> str:
        """A name for the record within its topic."""
        return f"{self.partition}-{self.offset}"


def tail(records: int) -> int:
    """How many records at the end contain the crashing ones, whose neighbours are applied one by one."""
    return max(300, records // 100)


def choose(flights: Sequence[Flight], seed: int) -> dict[int, Kind]:
    """Which flights are broken, by id, and how: about one in :data:`ONE_IN`, each kind at least once."""
    chance = random.Random(seed)
    shared = [kind for kind in KINDS if kind.number is None]
    few = [kind for kind in KINDS for _ in range(kind.number or 0)]
    crashing, others = [k for k in few if k.crashes], [k for k in few if not k.crashes]
    left = max(len(shared), len(flights) // ONE_IN - len(few))
    others += [shared[n % len(shared)] for n in range(left)]
    common = {flight.carrier for flight in flights[:SOUND]}  # a taken id must be an earlier one of the partition
    usable = [flight.id for flight in flights[SOUND:] if flight.carrier in common]
    begin = len(flights) - tail(len(flights))
    last = [id_ for id_ in usable if id_ > begin]
    chosen = dict(zip(chance.sample(last, len(crashing)), crashing, strict=True))
    free = [id_ for id_ in usable if id_ not in chosen]
    return chosen | dict(zip(chance.sample(free, len(others)), others, strict=True))


def break_some(flights: Sequence[Flight], chosen: Mapping[int, Kind]) -> Iterator[tuple[Flight, bytes, Sent | None]]:
    """Every flight with the value to send for it, and with a ``Sent`` if it is broken."""
    encode = msgspec.json.Encoder().encode
    applied: dict[str, int] = {}  # carrier -> a flight of it that is in the table by then
    for flight in flights:
        kind = chosen.get(flight.id)
        if kind is None:
            applied[flight.carrier] = flight.id
            yield flight, encode(flight), None
            continue
        damaged = kind.damage(msgspec.to_builtins(flight), applied[flight.carrier])
        value = damaged if isinstance(damaged, bytes) else encode(damaged)
        yield flight, value, Sent(kind, flight.carrier.encode(), value)
