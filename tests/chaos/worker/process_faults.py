"""Faults that affect one worker: its process, and its connection to Postgres."""

from __future__ import annotations

import signal
import threading
from time import monotonic
from typing import Literal, LiteralString

from chaos.worker.fault_context import FaultContext, Injected
from chaos.worker.schedule import Fault
from chaos.worker.worker_pool import WorkerProcess
from seekpoint.testing.child_process import NotReached

MOVES = "WITH moving"  # of the statement that moves the offsets

# -- the process ----------------------------------------------------------------------------------------


def kill_at_step(context: FaultContext, fault: Fault) -> Injected:
    """Let a worker SIGKILL itself right after it has reported the step."""
    log = context.log
    if fault.step == "Activated":  # only a rebalance places partitions: it is a newcomer who dies
        mark = log.mark()
        victim = context.pool.start({"step": fault.step, "nth": fault.nth, "do": "kill"})
    else:
        victim = context.pool.victim(fault.victim)
        victim.expected_to_end = True
        held = frozenset(victim.active)
        mark = victim.mark_and_break_at(fault.step, fault.nth, "kill")
    code = victim.ended()
    *_, last, _ended = [s for s in log.since(mark) if s.worker == victim.name]
    if code != -signal.SIGKILL or last.name != fault.step:
        raise NotReached(f"{victim.name} should have died at {fault.step}, but ended with code {code} after {last}")
    if fault.step == "Activated":
        held = frozenset([last["partition"]])
    return _struck_dead(context, fault, Injected(last.seconds, held, mark))


def kill_at_random(context: FaultContext, fault: Fault) -> Injected:
    """SIGKILL a worker at any point of its work."""
    victim, mark = context.pool.victim(fault.victim), context.log.mark()
    injected = Injected(monotonic(), frozenset(victim.active), mark)
    victim.kill()
    if (code := victim.ended()) != -signal.SIGKILL:
        raise NotReached(f"{victim.name} should have been killed, but ended with code {code}")
    return _struck_dead(context, fault, injected)


def _struck_dead(context: FaultContext, fault: Fault, injected: Injected) -> Injected:
    if fault.early:
        context.pool.fill()
    return injected


def zombie_before_writing(context: FaultContext, fault: Fault) -> Injected:
    """Freeze a worker that has read a batch and not written it; thaw it when others own its partitions: refused."""
    victim, injected = _stopped(context, fault)
    context.taken_over(injected.partitions, of=victim, since=injected.mark, working=True)
    mark = context.log.mark()
    victim.thaw()
    context.log.wait("Refused", by=victim.name, since=mark)
    return injected


def zombie_in_transaction(context: FaultContext, fault: Fault) -> Injected:
    """Freeze a worker inside its transaction, with rows locked: the transaction is ended, other workers continue."""
    victim, injected = _stopped(context, fault)
    context.taken_over(injected.partitions, of=victim, since=injected.mark)
    mark = context.log.mark()
    victim.thaw()
    # KafkaTrouble: the answer about the topic was awaited when it was stopped, and came too late.
    context.log.wait(("DatabaseTrouble", "CommitUnknown", "KafkaTrouble"), by=victim.name, since=mark)
    return injected


def _stopped(context: FaultContext, fault: Fault) -> tuple[WorkerProcess, Injected]:
    victim = context.pool.victim(fault.victim)
    mark = victim.mark_and_break_at(fault.step, fault.nth, "stop")
    event = context.log.wait("AtBreak", by=victim.name, since=mark)
    victim.wait_until_stopped()
    return victim, Injected(event.seconds, frozenset(victim.active), mark)


# -- COMMIT ---------------------------------------------------------------------------------------------


def _cut_commit(
    context: FaultContext, fault: Fault, when: Literal["before_commit", "after_commit", "after_commit_delayed"]
) -> tuple[WorkerProcess, Injected]:
    """Break the COMMIT of a batch: the worker waits before it while the proxy is armed.

    COMMITs of other transactions pass, such as the status thread's.
    """
    victim = context.pool.victim(fault.victim)
    injected = _waiting(context, victim, "Advanced", fault.nth)
    victim.proxy.arm(when, MOVES)
    victim.go()
    _fired(victim, when)
    context.log.wait("CommitUnknown", by=victim.name, since=injected.mark)
    return victim, injected


def commit_cut_before(context: FaultContext, fault: Fault) -> Injected:
    """Cut the connection before COMMIT reaches the server, unknown to the worker."""
    victim, injected = _cut_commit(context, fault, "before_commit")
    context.log.wait("Committed", by=victim.name, since=injected.mark, where=lambda s: s.seconds > injected.began)
    return injected


def commit_cut_after(context: FaultContext, fault: Fault) -> Injected:
    """Let COMMIT take effect, and lose its answer."""
    victim, injected = _cut_commit(context, fault, "after_commit")
    _reply_lost(context, victim, injected)
    return injected


