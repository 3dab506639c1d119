"""What pages answer: where the database is away, the ledger is missing, names are unknown; pagination and samples."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

import seekpoint.web
from seekpoint.admin import Admin, GroupStatus
from seekpoint.ledger import GroupLedger, schema_revision
from seekpoint.ledger.positions import Stop
from seekpoint.ledger.schema_revision import HEAD
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.records import Partition
from seekpoint.web import pages, present
from seekpoint.web.reading import CHECKED
from status_views import PAGES as STATUS_PAGES
from status_views import fill, seconds_of
from support.every_row import for_each
from support.ledger_worker import LedgerWorker
from support.postgres_proxy import PostgresProxy
from support.trouble import put_trouble
from web.conftest import PAGES, Console

OPEN_RUN = """
    INSERT INTO "{s}".reload_run (id, groups, tables, strategy, pipelines, version_from, version_to, state,
      driver_epoch, driver, staging_schema, actor, reason, opened_at)
    VALUES (gen_random_uuid(), ARRAY['g'], ARRAY['orders'], 'swap', :pipelines, ARRAY[1], ARRAY[2], 'staging', 1,
      'host', 's', 'ada', 'new rule', now() - interval '100 seconds') RETURNING id"""
OPEN_POSITION = """
    INSERT INTO "{s}".reload_position (run, consumer_group, topic, partition, topic_id, first_offset, end_offset,
      next_offset, epoch, resets)
    VALUES (:run, 'g', 't', 0, gen_random_uuid(), 0, 400, 100, 1, 0)"""
LOSSES = """
    INSERT INTO "{s}".lost_range (consumer_group, topic, topic_id, partition, from_offset, to_offset, reason, decision,
      actor)
    SELECT 'g', 't', gen_random_uuid(), n % 2, n - 1, n, 'retention', 'accepted', 'ada' FROM generate_series(1, 300) n
    ORDER BY n"""
STATIC = Path(seekpoint.web.__file__).parent / "static"


def test_the_vendored_script_is_the_one_that_was_checked() -> None:
    lock = tomllib.loads((STATIC / "vendored.toml").read_text())
    assert {path.name for path in STATIC.glob("*.min.js")} == set(lock)
    for name, entry in lock.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == entry["sha256"]


def test_an_empty_ledger_has_pages(console: Console, seekpoint_engine: Engine) -> None:
    browser = console()
    assert "The ledger has no group yet" in browser.get("/").text
    for path in ("reloads", "history", "health"):
        assert browser.get(f"/{path}").status_code == 200


def test_a_missing_ledger_names_the_command(console: Console, seekpoint_engine: Engine) -> None:
    browser = console(admin=Admin(seekpoint_engine, schema="none_such"), allow_actions=True)
    for path in ("", "group?group=g", "reloads", "history", "plan?action=pause&group=g", "api/"):
        answer = browser.get(f"/{path}")
        assert answer.status_code in {422, 503}, answer.text
        assert "seekpoint db upgrade" in answer.text, path


def test_an_old_ledger_names_the_command(
    console: Console,
    admin: Admin,
    worker: LedgerWorker,
    seekpoint_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    browser = console()
    assert browser.get("/").status_code == 200
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'DROP VIEW "{admin.schema}".group_status'))
    monkeypatch.setattr(schema_revision, "HEAD", "0002")
    answer = browser.get("/")
    assert answer.status_code in {422, 503}
    assert "seekpoint db upgrade" in answer.text


@pytest.mark.parametrize("revision", ["0000", "9999"])
def test_a_ledger_of_another_revision_is_neither_shown_nor_acted_on(
    console: Console, admin: Admin, worker: LedgerWorker, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    """Also where it has all tables and columns that are asked for."""
    now = [1_000.0]
    monkeypatch.setattr("seekpoint.web.reading.monotonic", lambda: now[0])
    browser = console(allow_actions=True)
    form = browser.plan("pause", group="g")
    with admin.engine.begin() as tx:
        tx.execute(text(f'UPDATE "{admin.schema}".alembic_version SET version_num = :to'), {"to": revision})
    now[0] += CHECKED
    message = "not a revision of Seekpoint" if revision < HEAD else "update Seekpoint"
    acted = browser.apply(form)
    paths = ("", "group?group=g", "history", "plan?action=pause&group=g", "api/", "health", "api/health")
    for answer in (acted, *(browser.get(f"/{path}") for path in paths)):
        assert answer.status_code == (200 if "health" in str(answer.url) else 503)
        assert message in answer.text, answer.url
    assert admin.history("g") == []


def test_while_the_database_is_away_the_last_answer_is_shown(
    console: Console, proxy: PostgresProxy, worker: LedgerWorker, admin: Admin
) -> None:
    away = create_engine(proxy.dsn)
    browser = console(admin=Admin(away, schema=admin.schema))
    assert "The database cannot be read" not in browser.get("/group?group=g").text
    proxy.refuse()
    proxy.cut()
    page = browser.get("/group?group=g")
    assert page.status_code == 200
    assert "The database cannot be read" in page.text
    assert " old.</p>" in page.text
    body = browser.get("/api/group?group=g").json()
    assert body["age"] > 0
    assert body["error"]
    assert body["data"]["group"]["name"] == "g"
    unread = browser.get("/reloads")
    assert unread.status_code == 503
    assert "the database cannot be read" in unread.text
    proxy.accept()
    assert "The database cannot be read" not in browser.get("/group?group=g").text
    assert browser.get("/api/group?group=g").json()["error"] is None
    away.dispose()


STATUSES = {
    "group?group=none": 422,
    "group": 400,
    "group?group=g&page=x": 400,
    "group?group=g%00": 400,
    "partition?group=none&topic=t&partition=0": 422,
    "partition?group=g&topic=t&partition=x": 400,
    "partition?group=g&topic=t&partition=99999999999999999999": 422,
    "dead-letters?group=none": 422,
    "dead-letters?group=g&cause=none": 400,
    "dead-letters?group=g&partition=0": 422,
    "dead-letter?group=g&id=7": 422,
    "dead-letter?group=g&id=99999999999999999999": 422,
    "history?group=none": 422,
    "replay?group=g&id=7": 422,
    "replay?group=g&id=99999999999999999999": 422,
    "none": 404,
}


@for_each(STATUSES)
def test_unknown_names_are_answered_with_a_sentence(path: str, console: Console, worker: LedgerWorker) -> None:
    browser, status = console(), STATUSES[path]
    answer = browser.get(f"/{path}")
    assert answer.status_code == status, answer.text
    if status != 404:
        assert 'role="alert"' in answer.text
        twin = browser.get(f"/api/{path}")
        assert twin.status_code == status
        assert len(twin.json()["data"]["error"]) > 10


def test_a_partition_that_the_ledger_does_not_have_says_so(console: Console, worker: LedgerWorker) -> None:
    assert "has no position for this partition" in console().get("/partition?group=g&topic=t&partition=9").text


def test_a_hundred_partitions_are_on_a_page_the_worst_first(console: Console, worker: LedgerWorker) -> None:
    worker.claim(*range(3, 250))
    status = StatusTables(worker.ledger, WorkerProcess("host-1", 1, "c", "0.1.0"))
    status.sample({worker.topic_partition(n): (0, 1_000 if n == 249 else 100) for n in range(250)})
    browser = console()
    pages = [browser.get(f"/group?group=g&page={n}").text for n in (1, 2, 3)]
    assert [page.count("<tr id=") for page in pages] == [100, 100, 50]
    assert browser.get("/group?group=g&page=9").text.count("<tr id=") == 50, "the last one"
    assert "t/249" in pages[0]
    assert 'href="group?group=g&amp;page=3"' in pages[0] or 'href="group?group=g&page=3"' in pages[0]
    assert sum(f'id="t/{n}"' in page for n in range(250) for page in pages) == 250
    assert len(browser.get("/api/group?group=g").json()["data"]["samples"]) == 100


def test_pages_of_a_thousand_partitions_and_two_hundred_groups(
    console: Console, admin: Admin, seekpoint_engine: Engine
) -> None:
    """How long they take is a row of ``benchmarks/status_views.py``."""
    with seekpoint_engine.begin() as tx:
        fill(tx, admin.schema, groups=200, partitions=1_000, month=30)
    with seekpoint_engine.begin() as tx:  # one group has most of them
        tx.execute(text(f"DELETE FROM \"{admin.schema}\".position_sample WHERE consumer_group <> 'g0'"))
        tx.execute(text(f"UPDATE \"{admin.schema}\".partition_offset SET consumer_group = 'g0' WHERE partition > 200"))
    browser = console()
    for page in STATUS_PAGES:
        print(f"/{page}: {seconds_of(browser, page):.3f} s")
        assert browser.get(f"/api/{page}").status_code == 200
    assert browser.get("/").text.count("<tr id=") == 200
    group = browser.get("/group?group=g0").text
    assert group.count("<tr id=") == 100
    assert "page=9" in group


def test_samples_are_drawn_and_are_in_the_json(
    console: Console, worker: LedgerWorker, seekpoint_engine: Engine
) -> None:
    status = StatusTables(worker.ledger, WorkerProcess("host-1", 1, "c", "0.1.0"))
    status.sample({worker.topic_partition(0): (0, 105)})
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f"UPDATE \"{worker.ledger.schema}\".position_sample SET at = at - interval '5 minutes'"))
    worker.commit({0: 45})
    status.sample({worker.topic_partition(0): (0, 105)})
    browser = console()
    assert 'aria-label="lag, 100 to 60, at most 100"' in browser.get("/group?group=g").text
    (line,) = [
        entry for entry in browser.get("/api/group?group=g").json()["data"]["samples"] if entry["partition"][1] == 0
    ]
    assert [sample["next_offset"] for sample in line["samples"]] == [5, 45]
    assert len(browser.get("/api/partition?group=g&topic=t&partition=0").json()["data"]["samples"]) == 2


@pytest.mark.parametrize("change", ["seen_at = seen_at - interval '2 minutes'", "state = 'ended'"])
def test_a_group_whose_workers_are_dead_has_no_worker_on_any_page(
    console: Console, worker: LedgerWorker, seekpoint_engine: Engine, change: str
) -> None:
    """Its partitions have the dead worker's owner still, and its row is kept for a day."""
    status = StatusTables(worker.ledger, WorkerProcess("host-1", 1, "c", "0.1.0"))
    status.seen("running")
    status.sample({worker.topic_partition(n): (0, 7) for n in range(3)})
    browser, partition = console(), "/partition?group=g&topic=t&partition=1"

    def shown() -> list[int]:
        group = browser.get("/group?group=g").text
        assert [worker["owner"] for worker in browser.get("/api/group?group=g").json()["data"]["group"]["workers"]]
        texts = [browser.get("/").text, group, browser.get(partition).text]
        return [
            *(shown.count("</span> no worker</span>") for shown in texts),
            group.count("<dt>Workers</dt><dd>0</dd>"),
        ]

    assert shown() == [0, 0, 0, 0]
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f'UPDATE "{worker.ledger.schema}".worker SET {change}'))
    assert shown() == [1, 3, 1, 1]


