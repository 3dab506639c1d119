"""``seekpoint dead-letters``, and what ``status`` says of records that fail: what is printed, done, and answered."""

from __future__ import annotations

import json
import re
import secrets
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import Result

from seekpoint.admin import Admin
from seekpoint.cli.status import PARTITIONS
from seekpoint.ledger import GroupLedger
from seekpoint.metrics import LedgerGauges, Samples, catalogue
from seekpoint.testing import raw
from seekpoint.web import create_app, present
from seekpoint.worker.replay.requests import RequestedReplays
from support.browser import LOCAL, Browser
from support.command import seekpoint
from support.databases import libpq
from support.dead_letter_group import DeadLetterGroup
from support.every_row import for_each
from support.sink_tables import TOPIC, orders
from support.trouble import put_trouble

MODULE = """\
from pathlib import Path
from sqlalchemy import text
from seekpoint import Bytes, Pipeline

def book(tx, batch):
    for r in batch:
        if r.value.decode() in Path("bad").read_text().split():
            raise ValueError(f"{{r.value!r}} is not to be taken")
        statement = text('INSERT INTO "{schema}".applied (partition, record, key) VALUES (:p, :o, :k)')
        tx.execute(statement, {{"p": r.partition, "o": r.offset, "k": r.key}})

pipe = Pipeline("g", topics="orders", value=Bytes(), handle=book, on_poison="dead_letter", keep_key_order=True)
newer = Pipeline("g", topics="orders", value=Bytes(), handle=book, on_poison="dead_letter", version=2)
others = Pipeline("others", topics="orders", value=Bytes(), handle=book)
"""


class Terminal:
    """A folder with the pipeline's module and the list of what it refuses; the command, called there."""

    def __init__(self, dead_letter_group: DeadLetterGroup, folder: Path) -> None:
        self.dead_letter_group, self._folder = dead_letter_group, folder
        self.module = f"pipes_{secrets.token_hex(6)}"
        (folder / f"{self.module}.py").write_text(MODULE.format(schema=dead_letter_group.schema), encoding="utf-8")
        self.refuse()

    def refuse(self, *values: str) -> None:
        """What the handler of the module fails on from now on."""
        (self._folder / "bad").write_text(" ".join(values), encoding="utf-8")

    def run(self, *words: str, exits: int = 0, stdin: str = "") -> Result:
        """Call the command; it must exit so."""
        url = libpq(self.dead_letter_group.engine.url)
        env = {"SEEKPOINT_DATABASE_URL": url}
        return seekpoint(*words, "--schema", self.dead_letter_group.schema, exits=exits, width=80, env=env, stdin=stdin)

    def lines(self, *words: str, exits: int = 0) -> list[str]:
        """Call the command; returns what it prints, line by line."""
        return [line.rstrip() for line in self.run(*words, exits=exits).stdout.splitlines()]

    def json(self, *words: str, exits: int = 0) -> Any:
        """Call the command; returns what it answers to programs."""
        return json.loads(self.run(*words, "--json", exits=exits).stdout)

    def replay(self, *words: str, exits: int = 0) -> Result:
        return self.run("dead-letters", "replay", f"{self.module}:pipe", *words, exits=exits)


@pytest.fixture
def terminal(dead_letter_group: DeadLetterGroup, working_folder: Path) -> Terminal:
    return Terminal(dead_letter_group, working_folder)


def park(terminal: Terminal) -> list[int]:
    """Of key k: offset 0 dead-lettered, 2 blocked; without a key: 1 dead-lettered. Their ids, by offset."""
    dead_letter_group = terminal.dead_letter_group
    dead_letter_group.bad = {b"bad", b"worse"}
    records = [
        raw(b"bad", topic=TOPIC, offset=0, key=b"k", headers=[("trace", b"t-1"), ("bin", b"\xff")]),
        raw(b"worse", topic=TOPIC, offset=1, timestamp=datetime(2026, 7, 1, 12, tzinfo=UTC)),
        raw(b"good", topic=TOPIC, offset=2, key=b"k"),
    ]
    return [dead_letter.id for dead_letter in dead_letter_group.park(*records, keep_key_order=True)]


# -- list and show ----------------------------------------------------------------------------------------


