"""Actions: forged forms are refused; plans are applied with actor and reason, or refused where they are outdated."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from html import unescape
from time import time
from typing import Any

import pytest
from httpx2 import Response
from sqlalchemy import Engine, create_engine, event, text

from seekpoint import Accumulate, Pipeline, Text
from seekpoint.admin import Admin, ResetTo
from seekpoint.errors import ConfigError, OffsetLost, PartitionStopped, PoisonStop, TopicRecreated
from seekpoint.ledger.status import StatusTables, WorkerProcess
from seekpoint.pipeline.declared import declared
from seekpoint.records import Cause, Failure
from seekpoint.web import Access, Right
from seekpoint.web.reading import Reads
from seekpoint.web.tokens import LIFETIME, Tokens
from support.browser import LOCAL, Browser
from support.dead_letter_group import DeadLetterGroup
from support.every_row import for_each
from support.ledger_worker import LedgerWorker
from support.postgres_proxy import PostgresProxy
from support.sink_tables import orders
from support.transaction_pooler import in_each_session, run_own
from web.conftest import Console

SECRET = b"s" * 32


def as_user(console: Console, name: str, **options: Any) -> Browser:
    return console(access=lambda _: Access(name, Right.OPERATE), allow_actions=True, **options)


@pytest.fixture
def browser(console: Console, worker: LedgerWorker) -> Browser:
    return as_user(console, "ada", secret=SECRET)


def is_paused(admin: Admin) -> bool:
    return admin.status(["g"])[0][0].pause is not None


def test_forged_forms_are_refused(browser: Browser, console: Console, admin: Admin) -> None:
    form = browser.plan("pause", group="g")
    reset = browser.plan("reset", group="g", target="offset", value=1)
    eve = as_user(console, "eve", secret=SECRET)
    forged = [
        ({**form, "token": ""}, "no token"),
        ({**form, "token": "a.b.c"}, "an invalid token"),
        ({**form, "token": form["token"][:-1] + ("0" if form["token"][-1] != "0" else "1")}, "a changed token"),
        ({**form, "token": reset["token"]}, "the token of another form"),
        ({**form, "action": "resume"}, "another action"),
        ({**reset, "plan": form["plan"]}, "another plan"),
        ({**form, "token": eve.plan("pause", group="g")["token"]}, "another user's"),
        ({**form, "token": Tokens(b"x" * 32).issue("ada", "apply pause", form["plan"].encode())}, "another secret"),
    ]
    for fields, what in forged:
        assert browser.apply(fields).status_code == 403, what
    assert browser.apply({name: value for name, value in form.items() if name != "token"}).status_code == 400
    assert not is_paused(admin)
    assert admin.history("g") == []
    assert browser.apply(form).status_code == 303
    assert browser.apply(browser.plan("resume", group="g")).status_code == 303
    assert browser.apply(form).status_code == 403  # used twice
    assert not is_paused(admin)


@pytest.mark.parametrize(("age", "status"), [(LIFETIME - 60, 303), (LIFETIME + 1, 403)])
def test_a_form_is_good_for_an_hour(browser: Browser, age: float, status: int) -> None:
    form = browser.plan("pause", group="g")
    earlier = Tokens(SECRET, lambda: time() - age)
    form["token"] = earlier.issue("ada", "apply pause", form["plan"].encode())
    assert browser.apply(form).status_code == status


def test_a_token_is_redeemed_once_and_forgotten_after_an_hour() -> None:
    now = [1_000.0]
    tokens = Tokens(clock=lambda: now[0])
    token = tokens.issue("ada", "form", b"plan")
    assert not tokens.redeem(token, "bob", "form", b"plan")
    assert not tokens.redeem(token, "ada", "formp", b"lan")
    assert tokens.redeem(token, "ada", "form", b"plan")
    assert not tokens.redeem(token, "ada", "form", b"plan")
    now[0] += LIFETIME + 1
    assert not tokens.redeem(token, "ada", "form", b"plan")
    assert tokens.redeem(tokens.issue("ada", "form", b"plan"), "ada", "form", b"plan")


def test_processes_with_one_secret_take_each_others_forms(browser: Browser, console: Console, admin: Admin) -> None:
    assert as_user(console, "ada", secret=SECRET).apply(browser.plan("pause", group="g")).status_code == 303
    assert is_paused(admin)
    assert as_user(console, "ada").apply(browser.plan("resume", group="g")).status_code == 403
    assert is_paused(admin)


@for_each(
    [
        {"origin": "http://attacker.example"},
        {"origin": "http://localhost:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
def test_forms_of_other_sites_are_refused(headers: dict[str, str], browser: Browser, admin: Admin) -> None:
    assert browser.apply(browser.plan("pause", group="g"), **headers).status_code == 403
    assert not is_paused(admin)


def test_a_form_needs_the_headers_of_a_browser(browser: Browser, admin: Admin) -> None:
    form = {**browser.plan("pause", group="g"), "reason": "because"}
    assert browser.post("/apply", data=form).status_code == 403
    assert not is_paused(admin)
    assert browser.post("/apply", data=form, headers={"origin": LOCAL}, follow_redirects=False).status_code == 303


@pytest.mark.parametrize("right", [Right.READ, Right.NONE])
def test_a_user_who_may_no_longer_operate_sends_no_form(
    console: Console, worker: LedgerWorker, admin: Admin, right: Right
) -> None:
    rights = [Right.OPERATE]
    browser = console(access=lambda _: Access("ada", rights[0]), allow_actions=True)
    form = browser.plan("pause", group="g")
    rights[0] = right
    assert browser.apply(form).status_code == 403
    assert not is_paused(admin)
    rights[0] = Right.OPERATE
    assert browser.apply(form).status_code == 303


def test_a_form_needs_a_reason(browser: Browser, admin: Admin) -> None:
    """Its token is not redeemed without one."""
    form = browser.plan("pause", group="g")
    answer = browser.apply(form, "  ")
    assert answer.status_code == 422
    assert refusal_of(answer) == "a reason is needed"
    assert not is_paused(admin)
    assert browser.apply(form, "maintenance").status_code == 303
    assert is_paused(admin)


def refusal_of(answer: Response) -> str:
    """The alert of a page."""
    (banner,) = re.findall(r'<p class="banner failure" role="alert">([^<]*)</p>', answer.text)
    return unescape(banner)


def test_a_refusal_is_shown_on_the_plan_as_it_is_now(browser: Browser, admin: Admin, worker: LedgerWorker) -> None:
    """With the reason as it was typed, and a form that can be sent."""
    form = browser.plan("reset", group="g", topic="t", partition=1, target="offset", value=3)
    worker.commit({1: 9})
    answer = browser.apply({**form, "token": "a.b.c"}, 'the "7" <b>')
    assert (answer.status_code, refusal_of(answer).partition(",")[0]) == (403, "this form was sent before")
    assert '<input name="reason" value="the &#34;7&#34; &lt;b&gt;"' in answer.text
    assert browser.apply(browser.form_of(answer), "no, 8").status_code == 303
    assert worker.positions()[1] == 3

    form = browser.plan("reset", group="g", topic="t", partition=1, target="offset", value=2)
    admin.apply(admin.plan_reset("g", ResetTo.offset(1), {"t": [1]}), reason="first", actor="bob")
    answer = browser.apply(form, "again")
    assert answer.status_code == 409
    assert "make another plan" in refusal_of(answer)
    assert 'data-label="Position">1</td><td class="n" data-label="Target">2</td>' in answer.text
    assert browser.apply(browser.form_of(answer), "again").status_code == 303
    assert worker.positions()[1] == 2


def test_a_refusal_of_a_plan_that_cannot_be_made_again_has_the_reason(
    browser: Browser, worker: LedgerWorker, admin: Admin
) -> None:
    form = browser.plan("reset", group="g", target="offset", value=3)
    admin.apply(admin.plan_pause("g"), reason="it has ended", actor="bob")
    admin.apply(admin.plan_forget("g", export_to=None), reason="it has ended", actor="bob")
    answer = browser.apply(form, "typed <b>")
    assert answer.status_code in {409, 422, 503}
    assert refusal_of(answer)
    assert "typed &lt;b&gt;" in answer.text
    assert 'href="group?group=g"' in answer.text
    assert browser.form_of(answer) == {}


def test_while_the_database_is_away_the_plan_stays(
    console: Console, proxy: PostgresProxy, worker: LedgerWorker, admin: Admin, new_engine: Callable[..., Engine]
) -> None:
    """It is carried out when the database is back."""
    browser = as_user(console, "ada", admin=Admin(new_engine(proxy.dsn), schema=admin.schema))
    form = browser.plan("pause", group="g")
    proxy.refuse()
    proxy.cut()
    answer = browser.apply(form, "typed")
    assert answer.status_code == 503
    assert refusal_of(answer)
    assert '<input name="reason" value="typed"' in answer.text
    proxy.accept()
    assert not is_paused(admin)
    assert browser.apply(browser.form_of(answer), "typed").status_code == 303
    assert is_paused(admin)


@pytest.mark.parametrize(
    ("body", "status"), [(b"\xff", 400), (b"reason", 400), (b"a=" + b"x" * 16_000_001, 413), (b"", 400)]
)
def test_what_is_no_form_is_refused(browser: Browser, body: bytes, status: int) -> None:
    assert browser.post("/apply", content=body, headers={"origin": LOCAL}).status_code == status


def test_pause_resume_and_reset_are_in_the_history(browser: Browser, admin: Admin, worker: LedgerWorker) -> None:
    answer = browser.apply(browser.plan("pause", group="g"), "1 <b>")
    assert (answer.status_code, answer.headers["location"]) == (303, "group?group=g")
    assert "1 &lt;b&gt;" in browser.get("/group?group=g").text
    assert browser.apply(browser.plan("resume", group="g"), "2").status_code == 303
    form = browser.plan("reset", group="g", topic="t", partition=1, target="offset", value=3)
    assert browser.apply(form, "3").status_code == 303
    assert worker.positions() == {0: 5, 1: 3, 2: 0}
    shown_actions = [(action.action, action.partition, action.actor, action.reason) for action in admin.history("g")]
    assert shown_actions == [("reset", 1, "ada", "3"), ("resume", None, "ada", "2"), ("pause", None, "ada", "1 <b>")]
    assert [(group, action.reason) for group, action in admin.recent_actions()] == [
        ("g", "3"),
        ("g", "2"),
        ("g", "1 <b>"),
    ]
    shown = browser.get("/api/history").json()["data"]
    assert [entry["action"]["reason"] for entry in shown] == ["3", "2", "1 <b>"]


def test_an_outdated_plan_is_refused_and_says_so(browser: Browser, admin: Admin, worker: LedgerWorker) -> None:
    form = browser.plan("reset", group="g", topic="t", partition=1, target="offset", value=8)
    worker.commit({1: 9})
    answer = browser.apply(form)
    assert answer.status_code == 409
    assert "make another plan" in answer.text
    assert worker.positions()[1] == 9
    pause = browser.plan("pause", group="g")
    admin.apply(admin.plan_pause("g"), reason="first", actor="bob")
    answer = browser.apply(pause)
    assert answer.status_code == 409
    assert "paused by bob" in answer.text
    assert [action.actor for action in admin.history("g")] == ["bob"]


def test_a_reset_by_which_sums_would_count_twice_is_refused_with_the_remedy(
    browser: Browser, worker: LedgerWorker
) -> None:
    pipeline = Pipeline("g", topics="t", value=Text(), sinks=[Accumulate("daily_sales", key=["day"], add=["cents"])])
    StatusTables(worker.ledger, WorkerProcess("host", 1, None, "0")).declare(declared(pipeline))
    answer = browser.apply(browser.plan("reset", group="g", topic="t", partition=1, target="offset", value=3))
    assert "sums in daily_sales would count records twice" in refusal_of(answer)
    assert "offsets reset g … --rebuild MODULE:NAME" in refusal_of(answer)
    assert worker.positions()[1] == 7


def test_a_plan_with_nothing_to_do_has_no_form(browser: Browser) -> None:
    assert browser.plan("resume", group="g") == {}
    assert "There is nothing to do" in browser.get("/plan?action=resume&group=g").text


STATUSES = {
    "action=none&group=g": 400,
    "action=pause": 400,
    "group=g": 400,
    "action=pause&group=none": 422,
    "action=pause&group=g%00": 400,
    "action=reset&group=g&target=none": 422,
    "action=reset&group=g&target=offset&value=x": 422,
    "action=reset&group=g&target=datetime&value=x": 422,
    "action=reset&group=g&target=earliest&topic=t&partition=x": 400,
    "action=reset&group=g&target=earliest&partition=0": 400,
    "action=accept-lost&group=g&topic=t&partition=7": 422,
    "action=accept-lost&group=g&partition=0": 400,
    "action=discard&group=g&ids=x": 400,
    "action=discard&group=g&ids=999": 422,
    f"action=discard&group=g&ids={'9' * 4301}": 400,
    "action=discard&group=g&cause=none": 400,
    "action=replay&group=none": 422,
}


@for_each(STATUSES)
def test_a_plan_that_cannot_be_made_says_why(query: str, browser: Browser) -> None:
    answer = browser.get(f"/plan?{query}")
    assert answer.status_code == STATUSES[query], answer.text
    assert 'role="alert"' in answer.text


def test_dead_letters_are_discarded_by_filter(
    console: Console, dead_letter_group: DeadLetterGroup, admin: Admin
) -> None:
    dead_letter_group.bad = {b"b"}
    dead_letter_group.park(*orders(*[b"b"] * 3), *orders(b"b", partition=1))
    browser = as_user(console, "ada")
    form = browser.plan("discard", group="g", topic="orders", partition=0)
    shown = browser.get("/plan?action=discard&group=g&topic=orders&partition=0").text
    assert "3 dead letters are closed" in shown
    assert '<button class="primary danger">Discard 3 dead letters</button>' in shown
    first = dead_letter_group.open()[0]
    assert browser.apply(form, "bad import").status_code == 303
    assert [dead_letter.partition for dead_letter in dead_letter_group.open()] == [1]
    assert dead_letter_group.actions() == [("discard", 0, "ada", "3 dead letters: bad import")]
    assert f"dead letter {first.id}" in browser.get(f"/plan?action=discard&group=g&ids={first.id}").text
    # One that another operator closes meanwhile is refused, and the page says so.
    outdated = browser.plan("discard", group="g")
    admin.dead_letters("g", actor="bob").discard(dead_letter_group.open()[0].id, reason="first")
    answer = browser.apply(outdated, "second")
    assert answer.status_code == 409
    assert "0 dead letters were discarded; 1 are no longer open" in answer.text


def test_plans_of_many_ids_ask_no_more_than_of_one(dead_letter_group: DeadLetterGroup, admin: Admin) -> None:
    """And leave the values in the database."""
    dead_letter_group.bad = {b"b"}
    parked = [dead_letter.id for dead_letter in dead_letter_group.park(*orders(*[b"b"] * 5))]
    asked: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        asked.append(statement)

    def count(plan: Callable[[list[int]], Any], ids: list[int]) -> int:
        asked.clear()
        plan(ids)
        return len(asked)

    of = admin.dead_letters("g")
    event.listen(admin.engine, "before_cursor_execute", note)
    try:
        assert count(of.plan_discard, parked) == count(of.plan_discard, parked[:1])
        assert count(partial(admin.plan_replay, "g"), parked) == count(partial(admin.plan_replay, "g"), parked[:1])
    finally:
        event.remove(admin.engine, "before_cursor_execute", note)
    planned = of.plan_discard(reversed(parked))
    assert [
        (planned_replay.dead_letter.id, planned_replay.dead_letter.value, planned_replay.dead_letter.size)
        for planned_replay in planned
    ] == [(id_, None, 1) for id_ in parked]
    with pytest.raises(ConfigError, match="no dead letter 999"):
        of.plan_discard([parked[0], 999])


def test_a_replay_is_requested_by_filter(console: Console, dead_letter_group: DeadLetterGroup, admin: Admin) -> None:
    dead_letter_group.bad = {b"b"}
    dead_letters = dead_letter_group.park(*orders(*[b"b"] * 3))
    browser = as_user(console, "ada")
    (cause,) = admin.dead_letters("g").by_cause()
    query = {"group": "g", "cause": cause.cause.value, "exception": cause.exception, "error_line": cause.error_line}
    shown = browser.get("/plan", params={"action": "replay", **query}).text
    assert "3 dead letters are replayed; one that fails again stays open" in shown
    assert "no worker of version 1 was seen in the last minute" in shown
    answer = browser.apply(browser.plan("replay", **query), "handler fixed")
    assert answer.status_code == 303
    request = admin.replay_request("g", int(answer.headers["location"].rpartition("=")[2]))
    assert (request.dead_letters, request.actor, request.reason) == (
        tuple(dead_letter.id for dead_letter in dead_letters),
        "ada",
        "handler fixed",
    )
    page = browser.get(f"/{answer.headers['location']}")
    assert "No worker has started it yet" in page.text
    assert browser.get(f"/api/{answer.headers['location']}").json()["data"]["state"] == "requested"
    assert browser.get("/replay?group=g&id=999").status_code == 422


def test_a_user_without_a_name_is_its_uid(
    console: Console, admin: Admin, dead_letter_group: DeadLetterGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may run under any uid. Only what is changed needs to know who did it."""
    dead_letter = dead_letter_group.dead_lettered(b"b")

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("os.getuid", lambda: 54321)
    dead_letters = admin.dead_letters("g")
    dead_letters.discard(dead_letter.id, reason="a test")
    browser = console(allow_actions=True)
    assert browser.apply(browser.plan("pause", group="g")).status_code == 303
    assert [action.actor for action in admin.history("g")] == ["uid 54321"] * 2


