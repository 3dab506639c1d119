"""Faults that affect every worker: of the servers, in the group's membership, by an operator."""

from __future__ import annotations

import random
from time import monotonic

from sqlalchemy import Connection, text

from chaos.worker.checks import CHANGED, FIRSTS, MADE_BY_CHANGES, SUMS, TABLE, changes_in
from chaos.worker.fault_context import EVERY, FaultContext, Injected
from chaos.worker.schedule import WORKERS, Fault
from chaos.worker.worker_pool import SESSION_MS
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.admin_actions import reset_offset
from seekpoint.records import Partition
from seekpoint.testing.child_process import NotReached
from seekpoint.testing.servers.kafka import KafkaServer
from seekpoint.testing.servers.postgres import PostgresServer
from support.kafka_proxy import Asker

STORM = 8  # in a storm
SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, %s)"

# -- servers --------------------------------------------------------------------------------------------


def postgres_killed(context: FaultContext, fault: Fault) -> Injected:
    """Kill Postgres by SIGKILL, and start it again with the data that it had flushed."""
    return _killed(context, context.environment.pair.postgres, "DatabaseTrouble")


def _killed(context: FaultContext, server: PostgresServer | KafkaServer, trouble: str) -> Injected:
    mark, started = context.log.mark(), monotonic()
    server.kill()
    over = monotonic()
    server.start()
    context.log.wait(trouble, since=mark)
    return Injected(started, EVERY, mark, over)


def postgres_killed_async(context: FaultContext, fault: Fault) -> Injected | None:
    """Kill Postgres right after a COMMIT without synchronous commit: rows and offsets are lost together."""
    log = context.log
    log.wait("Committed", since=log.mark())
    injected = postgres_killed(context, fault)
    context.recovered(injected)
    if not any(event.name == "Resynced" and event["cause"] == "rolled back" for event in log.since(injected.mark)):
        return None  # the server had flushed everything
    return injected


def postgres_frozen(context: FaultContext, fault: Fault) -> Injected:
    """Freeze Postgres for a session timeout."""
    return _frozen(context, context.environment.pair.postgres, SESSION_MS / 1000)


def _frozen(context: FaultContext, server: PostgresServer | KafkaServer, seconds: float) -> Injected:
    mark, started = context.log.mark(), monotonic()
    server.freeze()
    try:
        context.hush(seconds)
    finally:
        server.thaw()
    return Injected(started, EVERY, mark, over=monotonic())


def broker_killed(context: FaultContext, fault: Fault) -> Injected:
    """Kill the broker by SIGKILL, and start it again with its log."""
    return _killed(context, context.environment.pair.kafka, "KafkaTrouble")


def broker_frozen(context: FaultContext, fault: Fault) -> Injected:
    """Freeze the broker for longer than a session timeout."""
    return _frozen(context, context.environment.pair.kafka, 1.5 * SESSION_MS / 1000)


def metadata_emptied(context: FaultContext, fault: Fault) -> Injected:
    """Answer several times that there are no brokers, as a broker does that was away.

    The answers go to the consumers, or to the workers' other clients.
    """
    mark, started, proxy = context.log.mark(), monotonic(), context.environment.kafka_proxy
    asker: Asker = "consumer" if fault.early else "other"
    proxy.empty_metadata(asker, WORKERS)
    context.log.until(lambda: proxy.has_emptied(asker), f"answers without brokers ({asker})")
    return Injected(started, EVERY, mark, over=monotonic())


# -- membership -----------------------------------------------------------------------------------------


def join(context: FaultContext, fault: Fault) -> Injected:
    """Let one more worker join and commit; then let an older worker leave."""
    log = context.log
    mark, started = log.mark(), monotonic()
    leaving = context.pool.victim(fault.victim)
    newcomer = context.pool.start()
    activated = log.wait("Activated", by=newcomer.name, since=mark)
    log.wait("Committed", by=newcomer.name, since=mark)
    injected = Injected(started, frozenset([activated["partition"]]), mark, over=activated.seconds)
    context.recovered(injected)
    _drained(context, leaving.name)
    return injected


def leave(context: FaultContext, fault: Fault) -> Injected:
    """SIGTERM a worker: it drains, and the others take over without waiting for its session to expire."""
    context.found()
    victim, mark = context.pool.victim(fault.victim), context.log.mark()
    started, held = monotonic(), frozenset(victim.active)
    _drained(context, victim.name)
    injected = Injected(started, held, mark, over=monotonic())
    context.taken_over(held, of=victim, since=mark)
    return injected


def _drained(context: FaultContext, name: str) -> None:
    worker = next(m for m in context.pool.workers if m.name == name)
    worker.terminate()
    if code := worker.ended():
        raise NotReached(f"{name} did not drain: it ended with code {code}")
    with context.environment.connect() as connection:
        kept = connection.execute("SELECT FROM seekpoint.partition_offset WHERE owner = %s", [worker.owner]).fetchone()
    if kept is not None:
        raise NotReached(f"{name} ended without releasing its claims")
    context.pool.bury(worker)


# -- everything at once ---------------------------------------------------------------------------------