def test_list_shows_the_open_ones(terminal: Terminal) -> None:
    ids = park(terminal)
    lines = terminal.lines("dead-letters", "list", "g")
    assert lines[0] == "dead letters of g"
    columns = "id topic partition offset state cause tried replays dead-lettered at error"
    assert " ".join(lines[1].split()) == columns
    assert lines[2].split()[:8] == [str(ids[0]), "orders", "0", "0", "dead_lettered", "handler", "1", "0"]
    assert lines[2].endswith("ValueError: b'bad' is not to be taken")
    assert lines[4].split()[:5] == [str(ids[2]), "orders", "0", "2", "blocked"]
    assert len(lines) == 5


@pytest.fixture
def parked_terminal(terminal: Terminal) -> Terminal:
    """The terminal of a group with the three dead letters of ``park``."""
    park(terminal)
    return terminal


def test_the_list_of_groups_counts_blocked_records_apart(parked_terminal: Terminal) -> None:
    heads, group = parked_terminal.lines("groups", "list")
    assert heads.split()[-3:] == ["dead", "letters", "committed"]
    assert "  3 (1 blocked)" in group
    assert [(group["dead_letters"], group["blocked"]) for group in parked_terminal.json("groups", "list")] == [(3, 1)]


@for_each(
    [
        ([], [0, 1, 2]),
        (["--state", "blocked"], [2]),
        (["--state", "discarded", "--state", "skipped"], []),
        (["--state", "all"], [0, 1, 2]),
        (["--cause", "handler"], [0, 1]),
        (["--error", "b'worse'"], [1]),
        (["--topic", "orders", "--partition", "0"], [0, 1, 2]),
        (["--topic", "orders", "--partition", "1"], []),
        (["--since", "1h"], [0, 1, 2]),
        (["--since", "2026-01-01T00:00+02:00"], [0, 1, 2]),
        (["--since", "2100-01-01T00:00Z"], []),
    ],
    lambda case: " ".join(case[0]) or "none",
)
def test_conditions_narrow_the_list(case: tuple[list[str], list[int]], parked_terminal: Terminal) -> None:
    conditions, offsets = case
    listed = parked_terminal.json("dead-letters", "list", "g", *conditions)
    assert [line["offset"] for line in listed] == offsets
    assert all("value" not in line and line["group"] == "g" for line in listed)
    if not offsets:
        output = parked_terminal.run("dead-letters", "list", "g", *conditions).stdout
        assert output == "g: no dead letters meet these conditions\n"


def test_dead_letters_are_counted_by_exception_and_line_and_replayed_by_them(terminal: Terminal) -> None:
    ids = park(terminal)
    handler, blocked = terminal.json("dead-letters", "list", "g", "--by-cause")
    assert (handler["count"], handler["cause"], handler["exception"]) == (2, "handler", "ValueError")
    assert re.fullmatch(r"dead_letter_group\.py:\d+ in \w+", handler["error_line"]), handler
    assert (handler["topics"], handler["first_id"], handler["group"]) == ([TOPIC], ids[0], "g")
    assert (blocked["count"], blocked["cause"], blocked["exception"], blocked["error_line"]) == (
        1,
        "blocked",
        None,
        None,
    )
    assert terminal.lines("dead-letters", "list", "g", "--by-cause")[2].split()[:3] == ["2", "handler", "ValueError"]
    [cause] = terminal.json("dead-letters", "list", "g", "--by-cause", "--error", "worse")
    assert (cause["count"], cause["first_id"]) == (1, ids[1])

    mine = ["--exception", "ValueError", "--line", handler["error_line"]]
    assert [dead_letter["id"] for dead_letter in terminal.json("dead-letters", "list", "g", *mine)] == ids[:2]
    assert terminal.json("dead-letters", "list", "g", "--exception", "KeyError") == []
    planned = terminal.json("dead-letters", "replay", f"{terminal.module}:pipe", "--all", *mine)["planned"]
    assert [dead_letter["id"] for dead_letter in planned] == ids, "and the one that is blocked after the first"
    assert (
        terminal.json("dead-letters", "replay", f"{terminal.module}:pipe", "--all", *mine, "--apply")["replayed"] == 3
    )
    assert terminal.json("dead-letters", "list", "g", "--by-cause") == []


