"""Compares the table and the dead letters, row by row, with the records that were sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, Table, select

from demo.flights import Flight
from demo.poison.kinds import ID, KINDS, Sent
from demo.report import matched
from seekpoint.admin import Cause, DeadLetter, GroupDeadLetters, State, Where


@dataclass(slots=True)
class Fate:
    """How many records of one kind had each outcome. ``error`` is that of one of their dead letters."""

    sent: int = 0
    applied: int = 0
    dead_lettered: int = 0
    replayed: int = 0
    retried: int = 0
    error: str = ""


@dataclass(slots=True)
class Verdict:
    """The result. ``applied``, ``open_dead_letters`` and ``skipped`` are records; ``strange`` are rows of no flight.

    ``dead_letters`` are all, ``replayed`` included; ``open_dead_letters`` those that wait for a replay. A record is
    lost if neither its row nor its dead letter is what was sent. ``twice`` counts surplus rows, surplus dead letters,
    and applied records with an open dead letter. ``wrong`` lists all other faults.
    """

    records: int = 0
    applied: int = 0
    open_dead_letters: int = 0
    skipped: int = 0
    lost: int = 0
    twice: int = 0
    crashing_dead_lettered: int = 0
    replayed: int = 0
    dead_letters: int = 0
    strange: int = 0
    fates: dict[str, Fate] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


def judge(
    engine: Engine,
    table: Table,
    dead_letters: GroupDeadLetters,
    *,
    flights: Sequence[Flight],
    broken: Mapping[int, Sent],
    tries: Mapping[str, int],
) -> Verdict:
    """Compare the database with the records that were sent; ``flights`` are in the order of their ids.

    ``broken`` are the broken records, by the flight's id; ``tries`` is how often a record was delayed, by its tag.
    """
    whole = [dead_letters.get(dead_letter.id) for dead_letter in dead_letters.list(Where(states=tuple(State)))]
    with engine.connect() as connection:
        result = connection.execution_options(yield_per=5_000).execute(select(table).order_by(table.c.id))
        return weigh(map(tuple, result), whole, flights, broken, tries)


def weigh(
    rows: Iterator[tuple[Any, ...]],
    dead_letters: Iterable[DeadLetter],
    flights: Iterable[Flight],
    broken: Mapping[int, Sent],
    tries: Mapping[str, int],
) -> Verdict:
    """Compare rows, in the order of their ids, and dead letters with the flights."""
    verdict = Verdict(fates={kind.name: Fate() for kind in KINDS})
    states = _check_dead_letters(dead_letters, broken, verdict)
    for flight, copies, equal in matched(rows, flights):
        verdict.strange += copies - equal
        if flight is None:
            continue
        verdict.records += 1
        verdict.twice += max(0, equal - 1) + (equal > 0 and flight.id in states)
        if equal:
            verdict.applied += 1
        elif flight.id in states:
            verdict.skipped += states[flight.id] is State.SKIPPED
            verdict.open_dead_letters += states[flight.id] is not State.SKIPPED
        else:
            verdict.lost += 1
        if flight.id in broken:
            fate = verdict.fates[broken[flight.id].kind.name]
            fate.sent += 1
            fate.applied += equal > 0
            fate.dead_lettered += flight.id in states
    _check_tries(broken, tries, verdict)
    return verdict


def _check_dead_letters(
    dead_letters: Iterable[DeadLetter], broken: Mapping[int, Sent], verdict: Verdict
) -> dict[int, State]:
    """Check every dead letter; returns the states of those that hold their record unchanged, by the flight's id."""
    states: dict[int, State] = {}
    count: Counter[int] = Counter()
    for dead_letter in dead_letters:
        verdict.dead_letters += 1
        verdict.replayed += dead_letter.state is State.REPLAYED
        id_ = _id_of(dead_letter)
        count[id_] += 1
        sent = broken.get(id_)
        if sent is None:
            verdict.wrong.append(
                f"dead letter {dead_letter.id_and_place} has a record that was not broken: {dead_letter.error}"
            )
            continue
        fate = verdict.fates[sent.kind.name]
        fate.error = dead_letter.error
        fate.replayed += dead_letter.state is State.REPLAYED
        verdict.crashing_dead_lettered += sent.kind.crashes and dead_letter.cause is Cause.CRASHED
        if difference := _difference(dead_letter, sent):
            verdict.wrong.append(f"dead letter {dead_letter.id_and_place} ({sent.kind.name}): {difference}")
        elif dead_letter.is_open or dead_letter.state is State.SKIPPED:
            states[id_] = dead_letter.state
        if complaint := _complaint(dead_letter, sent):
            verdict.wrong.append(f"dead letter {dead_letter.id_and_place} ({sent.kind.name}): {complaint}")
    verdict.twice += sum(times - 1 for times in count.values())
    missing = [id_ for id_, sent in broken.items() if sent.kind.cause is not None and id_ not in count]
    verdict.wrong += [f"flight {id_} ({broken[id_].kind.name}) has no dead letter" for id_ in missing]
    return states


def _difference(dead_letter: DeadLetter, sent: Sent) -> str | None:
    """How a dead letter differs from the record that was sent; None if the record could be applied from it."""
    if (dead_letter.partition, dead_letter.offset) != (sent.partition, sent.offset):
        return f"the record was sent to partition {sent.partition}, offset {sent.offset}"
    if (dead_letter.key, dead_letter.value) != (sent.key, sent.value):
        return "key or value are not what was sent"
    return None


def _complaint(dead_letter: DeadLetter, sent: Sent) -> str | None:
    """How a dead letter differs from the one that its kind must have; None if it does not."""
    kind = sent.kind
    if (
        dead_letter.cause is not kind.cause
        or dead_letter.sqlstate != kind.sqlstate
        or kind.error not in dead_letter.error
    ):
        return f"it has another error: {dead_letter.cause}, {dead_letter.sqlstate}, {dead_letter.error}"
    expected = State.DEAD_LETTERED if kind.is_undecodable else State.REPLAYED
    return None if dead_letter.state is expected else f"it is {dead_letter.state}, not {expected}"


def _check_tries(broken: Mapping[int, Sent], tries: Mapping[str, int], verdict: Verdict) -> None:
    """Note records that were delayed less often than the outages of their kind require."""
    for id_, sent in broken.items():
        times = tries.get(sent.tag, 0)
        verdict.fates[sent.kind.name].retried += times
        if sent.kind.outages and times < sent.kind.outages:
            verdict.wrong.append(f"flight {id_} ({sent.kind.name}) was delayed {times} times, not {sent.kind.outages}")


def _id_of(dead_letter: DeadLetter) -> int:
    """The flight's true number, from the header that came with it; -1 if that is missing."""
    value = dict(dead_letter.headers).get(ID)
    return int(value) if value is not None and value.isdigit() else -1