class Processes:
    """Processes of the console that share their secret. Each remembers alone which tokens it has redeemed."""

    def __init__(self, console: Console, admin: Admin) -> None:
        self._console, self._admin = console, admin
        self.first = self._start()

    def _start(self) -> Browser:
        return as_user(self._console, "ada", secret=SECRET)

    def another_refuses(self, form: dict[str, str]) -> None:
        """The form, which the first has carried out, is refused by another one, and nothing is written."""
        before = self._written()
        answer = self._start().apply(form)
        assert answer.status_code == 409, answer.text
        assert "make another plan" in answer.text
        assert self._written() == before

    def _written(self) -> list[list[tuple[Any, ...]]]:
        tables = ("consumer_group", "partition_offset", "dead_letter", "admin_action", "lost_range", "replay_request")
        with self._admin.engine.connect() as tx:
            return [
                [tuple(row) for row in tx.execute(text(f'SELECT * FROM "{self._admin.schema}".{table} ORDER BY 1, 2'))]
                for table in tables
            ]


@pytest.fixture
def processes(console: Console, admin: Admin) -> Processes:
    return Processes(console, admin)


def test_another_process_refuses_a_pause_and_a_resume_that_were_carried_out(
    processes: Processes, worker: LedgerWorker
) -> None:
    pause = processes.first.plan("pause", group="g")
    assert processes.first.apply(pause).status_code == 303
    processes.another_refuses(pause)
    resume = processes.first.plan("resume", group="g")
    assert processes.first.apply(resume).status_code == 303
    processes.another_refuses(pause)  # the group is as it was when it was planned
    assert processes.first.apply(processes.first.plan("pause", group="g")).status_code == 303
    processes.another_refuses(resume)