def test_a_list_that_is_cut_says_so(terminal: Terminal) -> None:
    park(terminal)
    result = terminal.run("dead-letters", "list", "g", "--limit", "2")
    assert (len(result.stdout.splitlines()), result.stderr) == (4, "these are the first 2; --limit shows more\n")


@for_each(
    [
        (["list", "other"], "has no group 'other'; its groups are g"),
        (["list", "g", "--partition", "1"], "name the topic, too"),
        (["list", "g", "--since", "yesterday"], "--since takes a time such as 2026-08-01T12:00Z, or how long ago"),
        (["list", "g", "--since", "2026-08-01"], "say in which zone, e.g. 2026-08-01Z"),
        (["list", "g", "--cause", "bad luck"], "'bad luck' is not one of"),
        (["show", "4711"], "has no dead letter 4711"),
        (["replay", "{module}:pipe"], "give ids of dead letters, or --all"),
        (["replay", "{module}:pipe", "1", "--all"], "give either ids, or --all with conditions"),
        (["replay", "{module}:pipe", "1", "--topic", "orders"], "give either ids, or --all with conditions"),
        (["replay", "{module}:pipe", "--topic", "orders"], "or --all (with optional conditions)"),
        (["replay", "{module}:pipe", "4711"], "has no dead letter 4711"),
        (["replay", "{module}:newer", "--all"], "start a worker of version 2 first"),
        (["replay", "{module}:none", "--all"], "has no 'none'; it has pipe, newer, others"),
        (["discard", "1", "--apply"], "--apply needs --reason"),
        (["discard", "--all", "--reason", "x"], "--all needs --group"),
        (["discard", "1", "--apply", "--reason", " "], "--apply needs --reason"),
        (["replay", "g", "--all"], "if it is a group, add --by-worker"),
        (["discard", "4711", "--reason", "x"], "has no dead letter 4711"),
        (["discard", "--all", "--group", "other", "--reason", "x"], "has no group 'other'; its groups are g"),
        (["export", "other"], "has no group 'other'; its groups are g"),
    ],
    lambda case: " ".join(case[0]),
)
def test_what_is_wrong_is_said(case: tuple[list[str], str], parked_terminal: Terminal) -> None:
    words, message = case
    result = parked_terminal.run(
        "dead-letters", *(word.format(module=parked_terminal.module) for word in words), exits=2
    )
    assert message in result.stderr
    assert result.stdout == ""


def test_a_dead_letter_of_another_group_is_not_called_unknown(terminal: Terminal) -> None:
    first = park(terminal)[0]
    result = terminal.run("dead-letters", "replay", f"{terminal.module}:others", str(first), "--apply", exits=2)
    assert f"error: dead letter {first} belongs to group 'g', but you named Pipeline('others', " in result.stderr
    assert terminal.dead_letter_group.applied() == []


def test_show_prints_the_whole_dead_letter_and_what_can_be_done(terminal: Terminal) -> None:
    ids = park(terminal)
    output = terminal.run("dead-letters", "show", str(ids[0])).stdout
    for line in (
        f"dead letter {ids[0]} of group g: dead_lettered",
        "  record    orders/0 offset 0, no timestamp",
        '  key       "k"',
        '  headers   trace: "t-1"',
        "            bin: 0xff",
        "  cause     handler; tried once by handler version 1",
        "  error     ValueError: b'bad' is not to be taken",
        "            Traceback (most recent call last):",
        "  value     3 bytes, UTF-8:",
        "  bad",
        f"    seekpoint dead-letters replay MODULE:PIPELINE {ids[0]} --apply",
        f"  close it without applying it: seekpoint dead-letters discard {ids[0]} --reason '…' --apply",
    ):
        assert f"{line}\n" in output
    held = terminal.run("dead-letters", "show", str(ids[2])).stdout
    assert f"replay or discard {ids[0]} (offset 0) first: this one is blocked behind it" in held
    assert "2026-07-01 12:00:00 UTC" in terminal.run("dead-letters", "show", str(ids[1])).stdout
    answer = terminal.json("dead-letters", "show", str(ids[0]))
    assert answer["value"] == {"base64": "YmFk", "text": "bad"}
    assert answer["choices"][1].endswith(f"replay MODULE:PIPELINE {ids[0]} --apply")