def commit_delayed(context: FaultContext, fault: Fault) -> Injected | None:
    """Cut the connection at COMMIT, and deliver the COMMIT when the worker already tries again."""
    victim, injected = _cut_commit(context, fault, "after_commit_delayed")
    if fault.early:
        _asked(context)
    else:
        context.log.wait("DatabaseTrouble", by=victim.name, since=injected.mark, where=lambda s: s["wait"] > 0)
    if victim.proxy.deliver() != "COMMIT":
        return None  # the server ended the transaction first: its age is bounded
    if fault.early:
        _reply_lost(context, victim, injected)
    return injected


def _asked(context: FaultContext) -> None:
    """Wait until a worker waits for the lock of a ledger's row."""
    waiting = "wait_event_type = 'Lock' AND starts_with(application_name, 'seekpoint ')"
    _sessions(context, waiting, some=True, what="no worker asked what became of the COMMIT")


def _reply_lost(context: FaultContext, victim: WorkerProcess, injected: Injected) -> None:
    context.log.wait("Resynced", by=victim.name, since=injected.mark, where=lambda s: s["cause"] == "reply lost")


# -- the connection -------------------------------------------------------------------------------------


def cut_at_hold(context: FaultContext, fault: Fault) -> Injected:
    """Cut the connection before hold, or before the statement that combines hold and advance."""
    return _cut(context, fault, "BatchOpened", "locked")


def cut_at_advance(context: FaultContext, fault: Fault) -> Injected:
    """Cut the connection before advance: this batch's, or the next one's if this one was sent already."""
    return _cut(context, fault, "Applied", MOVES)  # an upsert's rows leave with it, and say UPDATE too


def cut_in_copy(context: FaultContext, fault: Fault) -> Injected:
    """Cut the connection while a COPY is open."""
    return _cut(context, fault, "Copying", None)


def _cut(context: FaultContext, fault: Fault, step: str, statement: str | None) -> Injected:
    victim = context.pool.victim(fault.victim)
    injected = _waiting(context, victim, step, fault.nth)
    if statement is not None:
        victim.proxy.arm("at_statement", statement)
        victim.go()
        _fired(victim, statement)
    elif victim.proxy.cut():
        victim.go()
    else:
        raise NotReached(f"{victim.name} had no connection to cut")
    context.log.wait("DatabaseTrouble", by=victim.name, since=injected.mark)
    return injected


def link_frozen(context: FaultContext, fault: Fault) -> Injected:
    """Freeze the network inside a transaction; when the transaction has ended, deliver everything.

    The server's timeouts end the transaction, but not while the server waits for the rest of a COPY. In that case the
    worker loses its partitions, and the next owner's claim ends the transaction.
    """
    victim = context.pool.victim(fault.victim)
    injected = _waiting(context, victim, fault.step, fault.nth)
    pid = _backend(context, victim)
    victim.proxy.freeze()
    victim.go()
    if fault.step == "Copying":
        context.taken_over(injected.partitions, of=victim, since=injected.mark)
    _gone(context, pid)
    victim.proxy.thaw()
    context.log.wait(("DatabaseTrouble", "CommitUnknown"), by=victim.name, since=injected.mark)
    return injected


def backend_terminated(context: FaultContext, fault: Fault) -> Injected:
    """End the worker's session by pg_terminate_backend, inside a transaction."""
    victim = context.pool.victim(fault.victim)
    injected = _waiting(context, victim, fault.step, fault.nth)
    pid = _backend(context, victim)
    with context.environment.connect() as connection:
        connection.execute("SELECT pg_terminate_backend(%s)", [pid])
    _gone(context, pid)
    victim.go()
    context.log.wait(("DatabaseTrouble", "CommitUnknown"), by=victim.name, since=injected.mark)
    return injected


def _waiting(context: FaultContext, victim: WorkerProcess, step: str, nth: int) -> Injected:
    """Make the worker wait at the step until ``go()``."""
    mark = victim.mark_and_break_at(step, nth, "wait")
    event = context.log.wait("AtBreak", by=victim.name, since=mark)
    return Injected(event.seconds, frozenset(victim.active), mark)


def _fired(victim: WorkerProcess, what: str) -> None:
    if not victim.proxy.fired.wait(30):
        raise NotReached(f"{victim.name} sent nothing that the proxy could break at {what}")


def _backend(context: FaultContext, victim: WorkerProcess) -> int:
    """The process id of the session with the victim's open transaction."""
    with context.environment.connect() as connection:
        row = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE starts_with(application_name, %s) AND backend_xid IS NOT NULL",
            [f"seekpoint {victim.owner[:8]}"],
        ).fetchone()
    if row is None:
        raise NotReached(f"{victim.name} has no transaction open")
    return int(row[0])


def _gone(context: FaultContext, pid: int) -> None:
    """Wait until the session has ended."""
    _sessions(context, f"pid = {pid}", some=False, what=f"the session {pid} is still there after 30 s")


def _sessions(context: FaultContext, where: LiteralString, *, some: bool, what: str) -> None:
    """Wait until Postgres has such sessions, or (not ``some``) none."""
    deadline, pause = monotonic() + 30, threading.Event()
    with context.environment.connect() as connection:
        while (connection.execute(f"SELECT FROM pg_stat_activity WHERE {where}").fetchone() is not None) != some:
            if monotonic() > deadline:
                raise NotReached(what)
            pause.wait(0.01)
