"""What a replacement of a group refuses, each with its reason, and that it changes nothing then (I1, I4, I5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text

from seekpoint import Accumulate, Pipeline, Text
from seekpoint.admin import Admin, ReplacePlan, ResetTo
from seekpoint.errors import ConfigError, Fenced, GroupForgotten
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.pipeline.declared import declared
from seekpoint.records import Cause, Failure, NewDeadLetter, RawRecord, State
from support.command import seekpoint
from support.ledger_worker import LedgerWorker
from support.trouble import put_stop


class Groups:
    """A group ``old`` at version 1, and ``new`` at version 2, both at offset 5 of partition 0 and 3 of 1."""

    def __init__(self, new_worker: Callable[..., LedgerWorker], engine: Engine, schema: str) -> None:
        self.engine, self.schema, self.new_worker = engine, schema, new_worker
        self.live, self.next = f"{schema}_live", f"{schema}_next"
        self.sql(f"CREATE SCHEMA {self.live}", f"CREATE SCHEMA {self.next}")
        for name in (self.live, self.next):
            self.sql(f"CREATE TABLE {name}.t (id serial PRIMARY KEY, origin text NOT NULL)")
            self.sql(f"INSERT INTO {name}.t (origin) VALUES ('{name}')")
        self.admin = Admin(engine, schema=schema)
        self.old = new_worker("old", positions={0: 5, 1: 3}, tables=[f"{self.live}.t"])
        self.new = new_worker("new", positions={0: 5, 1: 3}, tables=[f"{self.next}.t"], version=2)

    def sql(self, *statements: str) -> list[Any]:
        """Run these, with the names of the schemas for ``{live}``, ``{next}`` and ``{ledger}``."""
        names = {"{live}": self.live, "{next}": self.next, "{ledger}": f'"{self.schema}"'}
        with self.engine.begin() as tx:
            for sql in statements:
                statement = sql
                for name, value in names.items():
                    statement = statement.replace(name, value)
                result = tx.execute(text(statement))
            return list(result.all()) if result.returns_rows else []

    def plan(self) -> ReplacePlan:
        return self.admin.plan_replace("old", by="new")

    def origins(self) -> tuple[str, str]:
        """Which table is live, and which is in the other schema."""
        (live,), (other,) = self.sql("SELECT origin FROM {live}.t"), self.sql("SELECT origin FROM {next}.t")
        return live.origin.removeprefix(self.schema), other.origin.removeprefix(self.schema)

    def dead_letter(self, worker: LedgerWorker, offset: int) -> None:
        record = RawRecord("t", 0, offset, None, b"k", b"v")
        dead_letter = NewDeadLetter(record, Failure(Cause.POISON, "Poison: a test"), State.DEAD_LETTERED)
        with self.engine.begin() as tx:
            DeadLetters(worker.ledger).insert(tx, [dead_letter], {"t": worker.topic_id}, 1)

    def drop(self) -> None:
        self.sql("DROP SCHEMA IF EXISTS {live} CASCADE", "DROP SCHEMA IF EXISTS {next} CASCADE")


@pytest.fixture
def groups(
    new_worker: Callable[..., LedgerWorker], seekpoint_engine: Engine, seekpoint_schema: str
) -> Iterator[Groups]:
    groups = Groups(new_worker, seekpoint_engine, seekpoint_schema)
    yield groups
    groups.drop()


def declares(worker: LedgerWorker, version: int, *sinks: Accumulate, **options: Any) -> None:
    """A worker has stored what its pipeline declares."""
    pipeline = Pipeline(worker.ledger.group, topics="t", value=Text(), sinks=sinks, version=version, **options)
    StatusTables(worker.ledger, WorkerProcess("host", 1, None, "0")).declare(declared(pipeline))


def sums(schema: str) -> Accumulate:
    return Accumulate((schema, "t"), key=["id"], add=["n"])


def test_what_a_group_declares_goes_with_its_tables(groups: Groups) -> None:
    """I1: no worker of the newer handler has claimed, and a reset by which its sums would count twice is refused."""
    declares(groups.old, 1, handle=lambda tx, batch: None, writes=[f"{groups.live}.t"])
    declares(groups.new, 2, sums(groups.next))
    groups.admin.replace_group(groups.plan(), reason="sums now", actor="ada")
    plan = groups.admin.plan_reset("old", ResetTo.offset(2), {"t": [0]})
    assert plan.counts_twice == (f"{groups.live}.t",)
    with pytest.raises(ConfigError, match="would count records twice"):
        groups.admin.apply(plan, reason="a test")
    (new,) = groups.sql("SELECT declared FROM {ledger}.consumer_group WHERE name = 'new'")
    assert new.declared["t"]["sinks"] == []
    assert new.declared["t"]["writes"] == [f"{groups.next}.t"]


def test_a_forward_reset_before_the_replacement_was_of_another_position(groups: Groups) -> None:
    """I1: the old group had skipped what the new one has applied."""
    declares(groups.old, 1, sums(groups.live))
    declares(groups.new, 2, sums(groups.next))
    groups.admin.apply(groups.admin.plan_reset("old", ResetTo.offset(9), {"t": [0]}), reason="skip")
    groups.new.commit({0: 9})
    groups.admin.replace_group(groups.plan(), reason="a fix", actor="ada")
    with pytest.raises(ConfigError, match="would count records twice"):
        groups.admin.apply(groups.admin.plan_reset("old", ResetTo.offset(5), {"t": [0]}), reason="a test")


def test_resets_go_with_the_positions(groups: Groups) -> None:
    """I4: a reload, a wait for a record and another replacement look at those of the position as it is."""
    groups.sql("UPDATE {ledger}.partition_offset SET first_offset = 4 WHERE consumer_group = 'old' AND partition = 0")
    for target in (2, 9):
        groups.admin.apply(groups.admin.plan_reset("old", ResetTo.offset(target), {"t": [0]}), reason="skip")
    groups.new.commit({0: 9})

    def recorded(worker: LedgerWorker) -> tuple[list[tuple[int, int]], list[int]]:
        with worker.ledger.begin() as tx:
            resets = [(row.from_offset, row.to_offset) for row in tx.execute(RELOAD_RUN["resets"])]
            return resets, [row.first_offset for row in tx.execute(RELOAD_RUN["first_offsets"])]

    moved = [(5, 2), (2, 9)], [4]
    nothing: tuple[Any, ...] = [], []
    assert (recorded(groups.old), recorded(groups.new)) == (moved, nothing)
    groups.admin.replace_group(groups.plan(), reason="a fix", actor="ada")
    assert (recorded(groups.old), recorded(groups.new)) == (nothing, moved)
    assert str(groups.old.ledger.wait_until_applied("t", 0, 6, timeout=0)) == "t/0: offset 6 was applied"
    assert "reset the position past it (of old: skip)" in str(
        groups.new.ledger.wait_until_applied("t", 0, 6, timeout=0)
    )
    [copied, *_] = [action for action in groups.admin.history("new") if action.action == "reset"]
    [reset, *_] = [action for action in groups.admin.history("old") if action.action == "reset"]
    assert (copied.at, copied.actor) == (reset.at, reset.actor)
    groups.new_worker("third", positions={0: 9, 1: 3}, tables=[f"{groups.live}.t"])
    with pytest.raises(Fenced, match=r"new was reset \(t/0\), so its tables may lack records"):
        groups.admin.plan_replace("third", by="new")


def test_positions_tables_and_their_sequences_are_exchanged(groups: Groups) -> None:
    """I1, I5: both groups have new tokens, and each table draws from its own sequence as before."""
    groups.new.commit({0: 9})
    before = {group.ledger.group: group.row() for group in (groups.old, groups.new)}
    plan = groups.plan()
    assert (plan.behind, plan.differences, plan.is_done) == (0, (), False)
    result = groups.admin.replace_group(plan, reason="a fix", actor="ada")
    assert [(position.partition, position.from_offset, position.to_offset) for position in result.positions] == [
        (0, 5, 9),
        (1, 3, 3),
    ]
    assert groups.origins() == ("_next", "_live")
    after = {group.ledger.group: group.row() for group in (groups.old, groups.new)}
    assert (after["old"].next_offset, after["new"].next_offset) == (9, 5)
    assert all(after[name].token != before[name].token for name in after)
    assert all(after[name].epoch > before[name].epoch for name in after)
    for worker in (groups.old, groups.new):
        with pytest.raises(Fenced):
            worker.commit({0: 12})
    owned = groups.sql(
        "SELECT pg_get_serial_sequence('{live}.t', 'id') AS a, pg_get_serial_sequence('{next}.t', 'id') AS b"
    )
    assert tuple(owned[0]) == (f"{groups.live}.t_id_seq", f"{groups.next}.t_id_seq")
    groups.sql("INSERT INTO {live}.t (origin) VALUES ('x')", "DROP TABLE {next}.t")
    rows = groups.sql("SELECT * FROM {ledger}.consumer_group ORDER BY name DESC")
    assert [(row.name, row.version, row.paused, row.paused_by) for row in rows] == [
        ("old", 2, False, None), ("new", 2, True, "replacement of old"),
    ]  # fmt: skip
    assert groups.plan().is_done


def _run_of_old(groups: Groups) -> None:
    groups.sql(
        "INSERT INTO {ledger}.reload_run (id, groups, tables, strategy, pipelines, version_from, version_to, state, "
        "driver_epoch, driver, staging_schema, actor, reason) "
        "VALUES (gen_random_uuid(), '{{old}}', '{{t}}', 'reprocess', '{{m}}', "
        "'{{1}}', '{{1}}', 'opened', 1, 'd', 's', 'a', 'b')"
    )


def _third_group(groups: Groups) -> None:
    groups.new_worker("third", positions={0: 1}, tables=[f"{groups.next}.t"])


def _statements(*statements: str) -> Callable[[Groups], object]:
    return lambda groups: groups.sql(*statements)


REFUSALS: dict[str, tuple[Callable[[Groups], object], str]] = {
    "version": (_statements("UPDATE {ledger}.consumer_group SET version = 2"), "give its pipeline a version above 2"),
    "cluster": (
        _statements("UPDATE {ledger}.consumer_group SET cluster_id = 'x' WHERE name = 'new'"),
        "of Kafka cluster cluster-1",
    ),
    "reset": (
        lambda groups: groups.new.ledger.reset_offset("t", 0, 2, log=None, reason="a test"), "new was reset (t/0)",
    ),
    "reprocess": (_run_of_old, "old has an open reprocess"),
    "topic": (
        _statements("UPDATE {ledger}.partition_offset SET topic = 'u' WHERE consumer_group = 'new'"),
        "new has no stored offset for topic 't'",
    ),
    "partition": (
        _statements("DELETE FROM {ledger}.partition_offset WHERE consumer_group = 'old' AND partition = 1"),
        "old has no stored offset for t/1 yet",
    ),
    "topic id": (
        _statements("UPDATE {ledger}.partition_offset SET topic_id = gen_random_uuid() WHERE consumer_group = 'new'"),
        "the offsets of old belong to topic id",
    ),
    "first offset": (
        _statements("UPDATE {ledger}.partition_offset SET first_offset = 1 WHERE consumer_group = 'new'"),
        "t/0: new began at offset 1, but old at 0",
    ),
    "third group": (_third_group, "group 'third' writes"),
    "undeclared": (
        _statements("DELETE FROM {ledger}.group_topic WHERE consumer_group = 'new'"), "name them in writes=",
    ),
    "other names": (_statements("ALTER TABLE {next}.t RENAME TO u"), "there is no table"),
    "view": (_statements("CREATE VIEW {live}.v AS SELECT * FROM {live}.t"), "has view"),
    "view of the new one": (_statements("CREATE VIEW {next}.v AS SELECT * FROM {next}.t"), "has view"),
    "foreign key": (
        _statements("CREATE TABLE {live}.other (t int REFERENCES {live}.t)"), "has foreign key other_t_fkey of",
    ),
    "sequence": (
        _statements("CREATE TABLE {live}.other (LIKE {live}.t INCLUDING DEFAULTS)"), "which draws from its sequence",
    ),
    "inheritance": (_statements("CREATE TABLE {live}.other () INHERITS ({live}.t)"), "has inheritance"),
    "grant": (_statements("GRANT SELECT ON {live}.t TO PUBLIC"), "has grant of SELECT to PUBLIC"),
    "row security": (_statements("ALTER TABLE {live}.t ENABLE ROW LEVEL SECURITY"), "has row security"),
    "unlogged": (_statements("ALTER TABLE {next}.t SET UNLOGGED"), "has storage that survives a crash"),
    "rule": (_statements("CREATE RULE r AS ON DELETE TO {live}.t DO INSTEAD NOTHING"), "has rule r"),
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSALS)
def test_what_would_lose_or_double_rows_is_refused_in_the_plan_and_under_the_locks(groups: Groups, why: str) -> None:
    plan = groups.plan()
    change, message = REFUSALS[why]
    change(groups)
    before = groups.sql("SELECT * FROM {ledger}.partition_offset ORDER BY 1, 2, 3")
    for refused in (groups.plan, lambda: groups.admin.replace_group(plan, reason="a test")):
        with pytest.raises(Fenced) as caught:
            refused()
        assert message in str(caught.value)
    assert groups.sql("SELECT * FROM {ledger}.partition_offset ORDER BY 1, 2, 3") == before
    assert not [action for action in groups.admin.history("old") if action.action in {"pause", "replace"}]


def test_a_publication_of_all_tables_is_refused(groups: Groups) -> None:
    name = f"p_{uuid4().hex[:8]}"
    groups.sql(f"CREATE PUBLICATION {name} FOR TABLE {{live}}.t")
    try:
        with pytest.raises(Fenced, match=f"has publication {name}"):
            groups.plan()
    finally:
        groups.sql(f"DROP PUBLICATION {name}")


def test_what_only_one_group_has_open_is_named_and_accepted_by_name_alone(groups: Groups) -> None:
    """I4: a dead letter goes with the table that lacks its record; a stop is decided by the new handler."""
    groups.dead_letter(groups.old, 2)
    groups.dead_letter(groups.new, 4)
    groups.dead_letter(groups.old, 3)
    groups.dead_letter(groups.new, 3)
    groups.sql(put_stop("{ledger}", "PoisonStop", "3", "o.consumer_group = 'old' AND o.partition = 1"))
    plan = groups.plan()
    *of_dead_letters, stop = plan.differences
    new_ones, old_ones = sorted(of_dead_letters)
    assert new_ones.startswith("new has open dead letters that old does not have: t/0/4")
    assert old_ones.startswith("old has open dead letters that new does not have: t/0/2")
    assert stop == "old is stopped at t/1/3 (PoisonStop), and new does not"
    with pytest.raises(Fenced, match="accept the differences: --accept-differences"):
        groups.admin.replace_group(plan, reason="a test")
    assert groups.origins() == ("_live", "_next")
    groups.admin.replace_group(plan, reason="a test", accept_differences=True)
    assert groups.origins() == ("_next", "_live")
    dead_letters = groups.sql("SELECT consumer_group, record_offset, partition FROM {ledger}.dead_letter ORDER BY 1, 2")
    assert [tuple(row) for row in dead_letters] == [("new", 2, 0), ("new", 3, 0), ("old", 3, 0), ("old", 4, 0)]
    assert groups.sql("SELECT * FROM {ledger}.partition_trouble") == []


def test_a_reset_since_the_plan_is_refused(groups: Groups) -> None:
    plan = groups.plan()
    groups.old.ledger.reset_offset("t", 0, 4, log=None, reason="a test")
    with pytest.raises(Fenced, match="was reset or forgotten since the plan was made"):
        groups.admin.replace_group(plan, reason="a test")
    assert groups.origins() == ("_live", "_next")


def test_an_operator_who_resumes_the_group_meanwhile_has_decided(groups: Groups) -> None:
    """The pause is the command's; its end is a decision against the exchange."""
    groups.old.commit({0: 7})
    plan = groups.plan()

    def meanwhile(what: str, done: int, total: int) -> None:
        if what.endswith("catches up") and done < total:
            groups.new.commit({0: 7})
            groups.old.commit({0: 8})  # so that the second wait has something to wait for
        elif done < total:
            groups.admin.apply(groups.admin.plan_resume("old"), reason="not now")

    with pytest.raises(Fenced, match="old was paused or resumed meanwhile, and is not paused: nothing was exchanged"):
        groups.admin.replace_group(plan, reason="a test", progress=meanwhile)
    assert groups.origins() == ("_live", "_next")


