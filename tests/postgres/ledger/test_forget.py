"""Groups that are forgotten: nothing is applied under their name until that is undone or accepted (I2, I4)."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from seekpoint.admin import Admin, ForgetPlan, ResetPlan, ResetTo, forget
from seekpoint.admin.export_group import Exported
from seekpoint.errors import ConfigError, Fenced, GroupForgotten, GroupPaused
from seekpoint.ledger import GroupLedger
from seekpoint.ledger.dead_letters import DeadLetters
from seekpoint.ledger.sql import RELOAD_RUN
from seekpoint.records import Cause, Failure, NewDeadLetter, Partition, RawRecord, State
from support.command import seekpoint
from support.fixtures import NewEngine
from support.ledger_worker import LedgerWorker
from support.postgres_proxy import PostgresProxy

NewLedgerWorker = Callable[..., LedgerWorker]
FAILURE = Failure(Cause.POISON, "Poison: a test")


def ended(new_worker: NewLedgerWorker, dead_letters: int = 3) -> LedgerWorker:
    """A paused group at offset 7 of partition 0 and 2 of partition 1, with dead letters and one lost range."""
    worker = new_worker(positions={0: 5, 1: 2}, tables=["applied"])
    store = DeadLetters(worker.ledger)
    with worker.ledger.engine.begin() as tx:
        records = [RawRecord("t", 0, n, None, b"k%d" % n, b"\xff%d" % n) for n in range(dead_letters)]
        new = [NewDeadLetter(record, FAILURE, State.DEAD_LETTERED) for record in records]
        store.insert(tx, new, {"t": worker.topic_id}, 1)
    worker.ledger.reset_offset("t", 0, 7, log=None, reason="a test", lost="a test gave them up")
    worker.ledger.pause(reason="it has ended", actor="ada")
    return worker


def admin_of(worker: LedgerWorker, engine: Any = None) -> Admin:
    return Admin(engine or worker.ledger.engine, schema=worker.ledger.schema)


def another(worker: LedgerWorker, **options: Any) -> LedgerWorker:
    ledger = GroupLedger(
        worker.ledger.engine, worker.ledger.group, schema=worker.ledger.schema, tables=["applied"], **options
    )
    return LedgerWorker(ledger, topic_id=worker.topic_id)


def counts(worker: LedgerWorker) -> list[int]:
    """Rows of partitions, topics, dead letters, lost ranges."""
    tables = ("partition_offset", "group_topic", "dead_letter", "lost_range")
    with worker.ledger.engine.connect() as tx:
        name = worker.ledger.schema
        return [tx.execute(text(f'SELECT count(*) FROM "{name}".{table}')).scalar_one() for table in tables]


def run(worker: LedgerWorker, *words: str, exits: int = 0) -> Any:
    url = worker.ledger.engine.url.render_as_string(hide_password=False)
    return seekpoint(*words, "--database-url", url, "--schema", worker.ledger.schema, exits=exits)


def test_a_group_is_forgotten_and_comes_back_at_its_offsets(new_worker: NewLedgerWorker, tmp_path: Path) -> None:
    worker, file = ended(new_worker), tmp_path / "g.jsonl"
    before = worker.row()
    of_group = admin_of(worker).dead_letters("g")
    first, *_ = of_group.list()
    of_group.edit(first.id, b"edited", reason="a typing error")
    words = ["groups", "forget", "g", "--export", str(file)]
    planned = run(worker, *words).stdout
    for line in ("would forget g:", "positions of 2 partitions", "3 dead letters are deleted: 3 dead_lettered"):
        assert line in planned
    for line in ("1 lost range is deleted", f"a copy of these is written to {file} first", "dry run; --apply does it"):
        assert line in planned
    assert (counts(worker), file.exists()) == ([2, 1, 3, 1], False)
    assert "--reason" in run(worker, *words, "--apply", exits=2).stderr

    done = run(worker, *words, "--execute", "--reason", "moved away", "--actor", "bob").stdout
    assert done == f"g is forgotten, with 3 dead letters and 1 lost range, which are in {file}\n"
    assert counts(worker) == [0, 0, 0, 0]
    *dead_letters, lost = map(json.loads, file.read_text().splitlines())
    assert [base64.b64decode(dead_letter["value"]["base64"]) for dead_letter in dead_letters] == [
        b"\xff0",
        b"\xff1",
        b"\xff2",
    ]
    assert dead_letters[0]["edited_value"]["text"] == "edited", "the file is the only copy of it"
    assert dead_letters[0]["edited_reason"] == "a typing error"
    assert (lost["lost_range"]["from_offset"], lost["lost_range"]["to_offset"]) == (5, 7)
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(run(worker, "groups", "list", "--json").stdout) == []
    (listed,) = json.loads(run(worker, "groups", "list", "--forgotten", "--json").stdout)
    assert (listed["name"], listed["by"], listed["reason"], listed["partitions"]) == ("g", "bob", "moved away", 2)
    assert "nothing to do" in run(worker, *words, "--apply", "--reason", "twice").stdout
    assert json.loads(run(worker, "doctor", "--json", "--quiet").stdout)["ok"]

    with pytest.raises(
        GroupForgotten, match=r"was forgotten by bob at \S+Z: moved away \[SP1106\]\nChoices:\n.*forget g --undo"
    ):
        worker.claim(0)
    brokers = ["--kafka", "bootstrap.servers=127.0.0.1:1"]  # none is asked
    for refused in (
        ["status", "g"],
        ["explain", "g"],
        ["groups", "resume", "g", "--apply", "--reason", "x"],
        ["lost", "accept", "g", "t:0", *brokers],
        ["topics", "accept", "g", "t", "--from-beginning", *brokers],
        ["offsets", "mirror", "g", *brokers],
    ):
        assert "was forgotten by bob" in run(worker, *refused, exits=1).stderr
    with pytest.raises(GroupForgotten):
        worker.ledger.resume()
    with pytest.raises(GroupForgotten):
        worker.ledger.standby()

    assert "2 partitions are restored" in run(worker, "groups", "forget", "g", "--undo").stdout
    run(worker, "groups", "forget", "g", "--undo", "--apply", "--reason", "a mistake", "--actor", "bob")
    after = worker.row()
    kept = ("topic_id", "first_offset", "next_offset", "leader_epoch", "committed_at", "record_time")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (after.token != before.token, after.epoch, after.owner) == (True, before.epoch + 1, None)
    with pytest.raises(GroupPaused):
        worker.claim(0)
    worker.ledger.resume()
    worker.claim(0, 1)
    worker.commit({0: 9, 1: 3})
    assert [action.action for action in worker.actions()] == [
        "reset",
        "pause",
        "edit",
        "forget",
        "undo forget",
        "resume",
    ]
    assert "nothing to do" in run(worker, "groups", "forget", "g", "--undo").stdout


def test_dead_letters_of_reprocesses_and_requests_go_too(new_worker: NewLedgerWorker, tmp_path: Path) -> None:
    """Their dead letters have keys and values of records: they are counted, written to the file, and deleted."""
    worker, file = ended(new_worker, dead_letters=0), tmp_path / "g.jsonl"
    name, id_ = f'"{worker.ledger.schema}"', uuid4()
    inserted = (
        f"INSERT INTO {name}.reload_run (id, groups, tables, strategy, pipelines, version_from, version_to, state, "
        f"driver_epoch, driver, staging_schema, actor, reason) VALUES ('{id_}', '{{g}}', '{{t}}', 'reprocess', "
        "'{m:p}', '{1}', '{1}', 'cut_over', 1, 'd', 's', 'ada', 'x')"
    )
    position = (
        f"INSERT INTO {name}.reload_position (run, consumer_group, topic, partition, topic_id, first_offset, "
        f"end_offset, next_offset, epoch, resets) VALUES ('{id_}', 'g', 't', 0, '{worker.topic_id}', 0, 3, 3, 1, 0)"
    )
    of_run = (
        f"INSERT INTO {name}.reprocess_dead_letter (run, record_offset, key, value, header_names, header_values, "
        f"state, cause, error) VALUES ('{id_}', 2, 'k', 'secret', '{{h}}', '{{v}}', 'dead_lettered', 'poison', 'e')"
    )
    request = (
        f"INSERT INTO {name}.replay_request (consumer_group, version, dead_letters, state, actor, reason) "
        "VALUES ('g', 1, '{1}', 'done', 'ada', 'x')"
    )
    with worker.ledger.engine.begin() as tx:
        for statement in (inserted, position, of_run, request):
            tx.exec_driver_sql(statement)
    purged = admin_of(worker).plan_purge("g", timedelta(0))
    assert "keeps 1 dead letter of reprocesses: " in purged.consequences[-1]
    plan = admin_of(worker).plan_forget("g", export_to=file)
    assert (plan.run_dead_letters, plan.requests) == (1, 1)
    assert "1 dead letter of reprocesses is deleted" in plan.consequences
    assert "1 replay request is deleted" in plan.consequences
    done = run(worker, "groups", "forget", "g", "--export", str(file), "--apply", "--reason", "moved away").stdout
    assert "forgotten, with 0 dead letters and 1 lost range, and 1 dead letter of reprocesses, which are in" in done
    assert worker.actions()[-1].reason == "moved away (0 dead letters, 1 lost range, 1 dead letter of reprocesses)"
    first_line, _ = map(json.loads, file.read_text().splitlines())
    assert base64.b64decode(first_line["reprocess_dead_letter"]["value"]["base64"]) == b"secret"
    with worker.ledger.engine.connect() as tx:
        for table in ("reprocess_dead_letter", "replay_request"):
            assert tx.exec_driver_sql(f"SELECT count(*) FROM {name}.{table}").scalar_one() == 0


def test_a_start_that_accepts_it_begins_a_new_group(new_worker: NewLedgerWorker) -> None:
    """I2, I5: it accepts one forgetting, by its time; a later one must be accepted, too."""
    worker = ended(new_worker)
    admin = admin_of(worker)
    admin.apply(admin.plan_forget("g", export_to=None), reason="x", actor="bob")
    ((forgotten_at, plan),) = [(forgotten.forgotten_at, admin.plan_undo_forget("g")) for forgotten in admin.forgotten()]
    for other in (None, "2026-01-01T00:00:00Z"):
        with pytest.raises(GroupForgotten, match=f"--accept-forgotten {forgotten_at}"):
            another(worker, accept_forgotten=other).claim(0)
    new = another(worker, accept_forgotten=forgotten_at)
    new.cluster_id = "cluster-2"  # as a group that has never run
    assert new.ledger.standby() is None
    new.claim(0, start={0: 4})
    new.commit({0: 5})
    assert (new.positions(), admin.forgotten()) == ({0: 5}, [])
    with pytest.raises(Fenced, match="has changed since the plan was made, and is not paused now: nothing was done"):
        admin.apply(plan, reason="x")
    new.ledger.pause(reason="again")
    admin.apply(admin.plan_forget("g", export_to=None), reason="x")
    with pytest.raises(GroupForgotten):
        new.claim(0)


def test_a_reset_that_was_planned_before_is_none_of_the_new_groups(new_worker: NewLedgerWorker) -> None:
    """I5: topic, cluster and last reset are as they were, and the offsets mean something else."""
    worker = ended(new_worker)
    admin = admin_of(worker)
    plan = ResetPlan.from_json(admin.plan_reset("g", ResetTo.offset(3)).to_json())
    admin.apply(admin.plan_forget("g", export_to=None), reason="x", actor="bob")
    with pytest.raises(Fenced, match="was forgotten since the plan was made: nothing was done"):
        admin.apply(plan, reason="x")
    new = another(worker, accept_forgotten=admin.forgotten()[0].forgotten_at)
    new.claim(0, 1, start={0: 9, 1: 1})
    with pytest.raises(Fenced, match="was forgotten since the plan was made: nothing was done"):
        admin.apply(plan, reason="x")
    assert new.positions() == {0: 9, 1: 1}
    assert len(admin.apply(admin.plan_reset("g", ResetTo.offset(3)), reason="x").done) == 2
    assert new.positions() == {0: 3, 1: 3}


def test_resets_of_before_count_after_the_undo_and_not_after_a_new_beginning(new_worker: NewLedgerWorker) -> None:
    """I4: `ended` has reset t/0 from 5 to 7: a reload leaves 5 and 6 out, and a wait says that 5 was not read."""
    worker = ended(new_worker)
    admin = admin_of(worker)

    def resets(of: LedgerWorker) -> list[tuple[int, int]]:
        with of.ledger.begin() as tx:
            return [(row.from_offset, row.to_offset) for row in tx.execute(RELOAD_RUN["resets"])]

    def forget_it() -> str:
        admin.apply(admin.plan_forget("g", export_to=None), reason="x", actor="bob")
        return admin.forgotten()[0].forgotten_at

    forget_it()
    admin.apply(admin.plan_undo_forget("g"), reason="x")
    assert resets(worker) == [(5, 7)]
    assert "reset the position past it" in str(worker.ledger.wait_until_applied("t", 0, 5, timeout=0))
    new = another(worker, accept_forgotten=forget_it())
    new.claim(0, start={0: 4})
    new.commit({0: 8})
    assert resets(new) == []
    assert str(new.ledger.wait_until_applied("t", 0, 5, timeout=0)) == "t/0: offset 5 was applied"
    assert "the group started after it" in str(new.ledger.wait_until_applied("t", 0, 3, timeout=0))


def test_only_a_group_that_no_worker_and_no_job_writes_for(new_worker: NewLedgerWorker) -> None:
    worker = new_worker(positions={0: 5})
    admin = admin_of(worker)
    with pytest.raises(Fenced, match="is not paused, so its workers may be running: seekpoint groups pause g --apply"):
        admin.plan_forget("g", export_to=None)
    with pytest.raises(ConfigError, match="has no group 'h'; its groups are g"):
        admin.plan_forget("h", export_to=None)
    worker.ledger.pause(reason="x", actor="ada")
    plan = admin.plan_forget("g", export_to=None)
    worker.ledger.resume()
    with pytest.raises(Fenced, match="has changed since the plan was made, and is not paused now: nothing was done"):
        admin.apply(plan, reason="x")
    worker.ledger.pause(reason="x", actor="ada")
    run_of = text(
        f'INSERT INTO "{worker.ledger.schema}".reload_run (id, groups, tables, strategy, pipelines, version_from, '
        "version_to, state, driver_epoch, driver, staging_schema, actor, reason) VALUES (gen_random_uuid(), '{g}', "
        "'{t}', 'merge', '{p}', '{1}', '{1}', 'staging', 1, 'd', 's', 'a', 'r')"
    )
    with worker.ledger.engine.begin() as tx:
        tx.execute(run_of)
    with pytest.raises(Fenced, match=r"has an open run, .*seekpoint reload abort"):
        admin.apply(plan, reason="x")
    assert worker.positions() == {0: 5}
    with worker.ledger.engine.begin() as tx:
        tx.execute(text(f"""UPDATE "{worker.ledger.schema}".reload_run SET state = 'aborted'"""))
    assert run(worker, "groups", "forget", "g", "--export", "a", "--no-export", exits=2).stdout == ""
    run(worker, "groups", "forget", "g", "--apply", "--reason", "nothing to copy")
    assert counts(worker)[0] == 0


def test_nothing_is_deleted_that_is_not_in_the_file(
    new_worker: NewLedgerWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4: even if the file cannot be written, or is another's."""

    def exports_less(_: object, file: Path) -> Exported:
        file.touch()
        return Exported(2, 1)

    worker = ended(new_worker)
    admin = admin_of(worker)
    plan = admin.plan_forget("g", export_to=tmp_path / "g.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(forget, "export_group", exports_less)
        with pytest.raises(Fenced, match="the file has 2 dead letters and 1 lost range, but 3 dead letters"):
            admin.apply(plan, reason="x")
    assert not (tmp_path / "g.jsonl").exists(), "the next plan may write it"
    (tmp_path / "g.jsonl").touch()
    with pytest.raises(ConfigError, match="already exists"):
        admin.apply(plan, reason="x")
    with pytest.raises(ConfigError, match="already exists, and is not overwritten"):
        admin.plan_forget("g", export_to=tmp_path / "g.jsonl")
    with pytest.raises(ConfigError, match="cannot be written"):
        admin.apply(admin.plan_forget("g", export_to=tmp_path / "no" / "g.jsonl"), reason="x")
    assert (counts(worker), admin.forgotten()) == ([2, 1, 3, 1], [])


def test_what_came_since_the_plan_counted_nothing_is_not_deleted(new_worker: NewLedgerWorker, tmp_path: Path) -> None:
    """I4: a paused group can be reset; without something to write, the plan has no file."""
    worker = new_worker(positions={0: 5}, tables=["applied"])
    worker.ledger.pause(reason="it has ended", actor="ada")
    admin = admin_of(worker)
    plan = admin.plan_forget("g", export_to=tmp_path / "g.jsonl")
    worker.ledger.reset_offset("t", 0, 7, log=None, reason="a test", lost="a test gave them up")
    with pytest.raises(Fenced, match="the plan has 0 dead letters and 0 lost ranges, but 0 dead letters and 1 lost"):
        admin.apply(plan, reason="x")
    assert admin.apply(admin.plan_forget("g", export_to=tmp_path / "g.jsonl"), reason="x").lost_ranges == 1
    assert (tmp_path / "g.jsonl").exists()


@pytest.mark.parametrize("undo", [False, True], ids=["forget", "undo"])
def test_it_is_one_transaction_wherever_the_connection_is_lost(
    new_worker: NewLedgerWorker, tmp_path: Path, proxy: PostgresProxy, new_engine: NewEngine, undo: bool
) -> None:
    """I4: before each statement and COMMIT, and after COMMIT; the same command then finds what is true."""
    worker, number = ended(new_worker), 0
    admin, far = admin_of(worker), admin_of(worker, new_engine(proxy.dsn))
    full, gone = counts(worker), [0, 0, 0, 0]
    if undo:
        admin.apply(admin.plan_forget("g", export_to=None), reason="x")
        full, gone = gone, [2, 1, 0, 0]

    def plan() -> ForgetPlan:
        return admin.plan_undo_forget("g") if undo else admin.plan_forget("g", export_to=tmp_path / f"{number}.jsonl")

    while number < 60:
        number += 1
        far.engine.dispose()
        proxy.arm("at_statement", skip=number - 1)
        try:
            far.apply(plan(), reason="x")
        except (OperationalError, psycopg.OperationalError):  # SQLAlchemy's own first statement is not wrapped
            proxy.wait_until_fired()
            assert counts(worker) == full, f"before statement {number}"
            continue
        break
    assert 5 < number < 60
    assert counts(worker) == gone
    admin.apply(admin.plan_forget("g", export_to=None) if undo else admin.plan_undo_forget("g"), reason="back")
    full = counts(worker)
    for when in ("before_commit", "after_commit"):
        number += 1
        far.engine.dispose()
        forget_plan = plan()
        proxy.arm(when)
        with pytest.raises(OperationalError):
            far.apply(forget_plan, reason="x")
        proxy.wait_until_fired()
        assert counts(worker)[:2] == (full if when == "before_commit" else gone)[:2], when
    assert plan().is_done


class Model:
    """A group of one partition, what should be true of it, and what operators and its worker do."""

    def __init__(self, worker: LedgerWorker) -> None:
        self.worker, self.admin = worker, admin_of(worker)
        self.position, self.pauses, self.paused, self.forgotten = 0, 0, False, False
        self.plan: ForgetPlan | None = None
        self.planned_at = 0

    def commit(self) -> None:
        refusal = GroupForgotten if self.forgotten else GroupPaused if self.paused else None
        if refusal is None:
            self.worker.claim(0)
            self.position += 1
            self.worker.commit({0: self.position})
            return
        with pytest.raises(refusal):
            self.worker.claim(0)
        with pytest.raises(Fenced), self.worker.ledger.engine.begin() as tx:
            self.worker.work(tx, {0: self.position + 1})

    def pause(self) -> None:
        if not self.forgotten:
            self.pauses += 1
            self.worker.ledger.pause(reason="x", actor=f"ada {self.pauses}")
            self.paused = True

    def resume(self) -> None:
        if not self.forgotten:
            self.worker.ledger.resume()
            self.paused = False

    def make_plan(self) -> None:
        if self.paused and not self.forgotten:
            self.plan, self.planned_at = self.admin.plan_forget("g", export_to=None), self.pauses

    def forget(self) -> None:
        if self.plan is None:
            return
        if self.paused and not self.forgotten and self.planned_at == self.pauses:
            self.admin.apply(self.plan, reason="x")
            self.forgotten = True
        else:
            with pytest.raises(Fenced):
                self.admin.apply(self.plan, reason="x")
        self.plan = None

    def undo(self) -> None:
        if self.forgotten:
            self.admin.apply(self.admin.plan_undo_forget("g"), reason="x")
            self.forgotten = False


@pytest.mark.repeats("seed")
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_pauses_commits_and_forgetting(new_worker: NewLedgerWorker, seed: int) -> None:
    """I1..I5: each step does what a model says; no record is applied twice or lost."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    model = Model(new_worker(positions={0: 0}, tables=["applied"]))
    steps = [model.commit, model.pause, model.resume, model.make_plan, model.forget, model.undo]
    for step in draw.choices(steps, weights=[3, 2, 1, 3, 3, 2], k=80):
        step()
        assert model.worker.positions() == ({} if model.forgotten else {0: model.position})
    model.undo()
    model.worker.exactly({0: model.position})


def test_a_partition_of_a_forgotten_group_is_not_there_for_a_fixed_owner(new_worker: NewLedgerWorker) -> None:
    """I2: a worker that still has its token is refused at its next hold."""
    worker = ended(new_worker)
    admin = admin_of(worker)
    admin.apply(admin.plan_forget("g", export_to=None), reason="x")
    with pytest.raises(Fenced), worker.ledger.engine.begin() as tx:
        worker.hold(tx)
    assert worker.ledger.positions_of([Partition("t", 0)]) == {}
    worker.ledger.release(worker.claims.values())


def test_names_that_the_ledger_does_not_know_are_usage_errors(new_worker: NewLedgerWorker) -> None:
    """And not an empty answer, which would look as if nothing was lost or done."""
    worker = new_worker(positions={0: 10})
    brokers = ["--kafka", "bootstrap.servers=127.0.0.1:1"]
    for words in (
        ["lost", "list", "typo"],
        ["lost", "accept", "typo", "t:0", *brokers],
        ["topics", "accept", "typo", "t", "--from-beginning", *brokers],
        ["offsets", "mirror", "typo", *brokers],
    ):
        assert "has no group 'typo'; its groups are g" in run(worker, *words, exits=2).stderr
    for words in (
        ["offsets", "history", "g", "--topic", "typo"],
        ["topics", "accept", "g", "typo", "--from-beginning", *brokers],
        ["lost", "accept", "g", "typo:0", *brokers],
    ):
        assert "no stored offset for topic 'typo'; its topics are t" in run(worker, *words, exits=2).stderr
    assert run(worker, "lost", "list", "g").stdout == "nothing is lost\n"
    assert run(worker, "offsets", "history", "g", "--topic", "t").exit_code == 0