@pytest.mark.parametrize("path", [*PAGES, "plan?action=pause&group=g"])
def test_a_parameter_that_is_not_known_is_refused(console: Console, worker: LedgerWorker, path: str) -> None:
    """``id=`` for ``ids=`` would mean all dead letters of the group."""
    assert worker.claims
    browser = console(allow_actions=True)
    assert browser.get(f"/{path}").status_code == 200
    page = browser.get(f"/{path}{'&' if '?' in path else '?'}ids=1&idss=7")
    assert page.status_code == 400
    assert "there is no parameter" in page.text
    assert browser.get("/plan?action=discard&group=g&id=7").status_code == 400


def test_equal_stops_are_one_box_and_buttons_say_what_they_do(
    console: Console, worker: LedgerWorker, seekpoint_engine: Engine
) -> None:
    """Retention has passed three partitions by 971 offsets each; headroom is in records, as no time is known."""
    schema = worker.ledger.schema
    with seekpoint_engine.begin() as tx:
        tx.execute(
            text(
                put_trouble(
                    f'"{schema}"',
                    stop_kind="'OffsetLost'",
                    stop_offset="o.next_offset",
                    stop_message="'retention'",
                    stop_choices="ARRAY[]::text[]",
                    stopped_at="now()",
                    stop_log_end="9000",
                )
            )
        )
        tx.execute(
            text(
                f'INSERT INTO "{schema}".position_sample (consumer_group, topic, partition, topic_id, next_offset, '
                "log_start, log_end) SELECT consumer_group, topic, partition, topic_id, next_offset, "
                "next_offset + 971, 9000 "
                f'FROM "{schema}".partition_offset'
            )
        )
    browser = console(allow_actions=True)
    page = browser.get("/group?group=g").text
    assert page.count('<section class="stop">') == 1
    assert "3 partitions of t" in page
    assert "Give up 2,913 offsets of 3 partitions of t…" in page
    assert "action=accept-lost&amp;group=g&amp;topic=t" in page
    assert "-971 records" in page
    assert "Give up 971 offsets of t/1…" in browser.get("/partition?group=g&topic=t&partition=1").text
    pause = browser.get("/plan?action=pause&group=g").text
    assert '<button class="primary">Pause g</button>' in pause
    GroupLedger(seekpoint_engine, "g", schema=schema).pause(reason="an index", actor="ada")
    assert "Last action: pause by ada, " in browser.get("/group?group=g").text


