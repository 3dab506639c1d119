"""The records of the afternoon: drawn by a seed, of types whose edges are easily changed on the way to a table."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

PARTITIONS = 4
TOMBSTONES = 499  # one record in so many has no value
OFTEN = 10  # records of each key, on average
COLUMNS = (
    "n", "name", "big", "amount", "at", "day", "words", "note", "blob", "numbers", "nested", "flag", "ratio", "cents"
)  # fmt: skip

WORDS = (
    "", " ", "NULL", "\\N", "\\.", "\x01\x08\x0b\x1f\x7f", "a\nb\tc\rd\r\n", 'say "it"', "it's", "back\\slash\\",
    "{a,b}", "\U0001f642\U0001f469‍\U0001f680", "e\u0301\u00e9", "\u202eleft", "\ufeffmark", "\u2028\u2029",
    "\ufffd\U0010ffff",
)  # fmt: skip
BIG = (0, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63))
AMOUNTS = ("9" * 20 + "." + "9" * 18, "-" + "9" * 20 + "." + "9" * 18, "0." + "0" * 17 + "1", "-0.5", "1E+19")
TIMES = (datetime.min, datetime.max, datetime(1582, 10, 4, 23, 59, 59, 999999), datetime(1900, 1, 1, 0, 0, 0, 1))
DAYS = (date.min, date(1582, 10, 4), date(1582, 10, 10), date(1582, 10, 15), date(1500, 2, 28), date.max)
RATIOS = (float("nan"), -0.0, 0.0, float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 0.1)


class Fact(NamedTuple):
    """A produced record. ``values`` are what the table's :data:`COLUMNS` must have, None for a tombstone."""

    partition: int
    offset: int
    name: str
    values: tuple[Any, ...] | None


class Facts:
    """The records of a seed, as often as they are asked for; their offsets are those of a new topic."""

    def __init__(self, seed: int, count: int) -> None:
        self.count, self._seed, self._keys = count, seed, max(count // OFTEN, 1)
        chance = Random(seed)
        # Sizes without a common factor: edges of all columns meet in all combinations.
        self._pools: Mapping[str, Sequence[Any]] = {
            "big": [*BIG, *(chance.randrange(-(2**63), 2**63) for _ in range(102))],
            "amount": [*map(Decimal, AMOUNTS), *(_amount(chance) for _ in range(98))],
            "at": [time.replace(tzinfo=UTC) for time in (*TIMES, *(_time(chance) for _ in range(97)))],
            "day": [*DAYS, *(date.fromordinal(chance.randrange(1, 577_000)) for _ in range(91))],  # before 1582
            "words": [*WORDS, *(_words(chance) for _ in range(72))],
            "note": [None, "", "null", "None", *(_words(chance) for _ in range(79))],
            "blob": [b"", b"\0", b"\\x00\xff", *(chance.randbytes(chance.randrange(40)) for _ in range(76))],
            "numbers": [[], [0], *([chance.choice(BIG) for _ in range(chance.randrange(5))] for _ in range(71))],
            "nested": [_nested(chance) for _ in range(71)],
            "flag": [True, False, None],
            "ratio": [*RATIOS, *(chance.uniform(-1e9, 1e9) for _ in range(59))],
        }

    def __iter__(self) -> Iterator[Fact]:
        offsets = [0] * PARTITIONS
        for n in range(self.count):
            number = crc32(b"%d %d" % (self._seed, n)) % self._keys
            name = f"{WORDS[number % len(WORDS)]}{number}"
            partition = number % PARTITIONS
            values = None if n % TOMBSTONES == 7 else self._values(n, name)
            yield Fact(partition, offsets[partition], name, values)
            offsets[partition] += 1

    def _values(self, n: int, name: str) -> tuple[Any, ...]:
        return (n, name, *(pool[n % len(pool)] for pool in self._pools.values()), n % 2_001 - 1_000)


def encode(fact: Fact) -> bytes | None:
    """Encode the record's value as JSON; what JSON lacks is a text."""
    if fact.values is None:
        return None
    fields = dict(zip(COLUMNS, fact.values, strict=True))
    texts = {name: str(fields[name]) for name in ("amount", "ratio")}
    times = {"at": fields["at"].isoformat(), "day": fields["day"].isoformat()}
    return json.dumps({**fields, **texts, **times, "blob": base64.b64encode(fields["blob"]).decode()}).encode()


def _amount(chance: Random) -> Decimal:
    return Decimal(f"{chance.randrange(-(10**20) + 1, 10**20)}.{chance.randrange(10**18):018}")


def _time(chance: Random) -> datetime:
    return datetime.min + timedelta(microseconds=chance.randrange(315_537_897_600 * 10**6))


def _words(chance: Random) -> str:
    return "".join(chance.choice((*WORDS, "a", "b", "\u00e4", "\U0001f680")) for _ in range(chance.randrange(8)))


def _nested(chance: Random) -> dict[str, Any]:
    return {"big": chance.choice(BIG), "words": chance.choice(WORDS), "items": [_words(chance) for _ in range(3)]}
