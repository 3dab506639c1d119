"""Actions of the console on a running group, with real brokers: forms that are sent, and what the worker does then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seekpoint.admin import Admin
from seekpoint.ledger import GroupLedger
from seekpoint.web import Access, Right, create_app
from support.browser import LOCAL, Browser
from support.dead_letter_group import DeadLetterGroup
from support.events import Run
from support.lost_log import OFTEN, admin_of, lost_log
from support.waiting import until
from support.worker_group import WorkerGroup


def ada(admin: Admin) -> Browser:
    app = create_app(admin, access=lambda _: Access("ada", Right.OPERATE), allow_actions=True)
    return Browser(app, base_url=LOCAL, client=("127.0.0.1", 50_000))


def stops(ledger: GroupLedger) -> list[str | None]:
    return [None if position.stop is None else position.stop.kind for position in ledger.read()]


def test_a_loss_is_accepted_and_the_worker_resumes(worker_group: WorkerGroup) -> None:
    name = lost_log(worker_group)
    run = worker_group.worker(name, limits=OFTEN)
    worker_group.wait(lambda: stops(worker_group.ledger) == ["OffsetLost"])
    browser, admin = ada(admin_of(worker_group)), admin_of(worker_group)
    choice = f"action=accept-lost&amp;group={worker_group.group}&amp;topic={name}&amp;partition=0"
    assert choice in browser.get("/group", params={"group": worker_group.group}).text
    page = browser.get("/group", params={"group": worker_group.group}).text
    assert f"Give up 2 offsets of {name}/0" in page
    assert "Read the log from its start" not in page
    form = browser.plan("accept-lost", group=worker_group.group, topic=name, partition=0)
    assert browser.apply(form, "the week is in the archive").status_code == 303
    run.reached(name, 10)
    (lost,) = admin.lost([worker_group.group])
    assert (lost.from_offset, lost.to_offset, lost.actor) == (3, 5, "ada")
    assert "the week is in the archive" in browser.get("/history", params={"group": worker_group.group}).text
    assert browser.apply(form, "again").status_code == 403
    run.stop()


def test_a_topic_that_was_created_again_is_read(worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(10)
    run = worker_group.worker(name, limits=OFTEN)
    run.reached(name, 10)
    worker_group.delete_topic(name)
    worker_group.topic(name=name)
    worker_group.produce(name, 4)
    worker_group.wait(lambda: stops(worker_group.ledger) == ["TopicRecreated"])
    browser = ada(admin_of(worker_group))
    assert (
        browser.apply(browser.plan("accept-topic", group=worker_group.group, topic=name), "ticket 93").status_code
        == 303
    )
    worker_group.wait(lambda: [position.next_offset for position in worker_group.ledger.read()] == [4])
    run.stop()


def test_a_dead_letter_is_replayed_by_the_running_worker(
    request: pytest.FixtureRequest, group: str, produce: Callable[..., object], run_worker: Callable[..., Run]
) -> None:
    engine, schema, topic = map(request.getfixturevalue, ("seekpoint_engine", "seekpoint_schema", "topic"))
    dead_letter_group = DeadLetterGroup(engine, schema, group, topic()).create()
    dead_letter_group.bad = {b"x"}
    produce(dead_letter_group.topic, (b"a", b"x"), partition=0)
    run = run_worker(dead_letter_group.pipeline(), limits=OFTEN)
    run.reached(dead_letter_group.topic, 2)
    dead_letter_group.bad.clear()
    browser = ada(Admin(engine, schema=schema))
    answer = browser.apply(browser.plan("replay", group=group), "the handler is fixed")
    where = answer.headers["location"]
    until(lambda: browser.get(f"/api/{where}").json()["data"]["state"] == "done", "the request is done")
    assert dead_letter_group.applied() == [0, 1]
    assert "done" in browser.get(f"/{where}").text
