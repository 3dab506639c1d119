"""What is shown of records: nothing by default, and always as text."""

from __future__ import annotations

import os
import random
import re
import secrets
from html import unescape
from typing import Any

import pytest
from sqlalchemy import text

from seekpoint.errors import OffsetLost
from seekpoint.testing import raw
from seekpoint.web import pages, present
from support.dead_letter_group import DeadLetterGroup
from support.ledger_worker import LedgerWorker
from web.conftest import PAGES, Console

SECRET = "Kq7-marked"
REASON = "Zx9-reason"


MARKS = """
    UPDATE "{s}".dead_letter SET cause = 'decode', error = 'Unreadable: its headers cannot be read: ' || :secret
      WHERE record_offset = 1;
    UPDATE "{s}".dead_letter SET error = error || E'\\nDETAIL: ' || :secret, traceback = traceback || :secret,
      replay_error = :secret, replay_traceback = :secret;
    UPDATE "{s}".dead_letter SET edited_value = convert_to(:secret, 'UTF8'), edited_at = now(), edited_by = 'ada',
      edited_reason = :reason WHERE record_offset = 0;
    INSERT INTO "{s}".partition_trouble (consumer_group, topic, partition, attempt_offset, attempts, attempt_error)
      SELECT consumer_group, topic, partition, next_offset, 1, :secret FROM "{s}".partition_offset
      WHERE topic = 't' AND partition = 1;
    INSERT INTO "{s}".worker (owner, consumer_group, host, pid, version, library, state, trouble)
      VALUES (gen_random_uuid(), 'g', 'host', 1, 1, '0', 'trouble', :secret);
    UPDATE "{s}".consumer_group SET paused = true, paused_by = 'ada', paused_reason = :reason;
    INSERT INTO "{s}".admin_action (consumer_group, action, actor, reason) VALUES ('g', 'pause', 'ada', :reason);
    INSERT INTO "{s}".reload_run (id, groups, tables, strategy, pipelines, version_from, version_to, state,
      driver_epoch, driver, staging_schema, actor, reason, error)
      VALUES (gen_random_uuid(), ARRAY['g'], ARRAY['t'], 'swap', ARRAY['m'], ARRAY[1], ARRAY[2], 'failed', 1, 'host',
      's', 'ada', :reason, :secret);
    INSERT INTO "{s}".replay_request (consumer_group, version, dead_letters, state, actor, reason, error, started_at,
      ended_at, worker)
      VALUES ('g', 1, ARRAY[1], 'failed', 'ada', :reason, :secret, now(), now(), gen_random_uuid())"""


@pytest.fixture
def marked_group(dead_letter_group: DeadLetterGroup) -> DeadLetterGroup:
    """Every text that may quote a record has ``SECRET``, every reason that a user gave ``REASON``."""
    dead_letter_group.bad = {SECRET.encode()}
    dead_letter_group.park(
        raw(SECRET.encode(), topic="orders", key=SECRET.encode(), headers=[(SECRET, SECRET.encode())]),
        raw(SECRET.encode(), topic="orders", offset=1, key=b"k"),
    )
    worker = LedgerWorker(dead_letter_group.ledger, cluster_id="seekpoint-testing")
    worker.claim(0, 1)
    stop = OffsetLost(worker.topic_partition(0), 0, f"stopped by {SECRET}", choices=["a choice"])
    stop.token = worker.claims[0].token
    worker.ledger.record_stops([stop])
    with dead_letter_group.engine.begin() as tx:
        for statement in MARKS.format(s=dead_letter_group.schema).split(";"):
            options = {"secret": SECRET, "reason": REASON}
            tx.execute(text(statement), {name: value for name, value in options.items() if f":{name}" in statement})
    return dead_letter_group


def paths(dead_letter_group: DeadLetterGroup) -> list[str]:
    numbers = [dead_letter.id for dead_letter in dead_letter_group.dead_letters()]
    with dead_letter_group.engine.connect() as tx:
        (request,) = tx.execute(text(f'SELECT id FROM "{dead_letter_group.schema}".replay_request')).scalars()
    more = [f"dead-letter?group=g&id={number}" for number in numbers]
    return [*PAGES, *more, "partition?group=g&topic=t&partition=1", f"replay?group=g&id={request}"]


def test_without_payloads_nothing_of_a_record_is_shown(console: Console, marked_group: DeadLetterGroup) -> None:
    browser = console(allow_actions=True)
    for path in paths(marked_group):
        for of in ("", "api/"):
            answer = browser.get(f"/{of}{path}")
            assert answer.status_code == 200, answer.text
            assert SECRET not in unescape(answer.text), answer.url
            assert SECRET.encode().hex(" ") not in answer.text
            assert "S3E3LW1hcmtlZA" not in answer.text  # in base64
            assert "Traceback" not in answer.text
            assert "DETAIL" not in answer.text
    plans = ["discard&group=g", "replay&group=g", "resume&group=g", "reset&group=g&target=earliest"]
    for plan in plans:
        assert SECRET not in browser.get(f"/plan?action={plan}").text
    assert "its headers cannot be read, and were not stored" in browser.get("/plan?action=replay&group=g").text


