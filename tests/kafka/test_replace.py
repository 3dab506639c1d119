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
from support.events import Run
from support.kafka_postgres import Scene
from support.postgres_proxy import PostgresProxy
from support.replace_process import STEPS, ReplaceProcess
from support.replacement import NEW, OLD, TABLES, Replacement


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
def pair(schemas: tuple[str, str], scene: Scene) -> Iterator[Replacement]:
    """Two groups, without workers."""
    made = Replacement(scene, *schemas)
    yield made
    for engine in made.engines.values():
        engine.dispose()


def run(pair: Replacement, *words: str, exits: int = 0) -> Any:
    return seekpoint(*words, "--database-url", pair.scene.dsn, "--schema", pair.scene.schema, exits=exits)


def ends_as_outdated(worker: Run) -> None:
    worker.seen.wait_for(events.WorkerStopped, lambda stopped: isinstance(stopped.error, HandlerOutdated))
    with pytest.raises(HandlerOutdated):
        worker.stop()


def test_a_newer_handler_takes_the_groups_place(pair: Replacement) -> None:
    """I1, I4, I5: rows and positions change their group together; the other group is paused in the other schema."""
    pair.produce("a", "b", "c")
    old, new = pair.worker(pair.old, OLD), pair.worker(pair.new, NEW)
    pair.wait_for(pair.old, 3)
    words = ["groups", "replace", pair.old, "--by", pair.new]
    pair.wait_for(pair.new, 3)
    planned = run(pair, *words).stdout
    for said in (
        f"would replace {pair.old} by {pair.new}:",
        f"{pair.next}.entries becomes {pair.live}.entries",
        "dry run",
    ):
        assert said in planned
    assert pair.versions() == ({OLD}, {NEW})
    assert "--reason" in run(pair, *words, "--apply", exits=2).stderr

    done = run(pair, *words, "--apply", "--reason", "a fix", "--actor", "ada").stdout
    assert f"{pair.new} has replaced {pair.old}, which is at handler version 2: its workers" in done
    ends_as_outdated(old)
    new.seen.wait_for(events.Paused)
    assert pair.versions() == ({NEW}, {OLD})
    assert "nothing to do" in run(pair, *words, "--apply", "--reason", "twice").stdout

    pair.produce("d")
    worker = pair.worker(pair.old, NEW)
    pair.wait_for(pair.old, 4)
    worker.stop()
    assert (pair.versions(), set(pair.positions(pair.new).values())) == (({NEW}, {OLD}), {3})
    history = json.loads(run(pair, "offsets", "history", pair.old, "--json", "--action", "replace").stdout)
    assert {(each["actor"], each["reason"]) for each in history} == {("ada", f"by {pair.new}: a fix")}
    (group,) = [each for each in pair.admin.groups()[0] if each.name == pair.new]
    assert group.pause is not None
    assert group.pause.by == f"replacement of {pair.old}"


@pytest.mark.long
def test_a_group_that_is_further_on_brings_its_position(pair: Replacement) -> None:
    """I1, I3: the live position becomes that of the rows that become live, whatever the old handler has applied."""
    pair.produce("a", "b")
    old = pair.worker(pair.old, OLD)
    pair.wait_for(pair.old, 2)
    pair.admin.apply(pair.admin.plan_pause(pair.old), reason="a test", actor="bob")
    pair.produce("c")
    new = pair.worker(pair.new, NEW)
    pair.wait_for(pair.new, 3)
    result = pair.replace()
    assert {(each.from_offset, each.to_offset) for each in result.positions} == {(2, 3)}
    assert (result.resumed, result.seconds) == (False, None)  # an operator has paused it, and resumes it
    (group,) = pair.admin.status([pair.old])[0]
    assert group.pause is not None
    assert group.pause.by == "bob"
    assert (pair.positions(pair.old), pair.versions()) == ({0: 3, 1: 3}, ({NEW}, {OLD}))
    new.seen.wait_for(events.Paused)
    ends_as_outdated(old)


@pytest.mark.long
def test_a_group_that_does_not_come_is_waited_for_and_the_live_one_continues(pair: Replacement) -> None:
    pair.produce("a", "b")
    pair.worker(pair.old, OLD)
    new = pair.worker(pair.new, NEW)
    pair.wait_for(pair.old, 2)
    pair.wait_for(pair.new, 2)
    new.stop()
    pair.produce("c")
    pair.wait_for(pair.old, 3)
    with pytest.raises(
        NotApplied, match=r"has not passed the positions .*: it is 2 records before them in 2 partitions"
    ):
        pair.replace(wait=0)
    pair.produce("d")
    pair.wait_for(pair.old, 4)
    assert pair.versions() == ({OLD}, {NEW})
    assert not [each for each in pair.admin.history(pair.old) if each.action == "pause"]  # it never waited for this