def storm(context: FaultContext, fault: Fault) -> Injected:
    """Inject process faults in a row, without waiting for recovery: kills, stops, cut wires, ended sessions."""
    chance, mark, started = random.Random(fault.amount), context.log.mark(), monotonic()
    for fault_kind in chance.choices(("kill", "stop", "cut", "terminate", "thaw"), k=STORM):
        victim = context.pool.victim(chance.randrange(WORKERS))
        victim.wait_started()  # a worker that cannot begin reports that and ends
        match fault_kind:
            case "kill":
                victim.kill()
                victim.ended()
                context.pool.fill()
            case "stop":
                victim.freeze()
            case "cut":
                victim.proxy.cut()
            case "terminate":
                with context.environment.connect() as connection:
                    connection.execute(SESSIONS, [f"seekpoint {victim.owner[:8]}"])
            case _:
                _thaw_all(context)
        context.lull(chance.randrange(20, 400), seconds=1.0)
    _thaw_all(context)
    return Injected(started, EVERY, mark, over=monotonic())


def _thaw_all(context: FaultContext) -> None:
    for worker in context.pool.workers:
        worker.thaw()


# -- the operator ---------------------------------------------------------------------------------------


def rewind(context: FaultContext, fault: Fault) -> Injected:
    """Rewind a running worker by some records, and delete their rows, in one transaction."""
    context.found()  # the owner must stay the same
    log, owner = context.log, context.pool.victim(fault.victim)
    if min(owner.active) not in EVERY:  # it has found topics alone
        owner = next(worker for worker in context.pool.workers if min(worker.active) in EVERY)
    number = min(owner.active)
    topic, ledger = context.environment.topic, _ledger(context)
    mark = log.mark()
    with ledger.begin() as tx:
        position = ledger.positions_of([Partition(topic, number)], locked=False)[Partition(topic, number)]
        to = max(context.environment.base[number], position.next_offset - fault.amount)
        rebuilt = context.pool.plan.sums
        at_number = Partition(topic, number)
        reset_offset(tx, at_number, to, actor="chaos", log=None, reason="rewind under load", rebuilt=rebuilt)
        for table, partition, offset in ((TABLE, "partition", '"offset"'), (FIRSTS, "p", "o")):
            tx.connection.execute(
                text(f"DELETE FROM {table} WHERE topic = :topic AND {partition} = :partition AND {offset} >= :to"),
                {"topic": topic, "partition": number, "to": to},
            )
        if context.pool.plan.sums:
            _rebuild_sums(tx.connection, topic, number)
        if context.pool.plan.changes:
            _rebuild_changed(tx.connection, topic, number, context.environment.base[number], to)
    injected = Injected(monotonic(), frozenset([number]), mark)
    log.wait("ClaimLost", by=owner.name, since=mark, where=lambda s: s["partition"] == number)
    log.wait("Activated", since=mark, where=lambda s: (s["partition"], s["offset"]) == (number, to))
    return injected


def _rebuild_sums(tx: Connection, topic: str, partition: int) -> None:
    """Compute the sums of the remaining rows again: those of this partition, which no worker has, and the total."""
    rows = f"""
        UPDATE {SUMS} SET (records, offsets, lowest, highest) = (
            SELECT count(*), coalesce(sum("offset"), 0), min("offset"), max("offset") FROM {TABLE}
            WHERE topic = :topic AND (:partition < 0 OR partition = :partition))
        WHERE topic = :topic AND name = :name"""
    lock = text(f"SELECT FROM {SUMS} WHERE topic = :topic AND name = 'all' FOR UPDATE")
    tx.execute(lock, {"topic": topic})  # first: the statements after it see what its last owner has committed
    for name, number in (("all", -1), (f"p{partition}", partition)):
        tx.execute(text(rows), {"topic": topic, "name": name, "partition": number})


def _rebuild_changed(tx: Connection, topic: str, partition: int, low: int, high: int) -> None:
    """Make the rows of a partition again, which no worker has, as its changes up to the new position make them."""
    tx.execute(text(f"DELETE FROM {CHANGED} WHERE p = :partition"), {"partition": partition})
    rows = f"INSERT INTO {CHANGED} SELECT p, id, v, v FROM ({MADE_BY_CHANGES}) AS made"
    tx.exec_driver_sql(rows, changes_in(topic, {partition: low}, {partition: high}))


def pause(context: FaultContext, fault: Fault) -> Injected:
    """Pause the group under load, check that no worker commits, and resume it."""
    log, ledger = context.log, _ledger(context)
    mark, started = log.mark(), monotonic()
    ledger.pause(reason="chaos", actor="chaos")
    paused = log.mark()
    for worker in context.pool.workers:
        log.wait("Paused", by=worker.name, since=mark)
    behind = ledger.read()
    commits = [s for s in log.since(paused) if s.name == "Committed" and s.seconds > started + 1]
    if commits or ledger.read() != behind:
        raise NotReached(f"a paused group committed: {commits}")
    ledger.resume(actor="chaos")
    return Injected(started, EVERY, mark, over=monotonic())


def _ledger(context: FaultContext) -> GroupLedger:
    return GroupLedger(context.environment.engine, context.environment.topic)