def test_reasons_are_shown(console: Console, marked_group: DeadLetterGroup) -> None:
    browser = console()
    for path in ("group?group=g", "reloads", "history", "history?group=g", paths(marked_group)[-1]):
        assert REASON in browser.get(f"/{path}").text
        assert REASON in browser.get(f"/api/{path}").text


def test_what_a_worker_does_is_shown_without_payloads(console: Console, marked_group: DeadLetterGroup) -> None:
    """Its text is stored as that of a trouble is, but quotes no record."""
    activity = "in a transaction for 2 min 40 s, 8,298 records"
    with marked_group.engine.begin() as tx:
        change = f"UPDATE \"{marked_group.schema}\".worker SET state = 'running', trouble = :activity"
        tx.execute(text(change), {"activity": activity})
    browser = console()
    assert f"running: {activity}" in browser.get("/group?group=g").text
    assert f'"activity":"{activity}"' in browser.get("/api/group?group=g").text


def test_with_payloads_all_of_it_is_shown(console: Console, marked_group: DeadLetterGroup) -> None:
    browser = console(payloads="full")
    quoted = [path for path in paths(marked_group) if path.partition("?")[0] not in {"", "history", "health"}]
    for path in quoted:
        for of in ("", "api/"):
            assert SECRET in browser.get(f"/{of}{path}").text, path


def odd(drawn: random.Random) -> bytes:
    parts = [
        b"<script>alert(1)</script>",
        b"\"'&<>",
        b"\xff\xfe",
        "\u202e\u2028é".encode(),
        b"\x00\x1b[31m",
        b"{{ 7*7 }}",
    ]
    return b"".join(drawn.choices([*parts, bytes([drawn.randrange(256)])], k=drawn.randrange(1, 6)))


def test_odd_bytes_are_shown_as_text(console: Console, dead_letter_group: DeadLetterGroup) -> None:
    """In topic, group, key, value, texts of errors, and names and values of headers."""
    seed = int(os.environ.get("SEEKPOINT_SEED", secrets.randbits(32)))
    print(f"SEEKPOINT_SEED={seed}")
    drawn = random.Random(seed)
    browser = console(allow_actions=True, payloads="full")
    dead_letter_group.bad = {b"b"}
    for n in range(5):
        dead_letter_group.group = odd_name(drawn, n)
        topic, error, value, key = odd_name(drawn, n), odd_name(drawn, n), odd(drawn), odd(drawn)
        headers = [(b"\xff trace", odd(drawn)), (odd(drawn), odd(drawn)), (odd_name(drawn, n).encode(), odd(drawn))]
        of_log = [(name.decode("utf-8", "surrogateescape"), value) for name, value in headers]
        (dead_letter,) = dead_letter_group.park(raw(b"b", topic="orders", offset=n, key=key, headers=of_log))
        LedgerWorker(dead_letter_group.ledger, topic=topic, cluster_id="seekpoint-testing").claim(0)
        with dead_letter_group.engine.begin() as tx:
            change = f"""UPDATE "{dead_letter_group.schema}".dead_letter SET topic = :topic, value = :value,
              error = :error, traceback = :error, replay_error = :error WHERE id = :id"""
            tx.execute(text(change), {"topic": topic, "value": value, "error": error, "id": dead_letter.id})
        asked: list[tuple[str, dict[str, Any]]] = [
            ("", {}),
            ("group", {"group": dead_letter_group.group}),
            ("partition", {"group": dead_letter_group.group, "topic": topic, "partition": 0}),
            ("dead-letters", {"group": dead_letter_group.group}),
            ("dead-letter", {"group": dead_letter_group.group, "id": dead_letter.id}),
            ("history", {"group": dead_letter_group.group}),
            ("plan", {"action": "pause", "group": dead_letter_group.group}),
        ]
        for path, query in asked:
            page = browser.get(f"/{path}", params=query)
            assert page.status_code == 200, page.text
            assert "<script>" not in page.text
            if path:
                assert dead_letter_group.group in unescape(page.text)
            if path in {"group", "partition", "dead-letters", "dead-letter"}:
                assert topic in unescape(page.text)
            if path != "plan":
                twin = browser.get(f"/api/{path}", params=query)
                assert twin.status_code == 200
                assert twin.headers["content-type"] == "application/json"
        page = browser.get("/dead-letter", params={"group": dead_letter_group.group, "id": dead_letter.id})
        assert "ff 20 74 72 61 63 65" in page.text
        for data in (value, key, *(part for header in headers for part in header)):
            assert present.octets(data) in unescape(page.text)
        assert unescape(page.text).count(error) >= 3
        assert error in unescape(browser.get("/dead-letters", params={"group": dead_letter_group.group}).text)


