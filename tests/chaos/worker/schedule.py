"""The schedule of pools and faults, drawn from the seed alone before anything starts.

Times are counts of records and of steps, never seconds, so that a seed draws the same schedule on any machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

WORKERS = 3  # workers

# The steps at which a worker can be stopped: events of its own, and Copying, a chunk read while the COPY is open.
STEPS = ("BatchOpened", "Held", "Copying", "Applied", "Advanced", "Committed", "Activated")
IN_TRANSACTION = ("Held", "Applied", "Advanced")
IN_COPY = ("kill_at_copying", "cut_in_copy")  # where batches go step by step

KILLS = {f"kill_at_{name}": step for name, step in zip(
    ("batch_opened", "held", "copying", "applied", "advanced", "committed", "activated"), STEPS, strict=True
)}  # fmt: skip
KINDS = (
    *KILLS,
    "kill_at_random",
    "zombie_before_writing",
    "zombie_in_transaction",
    "commit_cut_before",
    "commit_cut_after",
    "commit_delayed",
    "cut_at_hold",
    "cut_in_copy",
    "cut_at_advance",
    "link_frozen",
    "backend_terminated",
    "postgres_killed",
    "postgres_killed_async",
    "postgres_frozen",
    "broker_killed",
    "broker_frozen",
    "metadata_emptied",
    "join",
    "leave",
    "rewind",
    "pause",
    "storm",
    "poison",
    "crashing_record",
)


@dataclass(frozen=True)
class PoolPlan:
    """How a pool works: its group protocol, and whether its commits wait for the disk (``durable``).

    If commits do not wait, small batches are copied, too, so that chunks come while a COPY is open. With ``sums`` each
    record is also added to two rows of sums, one of which all workers write. With ``changes`` each record is also a
    change of a row, as Debezium writes it. With ``awaits`` an async handler writes the rows instead of a sink; it
    fails on some records, which wait for their retries while others continue: ``waits`` is its ``retry_order``. With
    ``found`` the topics match a pattern, and in each round another one appears; of one of them the table is missing.
    With ``cloud_events`` the values are such events, binary and structured. With ``firsts`` the first row of each key
    stays in another table. With ``edits`` an operator edits and replays dead letters all the time.
    """

    protocol: str
    durable: bool = True
    sums: bool = False
    changes: bool = False
    awaits: bool = False
    waits: str = ""
    found: bool = False
    cloud_events: bool = False
    firsts: bool = False
    edits: bool = False

    def __str__(self) -> str:
        traits = {"sums": self.sums, "changes": self.changes, "async handler": self.awaits, "async": not self.durable}
        traits |= {"found": self.found, "cloud_events": self.cloud_events, "firsts": self.firsts, "edits": self.edits}
        traits[f"retry_order {self.waits}"] = bool(self.waits)
        return ", ".join([self.protocol, *(name for name, is_so in traits.items() if is_so)])


@dataclass(frozen=True)
class Fault:
    """One fault of the schedule.

    It is injected when ``after`` records were applied since the load began or the last fault was recovered from. It
    hits worker number ``victim`` (in the order of names, modulo), at its ``nth`` event ``step`` from then on.
    ``amount`` is how many records a rewind goes back, and the seed of a storm and of bad records. ``early``: killed
    workers are replaced before their partitions are taken over; a delayed COMMIT arrives while the worker asks about
    it, not while it waits to retry.
    """

    kind: str
    after: int
    victim: int
    step: str
    nth: int
    amount: int
    early: bool

    def __str__(self) -> str:
        step = f" at {self.step} #{self.nth}" if self.step else ""
        return f"{self.kind} after {self.after} records: worker {self.victim}{step}, amount {self.amount}" + (
            ", early" if self.early else ""
        )


@dataclass(frozen=True)
class Round:
    """Some faults, one after the other, under one load; the rows are checked at the end of the round."""

    number: int
    pool: PoolPlan
    faults: tuple[Fault, ...]
    portion: int  # records per partition in each portion of the load

    def __str__(self) -> str:
        return f"round {self.number} ({self.pool}, portions of {self.portion}): " + "; ".join(map(str, self.faults))


def deal(seed: int, rounds: int, kinds: Sequence[str] = KINDS, pools: str = "") -> list[Round]:
    """Draw the schedule: every kind once, in a random order, before any comes again, over all pools.

    If there are fewer rounds than kinds, a round has several faults. ``pools``: leave out the rounds of pools whose
    description does not have this text.
    """
    chance = random.Random(seed)
    dealt: list[tuple[PoolPlan, str]] = []
    while len(dealt) < max(rounds, len(kinds)):
        dealt += _pass(chance, kinds, legs=min(5, rounds, len(kinds)))
    dealt = dealt[: max(rounds, len(kinds))]
    planned: list[Round] = []
    for number, part in enumerate(_split(dealt, rounds), 1):
        pool = next((plan for plan, _ in part if not plan.durable), part[0][0])
        faults = tuple(_fault(chance, kind, in_copy=not pool.durable) for _, kind in part)
        planned.append(Round(number, pool, faults, portion=chance.choice((3, 10, 25))))
    return [round_ for round_ in planned if pools in str(round_.pool)]


def _pass(chance: random.Random, kinds: Sequence[str], legs: int) -> list[tuple[PoolPlan, str]]:
    """Draw each kind once, in ``legs`` pools: starting a pool takes as long as a round, so it serves several."""
    protocols = ["eager", "cooperative", "consumer"]
    chance.shuffle(protocols)
    durable = [PoolPlan(protocol) for protocol in [*protocols, chance.choice(protocols)]]
    if legs > 4:  # with fewer, no pool might be left whose small batches take two round trips
        durable[0] = replace(durable[0], sums=True, changes=True)
        durable[1] = replace(durable[1], awaits=True, waits=chance.choice(("key", "none")))
        durable[2] = replace(durable[2], edits=True)
        durable[3] = replace(durable[3], found=True, cloud_events=True, firsts=True)
    pools = [*durable, PoolPlan(chance.choice(protocols), durable=False)]
    deck = chance.sample(list(kinds), len(kinds))
    async_only = [kind for kind in deck if kind.endswith("_async") or kind in IN_COPY]
    pools = [*chance.sample(pools[:-1], legs - 1), pools[-1]] if async_only else chance.sample(pools, legs)
    parts = _split([kind for kind in deck if kind not in async_only], legs)
    parts[-1] = chance.sample([*parts[-1], *async_only], len(parts[-1]) + len(async_only))
    pairs = list(zip(pools, parts, strict=True))
    chance.shuffle(pairs)
    return [(pool, kind) for pool, part in pairs for kind in part]


def _split(things: Sequence[T], parts: int) -> list[list[T]]:
    """Split into ``parts`` lists of almost equal length."""
    edges = [len(things) * n // parts for n in range(parts + 1)]
    return [list(things[a:b]) for a, b in pairwise(edges)]


def _fault(chance: random.Random, kind: str, *, in_copy: bool) -> Fault:
    fault = Fault(
        kind,
        after=chance.randrange(50, 1500),
        victim=chance.randrange(WORKERS),
        step=KILLS.get(kind, ""),
        nth=chance.randrange(1, 6),
        amount=chance.randrange(200, 1500),
        early=chance.random() < 0.5,
    )
    if kind == "zombie_before_writing":
        return replace(fault, step="BatchOpened")
    if kind in {"zombie_in_transaction", "backend_terminated", "link_frozen"}:
        return replace(fault, step=chance.choice([*IN_TRANSACTION, *["Copying"][:in_copy]]))
    if kind == "kill_at_activated":
        return replace(fault, nth=1)
    return fault