def test_another_process_refuses_a_reset_that_was_carried_out(processes: Processes, worker: LedgerWorker) -> None:
    reset = processes.first.plan("reset", group="g", topic="t", partition=1, target="offset", value=3)
    assert processes.first.apply(reset).status_code == 303
    processes.another_refuses(reset)
    worker.claim(1)
    worker.commit({1: 7})
    processes.another_refuses(reset)


def test_another_process_refuses_a_replay_that_was_requested(
    processes: Processes, dead_letter_group: DeadLetterGroup
) -> None:
    dead_letter_group.bad = {b"b"}
    dead_letter_group.park(*orders(*[b"b"] * 3))
    replay = processes.first.plan("replay", group="g")
    assert processes.first.apply(replay).status_code == 303
    processes.another_refuses(replay)
    assert processes.first.apply(processes.first.plan("replay", group="g")).status_code == 303
    processes.another_refuses(replay)


def test_another_process_refuses_a_discard_that_was_carried_out(
    processes: Processes, dead_letter_group: DeadLetterGroup
) -> None:
    """Also where the records were read again, and failed again."""
    dead_letter_group.bad = {b"b"}
    dead_letter_group.park(*orders(*[b"b"] * 3))
    discard = processes.first.plan("discard", group="g")
    assert processes.first.apply(discard).status_code == 303
    processes.another_refuses(discard)
    dead_letter_group.ledger.reset_offset("orders", 0, 0, reason="again", log=None)
    again = dead_letter_group.park(*orders(*[b"b"] * 3))
    assert len(again) == 3
    processes.another_refuses(discard)
    assert processes.first.apply(processes.first.plan("discard", group="g")).status_code == 303