def test_a_long_value_is_cut_and_says_how_long_it_is(console: Console, dead_letter_group: DeadLetterGroup) -> None:
    """Not within a character; and its page is not read again."""
    dead_letter_group.bad = {b"b"}
    (dead_letter,) = dead_letter_group.park(raw(b"b", topic="orders"))
    value = b"ab" + "é".encode() * 40_000 + b"the end"
    short = value[: present.LONGEST]
    browser = console(payloads="full")
    for stored, left_out in ((value, True), (value[1:], True), (short, False)):
        with dead_letter_group.engine.begin() as tx:
            change = f'UPDATE "{dead_letter_group.schema}".dead_letter SET value = :value WHERE id = :id'
            tx.execute(text(change), {"value": stored, "id": dead_letter.id})
        page = browser.get(f"/dead-letter?group=g&id={dead_letter.id}").text
        assert "éé</pre>" in page
        assert "the end" not in page
        assert (f"The first 65,536 of {len(stored):,} bytes are shown." in page) == left_out
        assert "hx-trigger" not in page
        assert browser.get(f"/api/dead-letter?group=g&id={dead_letter.id}").json()["data"]["size"] == len(stored)


def test_an_edited_dead_letter_says_by_whom_and_why_and_shows_both_values(
    console: Console, dead_letter_group: DeadLetterGroup
) -> None:
    dead_letter = dead_letter_group.dead_lettered(b"b")
    page = f"/dead-letter?group=g&id={dead_letter.id}"
    assert "Edited" not in console(payloads="full").get(page).text
    dead_letter_group.new_replay().edit(dead_letter.id, b"fixed <value>", reason="ticket 7")
    full, bare = console(payloads="full"), console()
    assert re.search(r"Edited by ada at .*: ticket 7\. A replay applies the edited value\.", full.get(page).text)
    assert '<h2>Value</h2><pre tabindex="0">b</pre>' in full.get(page).text
    assert '<h2>Edited value</h2><pre tabindex="0">fixed &lt;value&gt;</pre>' in full.get(page).text
    assert "Edited by ada" in bare.get(page).text
    assert "fixed" not in bare.get(page).text
    assert "edited_value" not in bare.get(f"/api{page}").json()["data"]
    assert dead_letter_group.new_replay().replay(dead_letter.id).is_applied
    assert "The edited value was applied." in full.get(page).text


def odd_name(drawn: random.Random, n: int) -> str:
    """Markup and signs that text in Postgres may have."""
    return f"{n} " + "".join(drawn.choices(["<script>", "\"'&<>", "\u202eé", "\x1b[31m", "{{ 7*7 }}", "%2f/?#"], k=3))


def test_dead_letters_are_searched_by_key_and_text_and_have_pages(
    console: Console, dead_letter_group: DeadLetterGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are not found by what is not shown; a blocked one leads to the first of its key."""
    monkeypatch.setattr(pages, "DEAD_LETTERS", 2)
    dead_letter_group.bad = {b"b"}
    dead_letter_group.park(*(raw(b"b", topic="orders", offset=n, key=b"k1" if n % 2 else b"k2") for n in range(5)))
    with dead_letter_group.engine.begin() as tx:
        table = f'"{dead_letter_group.schema}".dead_letter'
        tx.execute(text(f"UPDATE {table} SET error = 'ValueError: odd' WHERE record_offset = 3"))
        blocked = f"UPDATE {table} SET cause = 'blocked' WHERE record_offset = 4 RETURNING id"
        (last,) = tx.execute(text(blocked)).scalars()
    full, seen, path = console(payloads="full"), [], "/dead-letters?group=g"
    while path:
        shown = full.get(path).text
        seen += re.findall(r"data-label=\"Offset\">(\d)<", shown)
        match = re.search(r'href="(dead-letters[^"]*after=[^"]*)">next', shown)
        path = "" if match is None else f"/{unescape(match[1])}"
    assert seen == ["0", "1", "2", "3", "4"]

    def offsets(query: str) -> list[int]:
        data = full.get(f"/api/dead-letters?group=g&{query}").json()["data"]["dead_letters"]
        return [line["offset"] for line in data]

    assert [offsets(query) for query in ("key=k1", "error=odd", "key=k1&error=odd", "key=k")] == [[1, 3], [3], [3], []]
    first = dead_letter_group.dead_letters()[0].id
    assert (
        f'<a href="dead-letter?group=g&amp;id={first}">dead letter {first}</a>'
        in full.get(f"/dead-letter?group=g&id={last}").text
    )
    none = console(allow_actions=True)
    for hidden in ("key=k1", "error=odd"):
        for page in (f"/dead-letters?group=g&{hidden}", f"/plan?action=discard&group=g&{hidden}"):
            assert none.get(page).status_code == 403