def test_a_refusal_after_the_pause_resumes_the_group(groups: Groups) -> None:
    plan = groups.plan()

    def meanwhile(what: str, done: int, total: int) -> None:
        if not what.endswith("catches up"):
            groups.sql("CREATE VIEW {live}.v AS SELECT * FROM {live}.t")

    with pytest.raises(Fenced, match="has view"):
        groups.admin.replace_group(plan, reason="a test", progress=meanwhile)
    actions = [action.action for action in groups.admin.history("old")][:2]
    assert (actions, groups.origins()) == (["resume", "pause"], ("_live", "_next"))
    (row,) = groups.sql("SELECT * FROM {ledger}.consumer_group WHERE name = 'old'")
    assert (row.paused, row.paused_by) == (False, None)


@pytest.mark.long
def test_a_session_that_reads_a_table_for_long_is_named(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks are given up after a moment each time; the group is resumed at the end."""
    monkeypatch.setattr("seekpoint.backoff.pause", lambda *_: None)
    plan = groups.plan()
    with groups.engine.connect() as reader:
        reader.execute(text(f"SELECT * FROM {groups.live}.t")).all()
        with pytest.raises(
            Fenced, match=r"has locked a position of old or new, or one of .*_live\.t, .*_next\.t, for too long"
        ):
            groups.admin.replace_group(plan, reason="a test")
    assert groups.origins() == ("_live", "_next")
    groups.admin.replace_group(plan, reason="a test")
    assert groups.origins() == ("_next", "_live")


def test_a_run_that_was_killed_is_completed_or_undone(groups: Groups) -> None:
    """The pause names the replacement: the next run takes it over, and resumes the group at the end."""
    ledger: GroupLedger = groups.old.ledger
    ledger.pause(reason="a test", actor="replacement by new")
    plan = groups.plan()
    assert any("which this run completes" in consequence for consequence in plan.consequences)
    result = groups.admin.replace_group(plan, reason="again")
    assert (result.resumed, groups.origins()) == (True, ("_next", "_live"))
    (row,) = groups.sql("SELECT * FROM {ledger}.consumer_group WHERE name = 'old'")
    assert not row.paused


def test_names_that_are_none(groups: Groups) -> None:
    for by, error in (("old", "cannot replace itself"), ("unknown", "has no group 'unknown'")):
        with pytest.raises(ConfigError, match=error):
            groups.admin.plan_replace("old", by=by)
    with pytest.raises(ConfigError, match="has no group 'unknown'"):
        groups.admin.plan_replace("unknown", by="new")
    groups.new.ledger.pause(reason="a test")
    groups.admin.apply(groups.admin.plan_forget("new", export_to=None), reason="a test")
    with pytest.raises(GroupForgotten):
        groups.plan()
    url = groups.engine.url.render_as_string(hide_password=False)
    words = ("groups", "replace", "old", "--by", "new", "--database-url", url, "--schema", groups.schema)
    assert "was forgotten" in seekpoint(*words, exits=1).stderr