STOPS = {
    PoisonStop: ["action=reset&amp;target=after-failed&amp;group=g&amp;topic=t&amp;partition=0"],
    OffsetLost: [
        "action=accept-lost&amp;group=g&amp;topic=t&amp;partition=0",
        "action=reset&amp;target=earliest&amp;group=g&amp;topic=t&amp;partition=0",
    ],
    TopicRecreated: ["action=accept-topic&amp;group=g&amp;topic=t"],
}


@pytest.mark.parametrize("kind", list(STOPS))
def test_a_stop_has_buttons_to_the_plans_of_its_kind(
    browser: Browser, worker: LedgerWorker, kind: type[PartitionStopped]
) -> None:
    stop_at(worker, kind)
    for path in ("/group?group=g", "/partition?group=g&topic=t&partition=0"):
        page = browser.get(path).text
        section = page[page.index('<section class="stop">') : page.index("</section>")]
        assert [part.partition('"')[0] for part in section.split('href="plan?')[1:]] == STOPS[kind]
        assert "first choice" in section


def test_the_failed_record_is_skipped(browser: Browser, worker: LedgerWorker, admin: Admin) -> None:
    stop_at(worker, PoisonStop)
    form = browser.plan("reset", target="after-failed", group="g", topic="t", partition=0)
    assert browser.apply(form, "a duplicate").status_code == 303
    assert worker.positions()[0] == 6
    assert [(lost.from_offset, lost.to_offset, lost.actor) for lost in admin.lost(["g"])] == [(5, 6, "ada")]


