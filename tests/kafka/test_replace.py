"""A group that runs a newer handler takes the place of another one, while the workers of both run (I1, I4, I5)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from seekpoint import events
from seekpoint.admin import Admin
from seekpoint.errors import Fenced, HandlerOutdated, NotApplied
from support.command import seekpoint
from support.postgres_proxy import PostgresProxy
from support.replace_process import STEPS, ReplaceProcess
from support.replacement import LATE, NEW, OLD, TABLES, Replacement
from support.worker_group import WorkerGroup


@pytest.fixture
def schemas(seekpoint_engine: Engine, seekpoint_schema: str) -> Iterator[tuple[str, str]]:
    """Two schemas with the tables; dropped after the workers have ended."""
    names = f"{seekpoint_schema}_live", f"{seekpoint_schema}_next"
    with seekpoint_engine.begin() as tx:
        for name in names:
            tx.execute(text(f"CREATE SCHEMA {name};" + TABLES.format(name)))
    yield names
    with seekpoint_engine.begin() as tx:
        for name in names:
            tx.execute(text(f"DROP SCHEMA {name} CASCADE"))


@pytest.fixture
def replacement(schemas: tuple[str, str], worker_group: WorkerGroup) -> Iterator[Replacement]:
    """Two groups, without workers."""
    replacement = Replacement(worker_group, *schemas)
    yield replacement
    for engine in replacement.engines.values():
        engine.dispose()


def run(replacement: Replacement, *words: str, exits: int = 0) -> Any:
    return seekpoint(*words, *replacement.worker_group.database_options, exits=exits)


def test_a_newer_handler_takes_the_groups_place(replacement: Replacement) -> None:
    """I1, I4, I5: rows and positions change their group together; the other group is paused in the other schema."""
    replacement.produce("a", "b", "c")
    old, new = replacement.worker(replacement.old, OLD), replacement.worker(replacement.new, NEW)
    replacement.wait_for(replacement.old, 3)
    words = ["groups", "replace", replacement.old, "--by", replacement.new]
    replacement.wait_for(replacement.new, 3)
    planned = run(replacement, *words).stdout
    for line in (
        f"would replace {replacement.old} with {replacement.new}:",
        f"{replacement.next}.entries becomes {replacement.live}.entries",
        "dry run",
    ):
        assert line in planned
    assert replacement.versions() == ({OLD}, {NEW})
    assert "--reason" in run(replacement, *words, "--apply", exits=2).stderr

    done = run(replacement, *words, "--apply", "--reason", "a fix", "--actor", "ada").stdout
    assert f"{replacement.new} has replaced {replacement.old}, which is at handler version 2: its workers" in done
    old.ends_with(HandlerOutdated)
    new.seen.wait_for(events.Paused)
    assert replacement.versions() == ({NEW}, {OLD})
    assert "nothing to do" in run(replacement, *words, "--apply", "--reason", "twice").stdout

    replacement.produce("d")
    worker = replacement.worker(replacement.old, NEW)
    replacement.wait_for(replacement.old, 4)
    worker.stop()
    assert (replacement.versions(), set(replacement.positions(replacement.new).values())) == (({NEW}, {OLD}), {3})
    history = json.loads(
        run(replacement, "offsets", "history", replacement.old, "--json", "--action", "replace").stdout
    )
    assert {(action["actor"], action["reason"]) for action in history} == {("ada", f"by {replacement.new}: a fix")}
    (group,) = [group for group in replacement.admin.groups()[0] if group.name == replacement.new]
    assert group.pause is not None
    assert group.pause.by == f"replacement of {replacement.old}"


@pytest.mark.long
def test_a_group_that_is_further_on_brings_its_position(replacement: Replacement) -> None:
    """I1, I3: the live position becomes that of the rows that become live, whatever the old handler has applied."""
    replacement.produce("a", "b")
    old = replacement.worker(replacement.old, OLD)
    replacement.wait_for(replacement.old, 2)
    replacement.admin.apply(replacement.admin.plan_pause(replacement.old), reason="a test", actor="bob")
    replacement.produce("c")
    new = replacement.worker(replacement.new, NEW)
    replacement.wait_for(replacement.new, 3)
    result = replacement.replace()
    assert {(position.from_offset, position.to_offset) for position in result.positions} == {(2, 3)}
    assert (result.resumed, result.seconds) == (False, None)  # an operator has paused it, and resumes it
    (group,) = replacement.admin.status([replacement.old])[0]
    assert group.pause is not None
    assert group.pause.by == "bob"
    assert (replacement.positions(replacement.old), replacement.versions()) == ({0: 3, 1: 3}, ({NEW}, {OLD}))
    new.seen.wait_for(events.Paused)
    old.ends_with(HandlerOutdated)


@pytest.mark.long
def test_a_group_that_does_not_come_is_waited_for_and_the_live_one_continues(replacement: Replacement) -> None:
    replacement.produce("a", "b")
    replacement.worker(replacement.old, OLD)
    new = replacement.worker(replacement.new, NEW)
    replacement.wait_for(replacement.old, 2)
    replacement.wait_for(replacement.new, 2)
    new.stop()
    replacement.produce("c")
    replacement.wait_for(replacement.old, 3)
    with pytest.raises(
        NotApplied, match=r"has not passed the positions .*: it still has 2 offsets to pass, in 2 partitions"
    ):
        replacement.replace(wait=0)
    replacement.produce("d")
    replacement.wait_for(replacement.old, 4)
    assert replacement.versions() == ({OLD}, {NEW})
    assert not [
        action for action in replacement.admin.history(replacement.old) if action.action == "pause"
    ]  # it never waited for this


@pytest.mark.long
def test_dead_letters_go_with_the_tables_that_lack_their_records(replacement: Replacement) -> None:
    """I4: what one handler could not apply and the other could is refused, or accepted; it is accounted for."""
    replacement.produce("a", "bad 1", "bad 2", "b")
    old = replacement.worker(replacement.old, OLD)
    replacement.worker(replacement.new, NEW)
    replacement.wait_for(replacement.old, 4)
    replacement.wait_for(replacement.new, 4)
    with pytest.raises(
        Fenced,
        match=rf"{replacement.old} has open dead letters that {replacement.new} does not have: .*/0/1 .*; .*/0/2 ",
    ):
        replacement.replace()
    assert replacement.versions() == ({OLD}, {NEW})
    replacement.replace(accept_differences=True)
    assert replacement.versions() == ({NEW}, {OLD})
    dead_letters = {
        (row.consumer_group, row.record_offset)
        for row in replacement.worker_group.sql("SELECT * FROM {schema}.dead_letter")
    }
    assert dead_letters == {(replacement.old, 2), (replacement.new, 1)}
    old.ends_with(HandlerOutdated)


@pytest.mark.long
def test_dead_letters_of_both_are_no_difference(replacement: Replacement) -> None:
    """I4: the same record of both groups changes the group, too, and stays one row each."""
    replacement.produce("a", "bad 1", "b")
    workers = [replacement.worker(group, OLD) for group in (replacement.old, replacement.new)]
    replacement.wait_for(replacement.old, 3)
    replacement.wait_for(replacement.new, 3)
    replacement.worker_group.sql(f"UPDATE {{schema}}.consumer_group SET version = 2 WHERE name = '{replacement.new}'")
    before = {row.id: row.consumer_group for row in replacement.worker_group.sql("SELECT * FROM {schema}.dead_letter")}
    assert replacement.plan().differences == ()
    replacement.replace()
    after = {row.id: row.consumer_group for row in replacement.worker_group.sql("SELECT * FROM {schema}.dead_letter")}
    assert len(before) == 4
    assert after == {
        dead_letter: replacement.new if group == replacement.old else replacement.old
        for dead_letter, group in before.items()
    }
    for worker in workers:
        worker.ends_with(HandlerOutdated)


@pytest.mark.long
def test_records_that_wait_for_their_retries_go_with_the_tables_that_lack_them(replacement: Replacement) -> None:
    """I4: one of both groups is no difference; one of the live group alone is refused, or accepted."""
    waits: dict[str, Any] = {"retry": LATE, "retry_order": "none"}
    replacement.produce("a", "of both", "b")
    old = replacement.worker(replacement.old, OLD, away={"of both", "of the old one"}, **waits)
    new = replacement.worker(replacement.new, NEW, away={"of both"}, **waits)
    replacement.wait_for(replacement.old, 3)
    replacement.wait_for(replacement.new, 3)
    assert replacement.plan().differences == ()
    replacement.produce("of the old one")
    replacement.wait_for(replacement.old, 4)
    replacement.wait_for(replacement.new, 4)
    with pytest.raises(
        Fenced,
        match=rf"{replacement.old} has open dead letters that {replacement.new} does not have: .*/0/3 .*, .*/1/3 ",
    ):
        replacement.replace()
    replacement.replace(accept_differences=True)
    old.ends_with(HandlerOutdated)
    new.stop()
    assert replacement.versions() == ({NEW}, {OLD})
    worker_group, live = replacement.worker_group, f"consumer_group = '{replacement.old}'"
    rows = f"SELECT record_offset, state FROM {{schema}}.dead_letter WHERE {live}"
    assert list(map(tuple, worker_group.sql(rows))) == [(1, "waiting")] * replacement.partitions
    worker_group.sql("UPDATE {schema}.dead_letter SET retry_at = clock_timestamp()")
    worker = replacement.worker(replacement.old, NEW, **waits)
    worker_group.wait(lambda: {row.state for row in worker_group.sql(rows)} == {"replayed"})
    worker.stop()
    assert replacement.versions() == ({NEW}, {OLD})
    of_the_other = f"SELECT record_offset, state FROM {{schema}}.dead_letter WHERE NOT {live} ORDER BY 1"
    assert [tuple(row) for row in worker_group.sql(of_the_other)] == [
        (offset, "waiting") for offset in (1, 3) for _ in range(replacement.partitions)
    ]


@pytest.mark.long
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_looked_up(replacement: Replacement, proxy: PostgresProxy, when: Any) -> None:
    replacement.produce("a")
    old = replacement.worker(replacement.old, OLD)
    replacement.worker(replacement.new, NEW)
    replacement.wait_for(replacement.old, 1)
    replacement.wait_for(replacement.new, 1)
    engine = create_engine(proxy.dsn)
    admin = Admin(engine, schema=replacement.worker_group.schema)
    proxy.arm(when, "SET SCHEMA")
    result = admin.replace_group(replacement.plan(), reason="a test")
    assert proxy.counts[when] == 1
    assert (len(result.positions), result.resumed, replacement.versions()) == (2, True, ({NEW}, {OLD}))
    actions = [action.action for action in replacement.admin.history(replacement.old) if action.topic is None]
    assert actions[:3] == ["resume", "replace", "pause"]
    old.ends_with(HandlerOutdated)
    engine.dispose()


@pytest.fixture
def process() -> Iterator[Callable[..., ReplaceProcess]]:
    """``process(**what)`` is ended after the test."""
    processes: list[ReplaceProcess] = []

    def start(**what: Any) -> ReplaceProcess:
        processes.append(ReplaceProcess(**what))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.mark.long
@pytest.mark.parametrize("victim", ["command", "old", "new"])
@pytest.mark.parametrize("step", STEPS)
def test_whatever_is_killed_the_live_rows_are_the_log_up_to_the_positions(
    replacement: Replacement, process: Callable[..., ReplaceProcess], step: str, victim: str
) -> None:
    """I1, I2, I4, I5: at each step, the command, or a worker of one of the groups."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    workers = {replacement.old: OLD, replacement.new: NEW}
    running = {group: process(**replacement.process(group, version)) for group, version in workers.items()}
    with replacement.worker_group.stream(replacement.topic, replacement.partitions, rate=300):
        for started in running.values():
            started.wait_for("Committed", count=chance.randint(1, 8))
        what = {
            "role": "operator",
            "dsn": replacement.worker_group.dsn,
            "schema": replacement.worker_group.schema,
            "old": replacement.old,
            "new": replacement.new,
        }
        command = process(**what, stop_at=step)
        command.wait_until_stopped()
        if step != "committing":  # it has the tables' locks then
            replacement.versions()
        if victim == "command":
            command.kill()
            replacement.versions()
            if chance.random() < 0.5:  # undo it first; the workers continue
                replacement.admin.apply(replacement.admin.plan_resume(replacement.old), reason="a test")
            if not (plan := replacement.plan()).is_done:
                replacement.admin.replace_group(plan, reason="again", wait=60.0)
        else:
            group = getattr(replacement, victim)
            running[group].kill()
            running[group] = process(**replacement.process(group, workers[group]))
            command.thaw()
            assert command.ended() == 0, command.tail()
        replacement.versions()
        running[replacement.old].wait_for("outdated")
        last = process(**replacement.process(replacement.old, NEW))
        last.wait_for("Committed", count=3)
    live, other = replacement.versions()
    assert (live, other) == ({NEW}, {OLD})
    with suppress(ProcessLookupError):
        running[replacement.new].terminate()
    ends = {row.partition: row.next_offset for row in replacement.worker_group.sql(
        f"SELECT * FROM {{schema}}.partition_offset WHERE consumer_group = '{replacement.old}'")}  # fmt: skip
    assert min(ends.values()) > 0
