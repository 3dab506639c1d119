"""Faults that strike everybody: the servers, the group's membership, the operator's hand."""

from __future__ import annotations

import random
from time import monotonic

from sqlalchemy import text

from chaos.worker.crew import SESSION_MS
from chaos.worker.field import EVERY, Field, Strike
from chaos.worker.log import Stuck
from chaos.worker.oracle import TABLE
from chaos.worker.schedule import CREW, Fault
from seekpoint import Ledger
from seekpoint.ledger.move import reset_offset
from seekpoint.records import Partition

BLOWS = 8  # in a storm
SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, %s)"

# -- servers --------------------------------------------------------------------------------------------


def postgres_killed(field: Field, fault: Fault) -> Strike:
    """The whole server dies by kill -9, and comes back with what it had flushed."""
    log, server = field.arena.log, field.arena.pair.postgres
    mark, at = log.mark(), monotonic()
    server.kill()
    over = monotonic()
    server.start()
    log.wait("DatabaseTrouble", since=mark)
    return Strike(at, EVERY, mark, over)


def postgres_killed_async(field: Field, fault: Fault) -> Strike | None:
    """The same without synchronous commit, right behind a COMMIT: rows and offsets are lost together."""
    log = field.arena.log
    log.wait("Committed", since=log.mark())
    strike = postgres_killed(field, fault)
    field.recovered(strike)
    if not any(said.name == "Resynced" and said["cause"] == "rolled back" for said in log.since(strike.mark)):
        return None  # the server had flushed everything
    return strike


def postgres_frozen(field: Field, fault: Fault) -> Strike:
    """The server hangs in the middle of what it does, and goes on later."""
    mark, at = field.arena.log.mark(), monotonic()
    field.arena.pair.postgres.freeze()
    try:
        field.hush(SESSION_MS / 1000)
    finally:
        field.arena.pair.postgres.thaw()
    return Strike(at, EVERY, mark, over=monotonic())


def broker_killed(field: Field, fault: Fault) -> Strike:
    """The broker dies by kill -9, and comes back with its log."""
    log, server = field.arena.log, field.arena.pair.kafka
    mark, at = log.mark(), monotonic()
    server.kill()
    over = monotonic()
    server.start()
    log.wait("KafkaTrouble", since=mark)
    return Strike(at, EVERY, mark, over)


def broker_frozen(field: Field, fault: Fault) -> Strike:
    """The broker hangs for longer than a session."""
    mark, at = field.arena.log.mark(), monotonic()
    field.arena.pair.kafka.freeze()
    try:
        field.hush(1.5 * SESSION_MS / 1000)
    finally:
        field.arena.pair.kafka.thaw()
    return Strike(at, EVERY, mark, over=monotonic())


# -- membership -----------------------------------------------------------------------------------------


def join(field: Field, fault: Fault) -> Strike:
    """One more worker comes, gets its share and writes; then one of the old ones leaves."""
    log = field.arena.log
    mark, at = log.mark(), monotonic()
    leaving = field.crew.victim(fault.victim)
    newcomer = field.crew.start()
    placed = log.wait("Activated", by=newcomer.name, since=mark)
    log.wait("Committed", by=newcomer.name, since=mark)
    strike = Strike(at, frozenset([placed["partition"]]), mark, over=placed.at)
    field.recovered(strike)
    _drained(field, leaving.name)
    return strike


def leave(field: Field, fault: Fault) -> Strike:
    """A worker is told to end: it drains, and the others take over without waiting for a session to expire."""
    victim, mark = field.crew.victim(fault.victim), field.arena.log.mark()
    at, held = monotonic(), frozenset(victim.placed)
    _drained(field, victim.name)
    strike = Strike(at, held, mark, over=monotonic())
    field.taken_over(held, of=victim, since=mark)
    return strike


def _drained(field: Field, name: str) -> None:
    member = next(m for m in field.crew.members if m.name == name)
    member.terminate()
    if code := member.ended():
        raise Stuck(f"{name} did not drain: it ended with code {code}")
    with field.arena.connect() as connection:
        kept = connection.execute("SELECT FROM seekpoint.partition_offset WHERE owner = %s", [member.owner]).fetchone()
    if kept is not None:
        raise Stuck(f"{name} ended without releasing its claims")
    field.crew.bury(member)


# -- everything at once ---------------------------------------------------------------------------------


def storm(field: Field, fault: Fault) -> Strike:
    """Blow upon blow without waiting for anything to heal: kills, stops, cut wires, ended sessions."""
    chance, mark, at = random.Random(fault.amount), field.arena.log.mark(), monotonic()
    for blow in chance.choices(("kill", "stop", "cut", "terminate", "go on"), k=BLOWS):
        victim = field.crew.victim(chance.randrange(CREW))
        victim.wait_started()  # whoever cannot even begin says so and ends
        match blow:
            case "kill":
                victim.kill()
                victim.ended()
                field.crew.fill()
            case "stop":
                victim.stop()
            case "cut":
                victim.proxy.cut()
            case "terminate":
                with field.arena.connect() as connection:
                    connection.execute(SESSIONS, [f"seekpoint {victim.owner[:8]}"])
            case _:
                _all_go_on(field)
        field.lull(chance.randrange(20, 400), seconds=1.0)
    _all_go_on(field)
    return Strike(at, EVERY, mark, over=monotonic())


def _all_go_on(field: Field) -> None:
    for member in field.crew.members:
        member.go_on()


# -- the operator ---------------------------------------------------------------------------------------


def rewind(field: Field, fault: Fault) -> Strike:
    """Back by some records under a running worker, the rows behind the new position deleted with it."""
    log, owner = field.arena.log, field.crew.victim(fault.victim)
    number = min(owner.placed)
    topic, ledger = field.arena.topic, _ledger(field)
    mark = log.mark()
    with ledger.begin() as tx:
        at = ledger.positions_of([Partition(topic, number)], locked=False)[Partition(topic, number)]
        to = max(field.arena.base[number], at.next_offset - fault.amount)
        reset_offset(tx, Partition(topic, number), to, actor="chaos", log=None, reason="rewind under load")
        tx.connection.execute(
            text(f'DELETE FROM {TABLE} WHERE topic = :topic AND partition = :partition AND "offset" >= :to'),
            {"topic": topic, "partition": number, "to": to},
        )
    strike = Strike(monotonic(), frozenset([number]), mark)
    log.wait("ClaimLost", by=owner.name, since=mark, where=lambda s: s["partition"] == number)
    log.wait("Activated", since=mark, where=lambda s: (s["partition"], s["offset"]) == (number, to))
    return strike


def pause(field: Field, fault: Fault) -> Strike:
    """The group is paused under load: nobody commits until it is resumed."""
    log, ledger = field.arena.log, _ledger(field)
    mark, at = log.mark(), monotonic()
    ledger.pause(reason="chaos", actor="chaos")
    paused = log.mark()
    for member in field.crew.members:
        log.wait("Paused", by=member.name, since=mark)
    behind = ledger.read()
    commits = [s for s in log.since(paused) if s.name == "Committed" and s.at > at + 1]
    if commits or ledger.read() != behind:
        raise Stuck(f"a paused group went on: {commits}")
    ledger.resume(actor="chaos")
    return Strike(at, EVERY, mark, over=monotonic())


def _ledger(field: Field) -> Ledger:
    return Ledger(field.arena.engine, field.arena.topic)
