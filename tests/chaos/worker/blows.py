"""Faults that strike one worker: its process, and its connection to Postgres."""

from __future__ import annotations

import signal
import threading
from time import monotonic
from typing import Literal

from chaos.worker.crew import Member
from chaos.worker.field import Field, Strike
from chaos.worker.log import Stuck
from chaos.worker.schedule import Fault

# -- the process ----------------------------------------------------------------------------------------


def kill_at_step(field: Field, fault: Fault) -> Strike:
    """kill -9 by itself, right after it has said that it is at the step."""
    log = field.arena.log
    if fault.step == "Activated":  # only a rebalance places partitions: it is a newcomer who dies
        mark = log.mark()
        victim = field.crew.start({"step": fault.step, "nth": fault.nth, "do": "kill"})
    else:
        victim = field.crew.victim(fault.victim)
        victim.wanted_end = True
        held = frozenset(victim.placed)
        mark = victim.set_trap(fault.step, fault.nth, "kill")
    code = victim.ended()
    *_, last, _ended = [s for s in log.since(mark) if s.worker == victim.name]
    if code != -signal.SIGKILL or last.name != fault.step:
        raise Stuck(f"{victim.name} should have died at {fault.step}, but ended with code {code} after {last}")
    if fault.step == "Activated":
        held = frozenset([last["partition"]])
    return _struck_dead(field, fault, Strike(last.at, held, mark))


def kill_at_random(field: Field, fault: Fault) -> Strike:
    """kill -9 from outside, wherever it is."""
    victim, mark = field.crew.victim(fault.victim), field.arena.log.mark()
    strike = Strike(monotonic(), frozenset(victim.placed), mark)
    victim.kill()
    if (code := victim.ended()) != -signal.SIGKILL:
        raise Stuck(f"{victim.name} should have been killed, but ended with code {code}")
    return _struck_dead(field, fault, strike)


def _struck_dead(field: Field, fault: Fault, strike: Strike) -> Strike:
    if fault.early:
        field.crew.fill()
    return strike


def zombie_before_writing(field: Field, fault: Fault) -> Strike:
    """Stopped with a batch that is read and not written; continued when others own its partitions: refused."""
    victim, strike = _stopped(field, fault)
    field.taken_over(strike.partitions, of=victim, since=strike.mark, working=True)
    mark = field.arena.log.mark()
    victim.go_on()
    field.arena.log.wait("Refused", by=victim.name, since=mark)
    return strike


def zombie_in_transaction(field: Field, fault: Fault) -> Strike:
    """Stopped inside its open transaction, the rows locked: the transaction is ended, others go on."""
    victim, strike = _stopped(field, fault)
    field.taken_over(strike.partitions, of=victim, since=strike.mark)
    mark = field.arena.log.mark()
    victim.go_on()
    field.arena.log.wait(("DatabaseTrouble", "CommitUnknown"), by=victim.name, since=mark)
    return strike


def _stopped(field: Field, fault: Fault) -> tuple[Member, Strike]:
    victim = field.crew.victim(fault.victim)
    mark = victim.set_trap(fault.step, fault.nth, "stop")
    said = field.arena.log.wait("Stopping", by=victim.name, since=mark)
    victim.wait_stopped()
    return victim, Strike(said.at, frozenset(victim.placed), mark)


# -- COMMIT ---------------------------------------------------------------------------------------------


def _cut_commit(
    field: Field, fault: Fault, when: Literal["before_commit", "after_commit", "after_commit_delayed"]
) -> tuple[Member, Strike]:
    """Break the COMMIT of a batch: the worker waits in front of it while the proxy is armed."""
    victim = field.crew.victim(fault.victim)
    strike = _waiting(field, victim, "Advanced", fault.nth)
    victim.proxy.arm(when)
    victim.go()
    _fired(victim, when)
    field.arena.log.wait("CommitUnknown", by=victim.name, since=strike.mark)
    return victim, strike


def commit_cut_before(field: Field, fault: Fault) -> Strike:
    """The COMMIT never reaches the server; nobody tells the worker."""
    victim, strike = _cut_commit(field, fault, "before_commit")
    field.arena.log.wait("Committed", by=victim.name, since=strike.mark, where=lambda s: s.at > strike.at)
    return strike


def commit_cut_after(field: Field, fault: Fault) -> Strike:
    """The COMMIT takes effect, and its answer is lost."""
    victim, strike = _cut_commit(field, fault, "after_commit")
    _reply_lost(field, victim, strike)
    return strike


