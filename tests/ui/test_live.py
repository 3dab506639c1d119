"""What is seen while workers run: lag that falls, a pause that is obeyed, a replay and a reload to their end."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route, expect
from sqlalchemy import Engine

from seekpoint import Limits, events
from seekpoint.admin import Admin
from support.before_cutover import settled, started
from support.busy_ledger import path_of
from support.dead_letter_group import DeadLetterGroup
from support.events import Run
from support.ledger_worker import LedgerWorker
from support.postgres_proxy import PostgresProxy
from support.reload_orders import OrdersGroup
from support.waiting import until
from support.worker_group import WorkerGroup
from ui.conftest import Serve, carry_out, fact, number, refreshed

LIMITS = Limits(batch_records=10, idle_check=0.1, lag_check=0.1, sample_positions=1.0)


@pytest.fixture
def orders(seekpoint_engine: Engine, seekpoint_schema: str, group: str, topic: Callable[..., str]) -> DeadLetterGroup:
    """A group with a topic of one partition, whose worker is not started yet."""
    return DeadLetterGroup(seekpoint_engine, seekpoint_schema, group, topic()).create()


def test_lag_falls_while_one_looks_and_types(
    serve: Serve,
    orders: DeadLetterGroup,
    produce: Callable[..., Any],
    run_worker: Callable[..., Run],
    seekpoint_broker: str,
) -> None:
    """The page is read again in place: focus, typed text and what was chosen stay."""
    produce(orders.topic, [b"a"] * 60, partition=0)
    allowed = threading.Semaphore(0)
    orders.on_record = lambda tx, record: allowed.acquire(timeout=60)
    run = run_worker(orders.pipeline(), limits=LIMITS)
    try:
        run.placed()
        tab = serve(kafka={"bootstrap.servers": seekpoint_broker}).tab(path_of("group", group=orders.group))
        expect(tab.locator("#live")).to_contain_text("every 0.3 s")
        tab.evaluate("window.opened = 'once'")
        tab.locator("select[name=target]").select_option("offset")
        tab.locator("input[name=value]").focus()
        tab.keyboard.type("42")
        seen = [number(tab, "Lag")]
        for _ in range(3):
            allowed.release(10)
            until(lambda: number(tab, "Lag") < seen[-1], f"less lag than {seen}")
            seen.append(number(tab, "Lag"))
        refreshed(tab, 4)
        assert tab.evaluate("document.activeElement.name") == "value"
        assert tab.locator("input[name=value]").input_value() == "42"
        assert tab.locator("select[name=target]").input_value() == "offset"
        allowed.release(1_000)
        expect(tab.locator("tbody .state").first).to_have_text("● caught up")
        assert fact(tab, "Lag") == "0"
        assert tab.evaluate("window.opened") == "once"
    finally:
        allowed.release(1_000)


def test_a_pause_is_obeyed_within_a_second(serve: Serve, worker_group: WorkerGroup) -> None:
    paused: list[float] = []

    def noted(event: events.Event) -> None:
        if isinstance(event, events.Paused):
            paused.append(monotonic())

    topic = worker_group.topic(2)
    with worker_group.stream(topic, 2, rate=200):
        run = worker_group.worker(topic, observe=[noted])
        run.reached(topic, 20)
        tab = serve(kafka={"bootstrap.servers": worker_group.broker}).tab(path_of("group", group=worker_group.group))
        tab.get_by_role("link", name="Pause…").click()
        tab.get_by_label("Reason").fill("the index is built")
        sent: list[float] = []
        tab.on("request", lambda request: sent.append(monotonic()) if request.method == "POST" else None)
        tab.locator("form.apply button").click()
        run.seen.wait_for(events.Paused)
        assert paused[0] - sent[0] < 1.0
        expect(tab.locator(".banner")).to_contain_text("Paused by ada: the index is built")
        expect(tab.locator("tbody .state").first).to_have_text("‖ paused")
        until(lambda: number(tab, "Lag") > 50, "lag grows")
        positions = worker_group.positions()
        refreshed(tab, 4)
        assert worker_group.positions() == positions
        tab.get_by_role("link", name="Resume…").click()
        carry_out(tab, "it is built")
        until(lambda: worker_group.positions() != positions, "the worker resumes")
    until(lambda: number(tab, "Lag") == 0, "the worker catches up")
    tab.get_by_role("link", name="History").last.click()
    expect(tab.locator("tbody tr")).to_have_count(2)
    assert tab.locator("tbody td:last-child").all_inner_texts() == ["it is built", "the index is built"]


def test_a_running_worker_replays_dead_letters(
    serve: Serve, orders: DeadLetterGroup, produce: Callable[..., Any], run_worker: Callable[..., Run]
) -> None:
    """One that is asked for with JavaScript, and one without."""
    orders.bad = {b"x", b"y"}
    produce(orders.topic, (b"a", b"x", b"y", b"d"), partition=0)
    run_worker(orders.pipeline(), limits=LIMITS).reached(orders.topic, 4)
    orders.bad.clear()
    console = serve(payloads="full")
    for scripts, left in ((True, "1"), (False, "0")):
        tab = console.tab(path_of("group", group=orders.group), scripts=scripts)
        tab.locator(".actions").get_by_role("link", name="Dead letters").click()
        tab.get_by_role("region", name="Records").locator("tbody th a").first.click()
        expect(tab.locator("pre.error").first).to_contain_text("is not to be taken")
        tab.get_by_role("link", name="Replay…").click()
        expect(tab.locator(".consequences")).to_contain_text("1 dead letters are replayed")
        carry_out(tab, "fixed")
        expect(tab.locator("h1")).to_contain_text("Replay")

        def is_done(tab: Any = tab, scripts: bool = scripts) -> bool:
            if not scripts:
                tab.reload()
            return fact(tab, "State") == "done"

        until(is_done, "the replay has ended")
        assert fact(tab, "Replayed") == "1"
        console.go(tab, path_of("group", group=orders.group))
        assert fact(tab, "Dead letters") == left
    assert orders.applied() == [0, 3, 1, 2]


def test_a_reload_is_followed_to_its_end(serve: Serve, request: pytest.FixtureRequest) -> None:
    orders_group = OrdersGroup.on_shared_servers(request.getfixturevalue)
    settled(orders_group)
    console = serve()
    home, tab = console.tab(), console.tab("reloads")
    expect(tab.locator("main")).to_contain_text("no run of a reload")
    reload, driver = started(orders_group.reload(range_records=50))
    row = tab.locator("tbody tr").first
    expect(row.locator(".state")).to_have_text("● opened")
    expect(row).to_contain_text("0 of 123")
    expect(home.get_by_role("heading", name="Open reloads")).to_be_visible()
    reload.stage(driver)
    expect(row.locator(".state")).to_have_text("● indexed")
    expect(row).to_contain_text("123 of 123")
    assert row.locator("progress").evaluate("bar => bar.value / bar.max") == 1
    reload.run(driver)
    expect(row.locator(".state")).to_have_text("● cut_over")
    expect(tab.locator("tbody tr").nth(1)).to_contain_text(
        re.compile(r"orders\"?: \d+ missing, \d+ extra, \d+ different, \d+ equal")
    )
    expect(home.get_by_role("heading", name="Open reloads")).to_have_count(0)


def test_a_page_says_that_the_database_or_the_console_is_away(
    serve: Serve, orders: DeadLetterGroup, proxy: PostgresProxy, chromium: Any, new_engine: Callable[..., Engine]
) -> None:
    """It shows what it had, and is live again after that. One that had nothing becomes the page when there is one."""
    LedgerWorker(orders.ledger).claim(0)
    admin = Admin(new_engine(proxy.dsn), schema=orders.schema)
    console = serve(admin=admin)
    tab = console.tab()
    proxy.refuse()
    proxy.cut()
    expect(tab.locator(".banner")).to_contain_text("The database cannot be read")
    expect(tab.locator("tbody tr")).to_have_count(1)
    unread = console.tab("reloads")
    expect(unread.locator("h1")).to_have_text("Service Unavailable")
    proxy.accept()
    expect(tab.locator(".banner")).to_have_count(0)
    expect(unread.locator("h1")).to_have_text("Reloads")
    console.noted("503")

    tab.context.set_offline(True)
    expect(tab.locator("#live")).to_contain_text("no answer since")
    tab.context.set_offline(False)
    expect(tab.locator("#live")).to_contain_text("every 0.3 s")
    console.noted("INTERNET_DISCONNECTED", "Failed to fetch")


FOREIGN = {
    "a proxy's page": (502, "text/html", "<!doctype html><html><body><h1>Bad Gateway</h1></body></html>"),
    "a login page": (200, "text/html", "<!doctype html><html><body><form>Password</form></body></html>"),
    "an error as plain text": (500, "text/plain", "Internal Server Error"),
    "nothing": (200, "text/html", ""),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_an_answer_that_is_no_page_of_the_console_changes_nothing_on_it(
    serve: Serve, orders: DeadLetterGroup, what: str
) -> None:
    """The page stays, says that there is no answer, and is read again."""
    LedgerWorker(orders.ledger).claim(0)
    console = serve()
    tab = console.tab(path_of("group", group=orders.group))
    tab.locator("input[name=value]").fill("42")
    status, kind, body = FOREIGN[what]

    is_away = [True]

    def answer(route: Route) -> None:
        if is_away[0]:
            route.fulfill(status=status, content_type=kind, body=body)
        else:
            route.fallback()

    tab.route("**/group?*", answer)
    expect(tab.locator("#live")).to_contain_text("no answer since")
    is_away[0] = False
    expect(tab.locator("h1")).to_have_text(orders.group)
    assert tab.locator("input[name=value]").input_value() == "42"
    refreshed(tab, 2)
    expect(tab.locator("#live")).to_contain_text("every 0.3 s")
    expect(tab.locator("h1")).to_have_text(orders.group)
    if status >= 400:  # others are no problem to the browser
        console.noted(str(status))


def test_reading_again_can_be_paused(serve: Serve, orders: DeadLetterGroup) -> None:
    """For all pages of the tab."""
    console = serve()
    tab = console.tab("history")
    tab.get_by_role("button", name="Pause").click()
    expect(tab.locator("#live")).to_contain_text("not read again")
    console.go(tab, "history")
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(urlsplit(request.url).path))
    tab.evaluate("""() => {
        document.getElementById("main").dispatchEvent(new CustomEvent("every"));  // as the interval's end does
        return fetch("static/icon.svg").then((answer) => answer.text());
    }""")
    assert set(asked) == {"/static/icon.svg"}
    tab.get_by_role("button", name="Resume").click()
    refreshed(tab)
    assert asked[-1] == "/history"