def test_show_does_not_let_a_record_speak_to_the_terminal(terminal: Terminal) -> None:
    """Escape sequences are written out; what is no text is dumped; long values are cut, but with --full."""
    dead_letter_group = terminal.dead_letter_group
    values = [b"\x1b[2Jgone", b"\xff\x00\n", b"x" * 5000, "ü".encode() * 1500]
    dead_letter_group.bad = set(values)
    ids = [dead_letter.id for dead_letter in dead_letter_group.park(*orders(*values))]
    shown = [terminal.run("dead-letters", "show", str(id_)).stdout for id_ in ids]
    assert not any("\x1b" in text for text in shown)
    assert "  00000000  1b 5b 32 4a 67 6f 6e 65                          .[2Jgone\n" in shown[0]
    assert "  value     3 bytes, as bytes:\n  00000000  ff 00 0a    " in shown[1]
    assert "  value     5,000 bytes, the first 2,048 here (--full shows all), UTF-8:\n" in shown[2]
    assert f"\n  {'x' * 2048}\n" in shown[2]
    assert f"\n  {'ü' * 1024}\n" in shown[3]
    full = terminal.run("dead-letters", "show", str(ids[2]), "--full").stdout
    assert f"\n  {'x' * 5000}\n" in full
    listed = terminal.run("dead-letters", "list", "g").stdout
    assert "\x1b" not in listed


def test_no_password_comes_out_of_an_error(terminal: Terminal) -> None:
    (first, *_) = park(terminal)
    with terminal.dead_letter_group.engine.begin() as tx:
        error = "OperationalError: postgresql://me:hunter2@db/shop refused, password=hunter2"
        table = f'"{terminal.dead_letter_group.schema}".dead_letter'
        tx.execute(text(f"UPDATE {table} SET error = '{error}', traceback = '{error}'"))
    for words in (["list", "g"], ["list", "g", "--json"], ["show", str(first)], ["show", str(first), "--json"]):
        assert "hunter2" not in terminal.run("dead-letters", *words).output
    for words in (["export", "g"], ["discard", str(first), "--reason", "x"]):
        assert "hunter2" not in terminal.run("dead-letters", *words).output


# -- replay -----------------------------------------------------------------------------------------------


def test_replay_is_a_dry_run_without_apply(terminal: Terminal) -> None:
    ids = park(terminal)
    output = [line.rstrip() for line in terminal.replay(str(ids[0])).stdout.splitlines()]
    assert output[0] == "dry run"
    assert output[2].split() == [str(ids[0]), "orders", "0", "0", "dead_lettered", "replayed"]
    assert output[3].endswith(f"blocked        replayed after {ids[0]}, which has the same key")
    assert output[4] == "dry run: 2 would be replayed, 0 refused; --apply does it"
    refused = terminal.replay(str(ids[2]), exits=1).stdout
    assert f"comes after {ids[0]} (offset 0)" in refused
    assert refused.endswith("dry run: 0 would be replayed, 1 refused; --apply does it\n")
    plan = terminal.json("dead-letters", "replay", f"{terminal.module}:pipe", "--all")
    assert [(planned["id"], planned["refusal"]) for planned in plan["planned"]] == [(id_, None) for id_ in ids]
    assert plan["applied"] is False
    assert terminal.dead_letter_group.applied() == []


