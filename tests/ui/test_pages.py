"""Every page in Chromium: axe-core, widths, light and dark; keyboard alone, no JavaScript, readers, forged forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect
from sqlalchemy import Engine

from seekpoint.admin import Admin, ResetTo, Where
from seekpoint.pipeline.policy import OnPoison
from seekpoint.records import Partition, State
from seekpoint.web import Right
from seekpoint.web.site import _templates
from support.busy_ledger import BUSY, LOST, MANY, PAUSED, STOPPED, fill, path_of
from support.lost_log import OFTEN, lost_log
from support.postgres_proxy import PostgresProxy
from support.worker_group import WorkerGroup
from ui.conftest import Serve, as_user, carry_out, refreshed

LOOKS = (("light", 1600, 400), ("dark", 400, 1600))  # axe-core looks at the first width
PARTS = {"base", "macros"}  # templates that are no pages
OF_A_LOG = {"record"}  # it needs a log: below
MORE = {
    "a group that is paused": path_of("group", group=PAUSED),
    "a group that lost offsets": path_of("group", group=LOST),
    "a group of many partitions": path_of("group", group=MANY, page=2),
    "a partition with a retry": path_of("partition", group=BUSY, topic="orders", partition=3),
    "dead letters of one failure": path_of("dead-letters", group=BUSY, cause="handler"),
    "no dead letters": path_of("dead-letters", group=PAUSED),
    "history of a group": path_of("history", group=BUSY),
    "a pause": path_of("plan", action="pause", group=BUSY),
    "nothing to do": path_of("plan", action="resume", group=BUSY),
    "a plan of dead letters": path_of("plan", action="discard", group=BUSY),
}
AT_FOCUS = """() => {
  const one = document.activeElement, box = one.getBoundingClientRect(), style = getComputedStyle(one);
  return {text: (one.innerText || one.name || one.getAttribute("aria-label") || "").trim(), tag: one.tagName,
          seen: box.width > 0 && box.right > 0 && box.left < innerWidth, outline: style.outlineStyle};
}"""


@pytest.fixture
def pages(seekpoint_engine: Engine, seekpoint_schema: str) -> Mapping[str, str]:
    """A path for each template, of a ledger that has everything."""
    return fill(seekpoint_engine, seekpoint_schema)


def test_axe_finds_nothing_on_any_page_and_none_is_wider_than_its_window(
    serve: Serve, pages: Mapping[str, str]
) -> None:
    assert {name.removesuffix(".html") for name in _templates.list_templates()} == {*pages, *PARTS, *OF_A_LOG}
    console = serve(payloads="full", refresh=60.0)
    problems = []
    for scheme, first, second in LOOKS:
        tab = console.tab(scheme=scheme, width=first)
        for name, path in {**pages, **MORE}.items():
            console.go(tab, path)
            problems += [f"{name}, {scheme}, {first}: {violation}" for violation in violations(tab)]
            for width in (second, first):
                tab.set_viewport_size({"width": width, "height": 900})
                console.watch.measure(tab)
                console.watch.measure(tab, ".scroll")
    assert problems == []
    console.refused(*[422] * 4)


def test_no_fact_is_alone_in_a_line(serve: Serve, pages: Mapping[str, str]) -> None:
    """At a thousand pixels the last one did."""
    console = serve(payloads="full", refresh=60.0)
    tab = console.tab(width=1000)
    for name in ("group", "partition", "dead_letter", "replay"):
        console.go(tab, pages[name])
        tops = tab.locator(".fact").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
        assert tops.count(tops[-1]) > 1, (name, tops)
        console.watch.measure(tab)


def test_axe_finds_nothing_on_the_record_that_stopped_a_partition(serve: Serve, worker_group: WorkerGroup) -> None:
    name, _ = worker_group.log(["0", "bad"])
    refusing = worker_group.record_table.refusing(lambda record: record.value == "bad")
    worker_group.worker(worker_group.pipeline(name, sinks=(), handle=refusing, on_poison=OnPoison.STOP), limits=OFTEN)
    worker_group.wait(lambda: [row.stop is not None for row in worker_group.ledger.read()] == [True])
    console = serve(kafka={"bootstrap.servers": worker_group.broker}, payloads="full", refresh=60.0)
    tab = console.tab(path_of("group", group=worker_group.group))
    tab.get_by_role("link", name="Show the record").click()
    expect(tab.locator("pre").nth(2)).to_have_text("bad")
    assert list(violations(tab)) == []
    tab.set_viewport_size({"width": 400, "height": 900})
    console.watch.measure(tab)


def test_a_reset_that_is_none_keeps_what_was_typed(serve: Serve, pages: Mapping[str, str]) -> None:
    console = serve(refresh=60.0)
    tab = console.tab(pages["group"])
    tab.locator("select[name=target]").select_option("datetime")
    tab.locator("input[name=value]").fill("yesterday")
    tab.get_by_role("button", name="Show the plan").click()
    expect(tab.get_by_role("alert")).to_have_text(
        "datetime takes a time such as 2026-11-22T14:00Z, not 'yesterday' [SP1001]"
    )
    expect(tab.locator("input[name=value]")).to_have_value("yesterday")
    expect(tab.locator("select[name=target]")).to_have_value("datetime")
    tab.locator("input[name=value]").fill("2026-11-22T14:00Z")
    console.refused(422)


def violations(tab: Page) -> Iterator[str]:
    """What axe-core finds on the page."""
    for violation in Axe().run(tab).response["violations"]:
        yield f"{violation['id']}: {violation['nodes'][0]['html'][:200]} ({len(violation['nodes'])} times)"


def test_axe_finds_nothing_on_a_refused_plan(serve: Serve, pages: Mapping[str, str], admin: Admin) -> None:
    """The refusal is on the plan as it is now, with the reason as it was typed, and it can be sent again."""
    console = serve(refresh=60.0)
    tab = console.tab(path_of("plan", action="reset", group=STOPPED, target="offset", value=7))
    admin.apply(admin.plan_reset(STOPPED, ResetTo.offset(5)), reason="first", actor="grace")
    carry_out(tab, "a duplicate")
    expect(tab.get_by_role("alert")).to_contain_text("nothing was done")
    expect(tab.get_by_label("Reason")).to_have_value("a duplicate")
    assert list(violations(tab)) == []
    tab.set_viewport_size({"width": 400, "height": 900})
    console.watch.measure(tab)
    tab.locator("form.apply button").click()
    expect(tab.locator("h1")).to_have_text(STOPPED)
    console.refused(409)


def test_axe_finds_nothing_while_the_database_is_away(
    serve: Serve, pages: Mapping[str, str], admin: Admin, proxy: PostgresProxy, new_engine: Callable[..., Engine]
) -> None:
    console = serve(admin=Admin(new_engine(proxy.dsn), schema=admin.schema))
    tab = console.tab(path_of("group", group=BUSY))
    proxy.refuse()
    proxy.cut()
    expect(tab.locator(".banner").first).to_contain_text("The database cannot be read")
    assert list(violations(tab)) == []
    tab.set_viewport_size({"width": 400, "height": 900})
    console.watch.measure(tab)
    proxy.accept()
    expect(tab.locator("main")).not_to_contain_text("The database cannot be read")


def test_axe_finds_nothing_on_a_plan_whose_loss_is_to_be_accepted(serve: Serve, worker_group: WorkerGroup) -> None:
    """It is not sent before that is ticked."""
    at_start = Partition(lost_log(worker_group), 0)
    console = serve(kafka={"bootstrap.servers": worker_group.broker})
    tab = console.tab(path_of("plan", action="reset", group=worker_group.group, target="offset", value=2))
    loss = tab.get_by_label("accept their loss")
    expect(loss).to_be_visible()
    assert list(violations(tab)) == []
    tab.set_viewport_size({"width": 400, "height": 900})
    console.watch.measure(tab)
    carry_out(tab, "known")
    expect(loss).to_be_focused()
    assert worker_group.positions()[at_start] == 3
    loss.check()
    carry_out(tab, "known")
    expect(tab.locator("h1")).to_have_text(worker_group.group)
    assert worker_group.positions()[at_start] == 5


def test_one_who_reads_sees_no_button_and_no_form_of_an_action(
    serve: Serve, pages: Mapping[str, str], admin: Admin
) -> None:
    console = serve(access=as_user("rita", Right.READ), refresh=60.0)
    tab = console.tab()
    for name, path in {**pages, **MORE}.items():
        if name in {"plan", "error"} or path.startswith("plan"):
            continue
        console.go(tab, path)
        expect(tab.locator("header")).to_contain_text("rita (read-only)")
        assert tab.locator("form[action=plan], form[action=apply], a[href*='plan?']").count() == 0, path
    console.go(tab, pages["plan"])
    expect(tab.get_by_role("alert")).to_have_text("user 'rita' may not act here")
    console.refused(403)


def test_everything_is_done_without_javascript(serve: Serve, pages: Mapping[str, str], admin: Admin) -> None:
    tab = serve(payloads="full").tab(scripts=False)
    assert tab.locator("#live").inner_text() == ""
    tab.get_by_role("link", name=STOPPED, exact=True).click()
    tab.locator(".stop").get_by_role("link", name="Skip the record…").click()
    carry_out(tab, "a duplicate")
    expect(tab.locator(".stop")).to_have_count(0)
    tab.locator("select[name=target]").select_option("offset")
    tab.locator("input[name=value]").fill("7")
    tab.get_by_role("button", name="Show the plan").click()
    expect(tab.get_by_role("region", name="Resets").locator("tbody tr")).to_have_count(4)
    carry_out(tab, "once more")
    tab.locator(".actions").get_by_role("link", name="History").click()
    expect(tab.locator("tbody")).to_contain_text("once more")
    tab.get_by_role("link", name="Groups").first.click()
    tab.get_by_role("row", name=BUSY).get_by_role("link").last.click()
    tab.get_by_role("region", name="Failures").get_by_role("link").first.click()
    tab.get_by_role("link", name="Discard these").click()
    carry_out(tab, "test data")
    assert {(action.action, action.actor, action.reason) for action in admin.history(STOPPED)} >= {
        ("reset", "ada", "a duplicate"),
        ("reset", "ada", "once more"),
    }
    assert sum(action.reason.endswith(" dead letters: test data") for action in admin.history(BUSY, limit=500)) == 1
    assert (
        sum(
            dead_letter.closed_reason == "test data"
            for dead_letter in admin.dead_letters(BUSY).list(Where(states=tuple(State)))
        )
        > 40
    )
    for name in ("Reloads", "History", "Health"):
        tab.get_by_role("navigation", name="Pages").get_by_role("link", name=name).click()
        expect(tab.locator("h1")).to_have_text(name)


def test_a_group_is_paused_by_keyboard_alone(serve: Serve, pages: Mapping[str, str], admin: Admin) -> None:
    """Focus is always seen, goes in the page's order, and stays where it is when the page is read again."""
    tab = serve().tab(path_of("group", group=BUSY))
    tab.keyboard.press("Tab")
    assert tab.evaluate(AT_FOCUS)["text"] == "Skip to the content"
    assert tab.evaluate(AT_FOCUS)["seen"]
    order = to_focus(tab, "Pause…")
    assert order[:6] == ["Seekpoint", "Groups", "Reloads", "History", "Health", "Pause"]
    refreshed(tab, 4)
    assert tab.evaluate(AT_FOCUS)["text"] == "Pause…"
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    expect(tab.locator("h1")).to_have_text(f"Pause: {BUSY}")
    tab.wait_for_load_state()  # until then the browser may go to a fragment once more
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")  # skip
    expect(tab).to_have_url(re.compile("#main$"))
    expect(tab.locator("#main")).to_be_focused()
    assert tab.get_by_role("link", name=BUSY).count() == 1
    assert to_focus(tab, "reason")[:2] == ["Groups", BUSY]
    tab.keyboard.type("by keyboard")
    tab.keyboard.press("Enter")
    expect(tab.locator(".banner").first).to_contain_text("Paused by ada: by keyboard")
    assert admin.status([BUSY])[0][0].pause is not None