def stop_at(worker: LedgerWorker, kind: type[PartitionStopped]) -> None:
    """Stop partition 0 at its position."""
    arguments = (worker.topic_partition(0), 5, "SECRET text")
    stop: PartitionStopped
    if kind is PoisonStop:
        stop = PoisonStop(*arguments, choices=["first choice"], failure=Failure.of(ValueError("SECRET"), Cause.HANDLER))
    else:
        stop = kind(*arguments, choices=["first choice"])
    stop.token = worker.claims[0].token
    assert worker.ledger.record_stops([stop]) == set()


def cannot_write(reader: Admin) -> None:
    """Its transactions are read only, and end a statement after two seconds; what it cannot do is not done."""
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        with reader.engine.connect().execution_options(isolation_level=level) as connection:
            asked = connection.execute(text("SELECT current_setting('statement_timeout')")).scalar_one()
            assert asked == "2s"
            with pytest.raises(Exception, match="read-only transaction"):
                connection.execute(text(f'UPDATE "{reader.schema}".consumer_group SET paused = true'))
    with pytest.raises(Exception, match="read-only transaction"):
        reader.apply(reader.plan_pause("g"), reason="no")
    assert not is_paused(reader)


@pytest.mark.parametrize("attributes", ["any", "read-write"])
def test_transactions_of_pages_cannot_write(admin: Admin, worker: LedgerWorker, attributes: str) -> None:
    """Also where the URL asks for a server that takes writes."""
    engine = create_engine(admin.engine.url.update_query_dict({"target_session_attrs": attributes}))
    reader = Reads(Admin(engine, schema=admin.schema)).admin
    cannot_write(reader)
    reader.engine.dispose()


def test_transactions_of_pages_cannot_write_through_a_pooler(admin: Admin, worker: LedgerWorker) -> None:
    with run_own(admin.engine.url.render_as_string(hide_password=False), size=2) as url:
        reader = Reads(Admin(create_engine(url), schema=admin.schema)).admin
        cannot_write(reader)
        reader.engine.dispose()
        left = in_each_session(url, "SELECT current_setting('statement_timeout')", size=2)
    assert left == [("0",)] * 2, "other clients of the pooler have these sessions next"


def test_transactions_of_a_given_reader_cannot_write(admin: Admin, worker: LedgerWorker) -> None:
    """And of the engine that was given, others still can."""
    cannot_write(Reads(admin, admin).admin)
    admin.apply(admin.plan_pause("g"), reason="maintenance")
    assert is_paused(admin)