def test_the_history_has_filters_and_pages(
    console: Console, worker: LedgerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ACTIONS", 2)
    for number in range(5):
        worker.ledger.reset_offset(
            "t", 0, number, log=None, reason=f"why {number}", actor="ada" if number % 2 else "eve"
        )
    browser, seen, path = console(), [], "/history?group=g&action=reset"
    while path:
        shown = browser.get(path).text
        seen += re.findall(r"why \d", shown)
        match = re.search(r'href="(history[^"]*before=[^"]*)">older', shown)
        path = "" if match is None else f"/{unescape(match[1])}"
    assert seen == [f"why {number}" for number in reversed(range(5))]
    assert re.findall(r"why \d", browser.get("/history?actor=ada").text) == ["why 3", "why 1"]
    assert re.findall(r"why \d", browser.get("/history?action=pause").text) == []


def test_a_sparkline_has_a_scale_and_the_colour_of_the_state(
    console: Console, worker: LedgerWorker, seekpoint_engine: Engine
) -> None:
    insert = (
        f'INSERT INTO "{worker.ledger.schema}".position_sample (consumer_group, topic, partition, topic_id, at, '
        "next_offset, log_start, log_end) SELECT consumer_group, topic, partition, topic_id, now() - n * interval "
        f"'1 minute', 10, 0, 10 + n * 1000 FROM \"{worker.ledger.schema}\".partition_offset, generate_series(0, 3) n"
    )
    with seekpoint_engine.begin() as tx:
        tx.execute(text(insert))
    page = console().get("/group?group=g").text
    assert page.count('<span class="spark failure"><svg') == 3, "the groups' worker is gone"
    assert page.count('<span class="scale">3,000<br>0</span>') == 3


def test_the_last_losses_are_shown(console: Console, worker: LedgerWorker, seekpoint_engine: Engine) -> None:
    """A hundred, of the group or of the partition."""
    with seekpoint_engine.begin() as tx:
        tx.execute(text(LOSSES.format(s=worker.ledger.schema)))
    browser = console()
    for path, last in (("group?group=g", 300), ("partition?group=g&topic=t&partition=1", 299)):
        losses = browser.get(f"/api/{path}").json()["data"]["lost"]
        assert len(losses) == 100
        assert losses[-1]["to_offset"] == last
        assert losses[0]["to_offset"] < last
        assert "The last 100 are shown" in browser.get(f"/{path}").text
    assert browser.get("/api/partition?group=g&topic=t&partition=2").json()["data"]["lost"] == []
    assert "The last" not in browser.get("/partition?group=g&topic=t&partition=2").text
    assert len(Admin(seekpoint_engine, schema=worker.ledger.schema).lost(["g"])) == 300


def test_the_groups_come_worst_first(console: Console, worker: LedgerWorker, seekpoint_engine: Engine) -> None:
    other = LedgerWorker(type(worker.ledger)(seekpoint_engine, "a", schema=worker.ledger.schema))
    other.claim(9)
    with seekpoint_engine.begin() as tx:
        tx.execute(text(f"UPDATE \"{worker.ledger.schema}\".consumer_group SET paused = true WHERE name = 'a'"))
    states = [(line["group"]["name"], line["state"]) for line in console().get("/api/").json()["data"]]
    assert states == [("g", "no worker"), ("a", "paused")]


def test_a_reload_is_followed_to_its_end(console: Console, worker: LedgerWorker, seekpoint_engine: Engine) -> None:
    schema = worker.ledger.schema
    with seekpoint_engine.begin() as tx:
        run = tx.execute(text(OPEN_RUN.format(s=schema)), {"pipelines": ["m:p"]}).scalar_one()
        tx.execute(text(OPEN_POSITION.format(s=schema)), {"run": run})
    browser = console()

    def change(state: str, position: int) -> None:
        with seekpoint_engine.begin() as tx:
            tx.execute(text(f'UPDATE "{schema}".reload_position SET next_offset = :at'), {"at": position})
            tx.execute(text(f'UPDATE "{schema}".reload_run SET state = :to, changed_at = now()'), {"to": state})

    (first,) = Admin(seekpoint_engine, schema=schema).reloads()
    assert (first.read, first.wanted, first.is_open) == (100, 400, True)
    assert first.left is not None
    assert timedelta(seconds=200) < first.left < timedelta(seconds=400)
    for state, position in (("staging", 250), ("staged", 400), ("compared", 400), ("cut_over", 400)):
        change(state, position)
        page, home = browser.get("/reloads").text, browser.get("/").text
        assert state in page
        assert f"{position} of 400" in page
        assert ("Open reloads" in home) == (state != "cut_over")
    assert browser.get("/api/reloads").json()["data"][0]["state"] == "cut_over"


def test_a_diagnosis_is_kept_for_a_while_and_has_its_age(
    console: Console, worker: LedgerWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("seekpoint.web.reading.monotonic", lambda: now[0])
    browser = console()
    assert "checked now" in browser.get("/health").text
    now[0] += 20
    assert "checked 20 s ago" in browser.get("/health").text
    assert browser.get("/api/health").json()["age"] == 20
    now[0] += 11
    assert "checked now" in browser.get("/health").text


def test_the_diagnosis_is_read_by_the_reader(console: Console, worker: LedgerWorker, admin: Admin) -> None:
    """The engine of actions is not used for it, and that the reader cannot write is as it should be."""
    acting = Admin("postgresql+psycopg://127.0.0.1:1/none", schema=admin.schema)
    only = create_engine(admin.engine.url, connect_args={"options": "-c default_transaction_read_only=on"})
    findings = (
        console(admin=acting, reader=Admin(only, schema=admin.schema)).get("/api/health").json()["data"]["findings"]
    )
    assert [finding["message"] for finding in findings if finding["check"] == "server"] == ["the server takes writes"]
    only.dispose()


def test_brokers_that_are_away_are_not_asked_by_each_page(
    console: Console, worker: LedgerWorker, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seekpoint.admin.admin.KAFKA_TIMEOUT", 0.5)
    now, asked = [1_000.0], []
    monkeypatch.setattr("seekpoint.web.pages.monotonic", lambda: now[0])
    status = Admin.status

    def counted(self: Admin, names: Collection[str] = ()) -> tuple[list[GroupStatus], list[str]]:
        asked.append(bool(self.kafka))
        return status(self, names)

    monkeypatch.setattr(Admin, "status", counted)
    away = {"bootstrap.servers": "127.0.0.1:1"}
    browser = console(admin=Admin(admin.engine, away, schema=admin.schema))
    for _ in range(3):
        assert "lag is as of the last sample" in browser.get("/group?group=g").text
    now[0] += 31
    assert "lag is as of the last sample" in browser.get("/partition?group=g&topic=t&partition=0").text
    assert asked == [True, False, False, True]


def test_pages_are_read_again_and_plans_are_not(console: Console, worker: LedgerWorker) -> None:
    browser = console(refresh=5.0, allow_actions=True)
    for path in PAGES[:-1]:
        assert 'hx-trigger="every 5s"' in browser.get(f"/{path}").text
    assert "hx-trigger" not in browser.get("/plan?action=pause&group=g").text


def test_a_truncated_partition_is_no_part_of_the_box_of_those_that_retention_took() -> None:
    """The stored stop decides: headroom may be unknown, or of a later moment."""
    now = datetime.now(UTC)
    stops = [Stop("OffsetLost", 40, "m", (), now, log_end) for log_end in (90, 20, 90, None)]
    lines: list[Any] = [
        SimpleNamespace(position=SimpleNamespace(partition=Partition("t", n), stop=stop), headroom=None)
        for n, stop in enumerate(stops)
    ]
    boxes = present.stop_boxes("g", lines)
    assert [[stopped.position.partition.number for stopped in box.lines] for box in boxes] == [[0, 2], [1], [3]]
    labels = [[choice.label for choice in box.choices] for box in boxes]
    both = ["Accept the loss", "Read the log from its start"]
    assert labels == [["Give up the deleted offsets of 2 partitions of t"], both, both]
    assert [choice.label for choice in present.choices_of("g", lines[0], stops[0])] == [
        "Give up the deleted offsets of t/0"
    ]