def commit_delayed(field: Field, fault: Fault) -> Strike | None:
    """The connection dies at COMMIT, which arrives at the server when the worker already tries again."""
    victim, strike = _cut_commit(field, fault, "after_commit_delayed")
    if fault.early:
        _asked(field)
    else:
        field.arena.log.wait("DatabaseTrouble", by=victim.name, since=strike.mark, where=lambda s: s["wait"] > 0)
    if victim.proxy.deliver() != "COMMIT":
        return None  # the server ended the transaction first: its age is bounded
    if fault.early:
        _reply_lost(field, victim, strike)
    return strike


def _asked(field: Field) -> None:
    """Wait until somebody waits for the lock of a ledger's row."""
    deadline, pause = monotonic() + 30, threading.Event()
    waiting = (
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND starts_with(application_name, 'seekpoint ')"
    )
    with field.arena.connect() as connection:
        while connection.execute(waiting).fetchone() is None:
            if monotonic() > deadline:
                raise Stuck("nobody asked what became of the COMMIT")
            pause.wait(0.01)


def _reply_lost(field: Field, victim: Member, strike: Strike) -> None:
    field.arena.log.wait("Resynced", by=victim.name, since=strike.mark, where=lambda s: s["cause"] == "reply lost")


# -- the connection -------------------------------------------------------------------------------------


def cut_at_hold(field: Field, fault: Fault) -> Strike:
    """The connection is cut in front of the first statement."""
    return _cut(field, fault, "BatchOpened", "pg_current_xact_id")


def cut_at_advance(field: Field, fault: Fault) -> Strike:
    """The connection is cut in front of the last statement."""
    return _cut(field, fault, "Applied", "WITH moving")  # an upsert's rows leave with it, and say UPDATE too


def cut_in_copy(field: Field, fault: Fault) -> Strike:
    """The connection is cut while a COPY is open."""
    return _cut(field, fault, "Copying", None)


def _cut(field: Field, fault: Fault, step: str, statement: str | None) -> Strike:
    victim = field.crew.victim(fault.victim)
    strike = _waiting(field, victim, step, fault.nth)
    if statement is not None:
        victim.proxy.arm("at_statement", statement)
        victim.go()
        _fired(victim, statement)
    elif victim.proxy.cut():
        victim.go()
    else:
        raise Stuck(f"{victim.name} had no connection to cut")
    field.arena.log.wait("DatabaseTrouble", by=victim.name, since=strike.mark)
    return strike


def link_frozen(field: Field, fault: Fault) -> Strike:
    """The network goes silent in mid-transaction, and delivers everything when the transaction is ended.

    The server's own timeouts end it, but not while it waits for the rest of a COPY: then the worker, who answers
    nobody, loses its partitions, and the successor's claim ends it.
    """
    victim = field.crew.victim(fault.victim)
    strike = _waiting(field, victim, fault.step, fault.nth)
    pid = _backend(field, victim)
    victim.proxy.freeze()
    victim.go()
    if fault.step == "Copying":
        field.taken_over(strike.partitions, of=victim, since=strike.mark)
    _gone(field, pid)
    victim.proxy.thaw()
    field.arena.log.wait(("DatabaseTrouble", "CommitUnknown"), by=victim.name, since=strike.mark)
    return strike


def backend_terminated(field: Field, fault: Fault) -> Strike:
    """Somebody calls pg_terminate_backend for the worker's session, in its open transaction."""
    victim = field.crew.victim(fault.victim)
    strike = _waiting(field, victim, fault.step, fault.nth)
    pid = _backend(field, victim)
    with field.arena.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
    _gone(field, pid)
    victim.go()
    field.arena.log.wait(("DatabaseTrouble", "CommitUnknown"), by=victim.name, since=strike.mark)
    return strike


def _waiting(field: Field, victim: Member, step: str, nth: int) -> Strike:
    """The worker stands at the step until it is told to go."""
    mark = victim.set_trap(step, nth, "wait")
    said = field.arena.log.wait("Waiting", by=victim.name, since=mark)
    return Strike(said.at, frozenset(victim.placed), mark)


def _fired(victim: Member, what: str) -> None:
    if not victim.proxy.fired.wait(30):
        raise Stuck(f"{victim.name} sent nothing that the proxy could break at {what}")


def _backend(field: Field, victim: Member) -> int:
    """The process id of the session in which the victim's transaction is open."""
    with field.arena.connect() as connection:
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, %s) AND backend_xid IS NOT NULL",
            [f"seekpoint {victim.owner[:8]}"],
        ).fetchone()
    if row is None:
        raise Stuck(f"{victim.name} has no transaction open")
    return int(row[0])


def _gone(field: Field, pid: int) -> None:
    """Wait until the session has ended."""
    deadline, pause = monotonic() + 30, threading.Event()
    with field.arena.connect() as connection:
        while connection.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() is not None:
            if monotonic() > deadline:
                raise Stuck(f"the session {pid} is still there after 30 s")
            pause.wait(0.02)