def test_replay_applies_and_says_what_became_of_each(terminal: Terminal) -> None:
    ids = park(terminal)
    terminal.refuse("worse")
    words = ("--all", "--apply", "--reason", "ticket 7", "--actor", "eve")
    output = terminal.replay(*words, exits=1).stdout
    assert output == (
        f"failed again: {ids[1]} (orders/0 offset 1): ValueError: b'worse' is not to be taken\n"
        "2 replayed, 1 failed again, 0 refused\n"
    )
    assert terminal.dead_letter_group.applied() == [0, 2]
    assert terminal.dead_letter_group.actions() == [("replay", 0, "eve", "3 dead letters: ticket 7")]
    shown = terminal.run("dead-letters", "show", str(ids[1])).stdout
    assert "  replays   1, the last one at 20" in shown
    assert "  failed    ValueError: b'worse' is not to be taken\n" in shown
    report = terminal.json(
        "dead-letters", "replay", f"{terminal.module}:pipe", str(ids[0]), str(ids[1]), "--apply", exits=1
    )
    assert (report["replayed"], [failed["offset"] for failed in report["failed"]]) == (0, [1])
    assert f"dead letter {ids[0]} (orders/0 offset 0) was replayed by eve at 20" in report["refused"][0]["refusal"]
    terminal.refuse()
    assert terminal.replay("--all", "--apply").stdout == "1 replayed, 0 failed again, 0 refused\n"
    nothing = "no open dead letters meet these conditions: there is nothing to do\n"
    assert terminal.replay("--all", "--apply").stdout == nothing
    assert terminal.replay("--all", "--cause", "crashed", "--apply").stdout == nothing
    assert terminal.replay("--all").stdout == "no open dead letters meet these conditions: there is nothing to do\n"
    assert terminal.dead_letter_group.applied() == [0, 2, 1]