def to_focus(tab: Page, text: str) -> list[str]:
    """Press Tab until this is focused; returns what was focused before. Each must be seen, and be marked."""
    passed: list[str] = []
    for _ in range(60):
        tab.keyboard.press("Tab")
        now: Any = tab.evaluate(AT_FOCUS)
        assert now["seen"], now
        assert now["outline"] != "none", now
        if now["text"] == text:
            return passed
        passed.append(now["text"])
    raise AssertionError(f"Tab does not reach {text}: {passed}")


def test_forms_of_another_site_and_forms_sent_twice_are_refused(
    serve: Serve, pages: Mapping[str, str], admin: Admin
) -> None:
    console = serve()
    tab = console.tab(path_of("plan", action="pause", group=BUSY))
    form = tab.locator("form.apply").evaluate("form => Object.fromEntries(new FormData(form))")
    fields = "".join(f'<input name="{name}" value="{value}">' for name, value in {**form, "reason": "x"}.items())
    page = f'<form method="post" action="{console.address}apply">{fields}<button>Win a prize</button></form>'

    def attack(route: Route) -> None:
        route.fulfill(body=page, content_type="text/html")

    attacker = console.tab()
    attacker.route("http://attacker.example/", attack)
    attacker.goto("http://attacker.example/")
    attacker.get_by_role("button").click()
    expect(attacker.locator("body")).to_have_text("forms of other sites are refused")
    assert urlsplit(attacker.url).path == "/apply"
    assert admin.status([BUSY])[0][0].pause is None

    carry_out(tab, "the first time")
    expect(tab.locator("h1")).to_have_text(BUSY)
    admin.apply(admin.plan_resume(BUSY), reason="done", actor="grace")
    again = tab.evaluate(
        "fields => fetch('apply', {method: 'POST', body: new URLSearchParams(fields)}).then(answer => answer.text())",
        {**form, "reason": "the second time"},
    )
    assert "this form was sent before" in again
    assert admin.status([BUSY])[0][0].pause is None
    console.refused(403, 403)
