"""Actions of the console on a running group, with real brokers: forms that are sent, and what the worker does then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from seekpoint.admin import Admin
from seekpoint.ledger import Ledger
from seekpoint.web import Access, Right, create_app
from support.browser import LOCAL, Browser
from support.dead_letter_group import Depot
from support.events import Run
from support.kafka_postgres import Scene
from support.lost_log import OFTEN, admin_of, lost_log
from support.waiting import until


def ada(admin: Admin) -> Browser:
    app = create_app(admin, access=lambda _: Access("ada", Right.OPERATE), allow_actions=True)
    return Browser(app, base_url=LOCAL, client=("127.0.0.1", 50_000))


def stops(ledger: Ledger) -> list[str | None]:
    return [None if at.stop is None else at.stop.kind for at in ledger.read()]


def test_a_loss_is_accepted_and_the_worker_resumes(scene: Scene) -> None:
    name = lost_log(scene)
    run = scene.worker(name, limits=OFTEN)
    scene.wait(lambda: stops(scene.ledger) == ["OffsetLost"])
    browser, admin = ada(admin_of(scene)), admin_of(scene)
    choice = f"action=accept-lost&amp;group={scene.group}&amp;topic={name}&amp;partition=0"
    assert choice in browser.get("/group", params={"group": scene.group}).text
    page = browser.get("/group", params={"group": scene.group}).text
    assert f"Give up 2 offsets of {name}/0" in page
    assert "Read the log from its start" not in page
    form = browser.plan("accept-lost", group=scene.group, topic=name, partition=0)
    assert browser.apply(form, "the week is in the archive").status_code == 303
    run.reached(name, 10)
    (lost,) = admin.lost([scene.group])
    assert (lost.from_offset, lost.to_offset, lost.actor) == (3, 5, "ada")
    assert "the week is in the archive" in browser.get("/history", params={"group": scene.group}).text
    assert browser.apply(form, "again").status_code == 403
    run.stop()


def test_a_topic_that_was_created_again_is_read(scene: Scene) -> None:
    name, _ = scene.log(10)
    run = scene.worker(name, limits=OFTEN)
    run.reached(name, 10)
    scene.delete_topic(name)
    scene.topic(name=name)
    scene.produce(name, 4)
    scene.wait(lambda: stops(scene.ledger) == ["TopicRecreated"])
    browser = ada(admin_of(scene))
    assert browser.apply(browser.plan("accept-topic", group=scene.group, topic=name), "ticket 93").status_code == 303
    scene.wait(lambda: [at.next_offset for at in scene.ledger.read()] == [4])
    run.stop()


def test_a_dead_letter_is_replayed_by_the_running_worker(
    request: pytest.FixtureRequest, group: str, produce: Callable[..., object], run_worker: Callable[..., Run]
) -> None:
    engine, schema, topic = map(request.getfixturevalue, ("seekpoint_engine", "seekpoint_schema", "topic"))
    depot = Depot(engine, schema, group, topic()).create()
    depot.bad = {b"x"}
    produce(depot.topic, (b"a", b"x"), partition=0)
    run = run_worker(depot.pipeline(), limits=OFTEN)
    run.reached(depot.topic, 2)
    depot.bad.clear()
    browser = ada(Admin(engine, schema=schema))
    answer = browser.apply(browser.plan("replay", group=group), "the handler is fixed")
    where = answer.headers["location"]
    until(lambda: browser.get(f"/api/{where}").json()["data"]["state"] == "done", "the request is done")
    assert depot.applied() == [0, 1]
    assert "done" in browser.get(f"/{where}").text