def test_a_running_worker_is_asked_to_replay(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group is named, and the pipeline's code is not needed; a person at a terminal is asked for their number."""
    ids = park(terminal)
    by_worker = ("dead-letters", "replay", "g", "--by-worker")
    assert terminal.lines(*by_worker, "--all")[-3:] == [
        "  - a running worker of version 1 replays them between its batches, at most 100, or for 1 s, at a time",
        "  - no worker of version 1 was seen in the last minute: the request waits until one starts",
        "dry run: 3 dead letters would be replayed, 0 refused; --apply does it",
    ]
    assert "--apply needs --reason" in terminal.run(*by_worker, "--all", "--apply", exits=2).stderr
    assert "--while-paused" in terminal.run(*by_worker, "--all", "--while-paused", exits=2).stderr
    assert "has no dead letter 999" in terminal.run(*by_worker, "999", exits=2).stderr
    done = (*by_worker, "--all", "--apply", "--reason", "fixed", "--actor", "eve")
    monkeypatch.setattr("seekpoint.cli.options.at_terminal", lambda: True)
    refused = terminal.run(*done, exits=1, stdin="n\n")
    assert "have a worker of g replay 3 dead letters?" in refused.stderr
    assert terminal.dead_letter_group.actions() == []
    waited = terminal.run(*done, "--wait", "1s", exits=1, stdin="y\n")
    monkeypatch.undo()
    assert "(3 dead letters) is requested" in waited.stdout
    ((action, _, actor, why),) = terminal.dead_letter_group.actions()
    assert (action, actor) == ("request replay", "eve")
    request = re.fullmatch(r"request (\d+), 3 dead letters: fixed", why)
    assert request is not None
    dead_letter_group = terminal.dead_letter_group
    dead_letter_group.bad = {b"worse"}
    worker = RequestedReplays(
        dead_letter_group.pipeline(keep_key_order=True),
        GroupLedger(dead_letter_group.engine, "g", schema=dead_letter_group.schema),
    )
    worker.check()
    worker.work()
    shown = ("dead-letters", "replay-request", "g", request[1])
    assert terminal.lines(*shown) == [
        f"request {request[1]} (3 dead letters) is done; 2 replayed, 1 failed again, 0 refused"
    ]
    assert terminal.json(*shown, "--wait", "1s", exits=1)["request"]["replayed"] == 2
    assert terminal.dead_letter_group.applied() == [0, 2]
    assert [planned["id"] for planned in terminal.json(*by_worker, "--all")["planned"]] == [ids[1]]


def test_what_a_worker_is_not_asked_for_is_said(terminal: Terminal) -> None:
    first, second, _ = park(terminal)
    terminal.run("dead-letters", "discard", str(second), "--apply", "--reason", "empty")
    asked = ("dead-letters", "replay", "g", str(first), str(second), "--by-worker")
    assert terminal.json(*asked, exits=1)["planned"][1]["refusal"] is not None
    done = terminal.json(*asked, "--apply", "--reason", "fixed", exits=1)
    assert done["request"]["dead_letters"] == [first]
    assert [refused["id"] for refused in done["refused"]] == [second]
    output = terminal.run(*asked, "--apply", "--reason", "fixed", exits=1).stdout
    assert f"refused, so not in the request: dead letter {second}: " in output


def test_a_paused_group_says_who_paused_it(terminal: Terminal) -> None:
    park(terminal)
    terminal.dead_letter_group.ledger.pause(reason="an index", actor="ada")
    assert "paused by ada: an index" in terminal.replay("--all", "--apply", exits=1).stderr
    assert terminal.replay("--all", "--apply", "--while-paused").stdout == "3 replayed, 0 failed again, 0 refused\n"


# -- discard and export -----------------------------------------------------------------------------------


def test_discard_is_a_dry_run_without_apply(terminal: Terminal) -> None:
    ids = park(terminal)
    words = ("dead-letters", "discard", str(ids[0]), str(ids[1]), "--reason", "no orders")
    assert terminal.run(*words).stdout.splitlines() == [
        f"would be discarded: {ids[0]} (orders/0 offset 0): ValueError: b'bad' is not to be taken",
        f"would be discarded: {ids[1]} (orders/0 offset 1): ValueError: b'worse' is not to be taken",
        "dry run: 2 would be discarded (2 dead_lettered), 0 refused; --apply does it",
    ]
    assert terminal.dead_letter_group.states() == {0: "dead_lettered", 1: "dead_lettered", 2: "blocked"}
    assert terminal.run(*words, "--apply").stdout.endswith("2 discarded, 0 refused\n")
    assert terminal.dead_letter_group.states() == {0: "discarded", 1: "discarded", 2: "blocked"}
    again = terminal.run(*words, "--apply", exits=1).stdout
    assert again.count("was discarded by ") == 2
    report = terminal.json(
        *("dead-letters", "discard", "--all", "--group", "g", "--cause", "blocked", "--reason", "x", "--apply")
    )
    assert [(discarded["id"], discarded["refusal"]) for discarded in report["discarded"]] == [(ids[2], None)]
    assert "it was discarded" in terminal.run("dead-letters", "show", str(ids[0])).stdout


def test_an_edited_value_with_newlines_is_shown_as_text(terminal: Terminal, tmp_path: Path) -> None:
    """An editor ends a file with a newline; it was shown as hexadecimal digits."""
    (first, *_) = map(str, park(terminal))
    (file := tmp_path / "value").write_bytes(b'{"id": 1}\n')
    shown = terminal.lines("dead-letters", "edit", first, "--value-file", str(file))[0]
    assert shown.endswith(r'edited: "{"id": 1}\n"')


def test_edit_is_a_dry_run_without_apply(terminal: Terminal, tmp_path: Path) -> None:
    """Shown with both values, and by the replay's plan; `--undo` takes it back."""
    (first, *_) = map(str, park(terminal))
    terminal.refuse("bad")
    file = tmp_path / "value"
    file.write_bytes(b"fixed")
    words = ("dead-letters", "edit", first, "--value-file", str(file), "--actor", "ada", "--reason", "typo")
    assert terminal.lines(*words) == [
        f'a replay would apply {first} (orders/0 offset 0) edited: "fixed"',
        "dry run; --apply does it",
    ]
    assert "edited" not in terminal.run("dead-letters", "show", first).stdout
    assert terminal.lines(*words, "--apply") == [
        f'a replay applies {first} (orders/0 offset 0) edited: "fixed"',
        f"replay it: seekpoint dead-letters replay MODULE:PIPELINE {first} --apply",
    ]
    shown = terminal.run("dead-letters", "show", first).stdout
    assert re.search(
        r"  value     3 bytes, UTF-8:\n  bad\n  edited    20.* UTC by ada: typo\n  to apply  5 bytes", shown
    )
    assert f"undo the edit: seekpoint dead-letters edit {first} --undo" in shown
    assert "replayed, with the value that ada gave it" in " ".join(terminal.replay(first).stdout.split())
    undo = ("dead-letters", "edit", first, "--undo", "--reason", "right")
    assert terminal.json(*undo, "--apply")["edited"]["refusal"] is None
    assert "is not edited" in terminal.run(*undo, "--apply", exits=1).stdout
    terminal.run(*words, "--apply")
    assert terminal.replay(first, "--apply").stdout.endswith("0 failed again, 0 refused\n")
    assert terminal.dead_letter_group.states()[0] == "replayed"
    assert "was replayed by" in terminal.run(*words, exits=1).stdout
    for wrong, message in (
        ((), "give --value-file FILE with the new value, or --undo"),
        (("--value-file", str(tmp_path / "none")), "none: No such file"),
        (("--undo", "--apply"), "--apply needs --reason"),
    ):
        assert message in terminal.run("dead-letters", "edit", first, *wrong, exits=2).stderr


def test_export_writes_json_lines(terminal: Terminal, tmp_path: Path) -> None:
    ids = park(terminal)
    lines = [json.loads(line) for line in terminal.run("dead-letters", "export", "g").stdout.splitlines()]
    assert [line["id"] for line in lines] == ids
    assert b64decode(lines[0]["headers"][1][1]["base64"]) == b"\xff"
    file = tmp_path / "letters.jsonl"
    result = terminal.run("dead-letters", "export", "g", "-o", str(file), "--cause", "blocked")
    assert (result.stdout, result.stderr) == ("", f"1 dead letter in {file}\n")
    missing = tmp_path / "none" / "letters.jsonl"
    refused = terminal.run("dead-letters", "export", "g", "-o", str(missing), exits=2)
    assert refused.stderr == f"error: {missing} cannot be written: No such file or directory [SP1001]\n"
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == [ids[2]]
    assert [path.name for path in tmp_path.glob("letters.jsonl*")] == ["letters.jsonl"]


# -- status -----------------------------------------------------------------------------------------------


def test_status_counts_the_dead(terminal: Terminal) -> None:
    park(terminal)
    header, row = (line.split() for line in terminal.run("status", "g").stdout.splitlines()[1:3])
    assert header == " ".join(PARTITIONS).split()
    assert row[:3] == ["orders/0", "3", "3"]
    (line,) = terminal.json("status", "g")
    assert (line["dead_letters"], line["retry"]) == (3, None)


FAILED = {
    "attempt_offset": "3",
    "attempts": "3",
    "attempts_allowed": "5",
    "attempt_error": "'ValueError: no price'",
    "attempt_policy": "'dead_letter'",
    "retry_at": "'2100-01-01T12:03:04Z'",
}
STOPPED = {"retry_at": "NULL", "attempt_policy": "'stop'", "attempts_allowed": "3"}
KILLED = {"attempt_error": "NULL", "retry_at": "NULL", "attempts": "1", "attempt_crashes": "1"}
WAITS = "orders/0 waits before offset 3: "
MEND = (
    "Fix the codec, row= or handler and start the worker again; or skip it: seekpoint offsets reset g --topic orders:0 "
    "--after-failed --apply --reason WHY"
)
TRIED = f"{WAITS}ValueError: no price; tried 3 of 5 times, next try"


@pytest.mark.parametrize(
    ("columns", "begins", "ends"),
    [
        ({}, f"{TRIED} 2100-01-01 12:03:04 UTC, ", "then dead_letter"),
        ({"retry_at": "'2020-01-01T12:03:04Z'"}, f"{TRIED} 2020-01-01 12:03:04 UTC (due; no worker has", "dead_letter"),
        (
            {"attempt_running": "true"},
            f"{WAITS}attempt 3 of 5 is running, alone",
            "last error: ValueError: no price, then dead_letter",
        ),
        (
            STOPPED,
            "orders/0 has stopped before offset 3: ValueError: no price; tried 3 of 3 times. ",
            MEND,
        ),
        (
            KILLED,
            f"{WAITS}the process that tried it crashed; tried 1 of 5 times, 1 of which ended with",
            "then dead_letter",
        ),
    ],
    ids=["retry", "overdue", "running", "stopped", "crashed"],
)
def test_status_says_what_is_waited_for(terminal: Terminal, columns: dict[str, str], begins: str, ends: str) -> None:
    terminal.dead_letter_group.process(orders(b"a", b"b", b"c"))
    with terminal.dead_letter_group.engine.begin() as tx:
        statement = put_trouble(f'"{terminal.dead_letter_group.schema}"', **{**FAILED, **columns}).replace(":", "\\:")
        tx.execute(text(statement))
    exits = int(columns is STOPPED)
    (output,) = terminal.run("status", "g", exits=exits).stdout.splitlines()[3:]
    assert output.startswith(begins)
    assert output.endswith(ends)
    (line,) = terminal.json("status", "g", exits=exits)
    assert (line["retry"]["offset"], line["retry"]["stopped"]) == (3, columns is STOPPED)
    terminal.dead_letter_group.process(orders(b"d", start=3))
    assert terminal.run("status", "g").stdout.splitlines()[3:] == []


def test_status_says_so_of_a_real_stop(terminal: Terminal) -> None:
    """I4: as the unit of work leaves it."""
    terminal.dead_letter_group.bad = {b"bad"}
    terminal.dead_letter_group.process(orders(b"a", b"b", b"c", b"bad"), on_poison="stop")
    (output,) = terminal.run("status", "g", exits=1).stdout.splitlines()[3:]
    assert output.startswith(
        "orders/0 has stopped before offset 3: ValueError: b'bad' is not to be taken (at dead_letter_group.py:"
    )
    assert "); tried 1 of" in output
    assert output.endswith(MEND)


def test_tables_are_as_wide_as_they_are_whatever_the_group_is_called(terminal: Terminal) -> None:
    """An offset that is cut is none; a group's name is no markup."""
    terminal.dead_letter_group.group, terminal.dead_letter_group.bad = "a[/b]", {b"bad"}
    offset = 123_456_789_012
    terminal.dead_letter_group.process(orders(b"bad", start=offset))
    for command in ("status", "dead-letters list"):
        output = terminal.run(*command.split(), "a[/b]").stdout
        assert str(offset)[:-1] in output, output
        assert output.startswith(("a[/b]", "dead letters of a[/b]"))
        assert len(output.splitlines()) == 3


def test_nothing_in_a_dead_letter_reaches_the_terminal_raw(terminal: Terminal) -> None:
    """Key, headers, error and its traceback come from anybody who may produce."""
    odd = "\x1b]0;owned\x07\u202e"
    dead_letter = raw(b"bad", topic=TOPIC, key=odd.encode(), headers=[(f"h{odd}", odd.encode())])

    def fail(tx: object, batch: object) -> None:
        raise ValueError(odd)

    terminal.dead_letter_group.park(dead_letter, handle=fail)
    (parked,) = terminal.dead_letter_group.open()
    for words in (["list", "g"], ["show", str(parked.id)], ["discard", str(parked.id), "--reason", odd]):
        message = terminal.run("dead-letters", *words).output
        assert not {"\x1b", "\x07", "\u202e"} & set(message), message
    terminal.run("dead-letters", "discard", str(parked.id), "--reason", odd, "--actor", odd, "--apply")
    refused = terminal.run("dead-letters", "discard", str(parked.id), "--reason", "x", exits=1).output
    assert "by \\x1b]0;owned" in refused
    assert not {"\x1b", "\x07", "\u202e"} & set(refused)


# -- what was passed and is in no lag ----------------------------------------------------------------------


def test_blocked_records_are_counted_apart_everywhere(terminal: Terminal) -> None:
    """The lag does not count them: they were passed."""
    park(terminal)
    (line,) = terminal.json("status", "g")
    assert (line["dead_letters"], line["blocked"]) == (3, 1)
    waits = (
        "orders/0: 3 records that the lag does not count are not applied: 2 dead letters, and 1 blocked behind their"
    )
    assert waits in " ".join(terminal.run("status", "g").stdout.split())
    engine, schema = terminal.dead_letter_group.engine, terminal.dead_letter_group.schema
    samples = Samples()
    LedgerGauges(engine, schema=schema).add_to(samples)
    labels = ("g", TOPIC, "0")
    assert (samples.of(catalogue.DEAD_LETTERS_OPEN), samples.of(catalogue.BLOCKED)) == ({labels: 3}, {labels: 1})
    admin = Admin(engine, schema=schema)
    ((group,), _), ((summary,), _) = admin.status(["g"]), admin.groups()
    assert present.dead_letters(group.partitions[0]) == present.dead_letters(summary) == "3 (1 blocked)"
    with Browser(create_app(admin), base_url=LOCAL, client=("127.0.0.1", 50_000)) as browser:
        for page in ("", "group?group=g", f"partition?group=g&topic={TOPIC}&partition=0"):
            assert "3 (1 blocked)" in browser.get(f"/{page}").text