@pytest.mark.long
def test_dead_letters_go_with_the_tables_that_lack_their_records(pair: Replacement) -> None:
    """I4: what one handler could not apply and the other could is refused, or accepted; it is accounted for."""
    pair.produce("a", "bad 1", "bad 2", "b")
    old = pair.worker(pair.old, OLD)
    pair.worker(pair.new, NEW)
    pair.wait_for(pair.old, 4)
    pair.wait_for(pair.new, 4)
    with pytest.raises(Fenced, match=rf"{pair.old} has open dead letters that {pair.new} has not: .*/0/1 .*; .*/0/2 "):
        pair.replace()
    assert pair.versions() == ({OLD}, {NEW})
    pair.replace(accept_differences=True)
    assert pair.versions() == ({NEW}, {OLD})
    letters = {
        (each.consumer_group, each.record_offset) for each in pair.scene.sql("SELECT * FROM {schema}.dead_letter")
    }
    assert letters == {(pair.old, 2), (pair.new, 1)}
    ends_as_outdated(old)


@pytest.mark.long
def test_dead_letters_of_both_are_no_difference(pair: Replacement) -> None:
    """I4: the same record of both groups changes the group, too, and stays one row each."""
    pair.produce("a", "bad 1", "b")
    workers = [pair.worker(group, OLD) for group in (pair.old, pair.new)]
    pair.wait_for(pair.old, 3)
    pair.wait_for(pair.new, 3)
    pair.scene.sql(f"UPDATE {{schema}}.consumer_group SET version = 2 WHERE name = '{pair.new}'")
    before = {row.id: row.consumer_group for row in pair.scene.sql("SELECT * FROM {schema}.dead_letter")}
    assert pair.plan().differences == ()
    pair.replace()
    after = {row.id: row.consumer_group for row in pair.scene.sql("SELECT * FROM {schema}.dead_letter")}
    assert len(before) == 4
    assert after == {letter: pair.new if group == pair.old else pair.old for letter, group in before.items()}
    for each in workers:
        ends_as_outdated(each)


@pytest.mark.long
@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_looked_up(pair: Replacement, proxy: PostgresProxy, when: Any) -> None:
    pair.produce("a")
    old = pair.worker(pair.old, OLD)
    pair.worker(pair.new, NEW)
    pair.wait_for(pair.old, 1)
    pair.wait_for(pair.new, 1)
    engine = create_engine(proxy.dsn)
    admin = Admin(engine, schema=pair.scene.schema)
    proxy.arm(when, "SET SCHEMA")
    result = admin.replace_group(pair.plan(), reason="a test")
    assert proxy.counts[when] == 1
    assert (len(result.positions), result.resumed, pair.versions()) == (2, True, ({NEW}, {OLD}))
    actions = [each.action for each in pair.admin.history(pair.old) if each.topic is None]
    assert actions[:3] == ["resume", "replace", "pause"]
    ends_as_outdated(old)
    engine.dispose()


@pytest.fixture
def process() -> Iterator[Callable[..., ReplaceProcess]]:
    """``process(**what)`` is ended after the test."""
    made: list[ReplaceProcess] = []

    def start(**what: Any) -> ReplaceProcess:
        made.append(ReplaceProcess(**what))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.mark.long
@pytest.mark.parametrize("victim", ["command", "old", "new"])
@pytest.mark.parametrize("step", STEPS)
def test_whatever_is_killed_the_live_rows_are_the_log_up_to_the_positions(
    pair: Replacement, process: Callable[..., ReplaceProcess], step: str, victim: str
) -> None:
    """I1, I2, I4, I5: at each step, the command, or a worker of one of the groups."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    workers = {pair.old: OLD, pair.new: NEW}
    running = {group: process(**pair.process(group, version)) for group, version in workers.items()}
    with pair.scene.stream(pair.topic, pair.partitions, rate=300):
        for each in running.values():
            each.wait_for("Committed", count=chance.randint(1, 8))
        what = {
            "role": "operator",
            "dsn": pair.scene.dsn,
            "schema": pair.scene.schema,
            "old": pair.old,
            "new": pair.new,
        }
        command = process(**what, stop_at=step)
        command.wait_until_stopped()
        if step != "committing":  # it has the tables' locks then
            pair.versions()
        if victim == "command":
            command.kill()
            pair.versions()
            if chance.random() < 0.5:  # undo it first; the workers continue
                pair.admin.apply(pair.admin.plan_resume(pair.old), reason="a test")
            if not (plan := pair.plan()).is_done:
                pair.admin.replace_group(plan, reason="again", wait=60.0)
        else:
            group = getattr(pair, victim)
            running[group].kill()
            running[group] = process(**pair.process(group, workers[group]))
            command.thaw()
            assert command.ended() == 0, command.tail()
        pair.versions()
        running[pair.old].wait_for("outdated")
        last = process(**pair.process(pair.old, NEW))
        last.wait_for("Committed", count=3)
    live, other = pair.versions()
    assert (live, other) == ({NEW}, {OLD})
    with suppress(ProcessLookupError):
        running[pair.new].terminate()
    ends = {row.partition: row.next_offset for row in pair.scene.sql(
        f"SELECT * FROM {{schema}}.partition_offset WHERE consumer_group = '{pair.old}'")}  # fmt: skip
    assert min(ends.values()) > 0
