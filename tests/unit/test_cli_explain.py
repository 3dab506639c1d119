"""What the command says of an error: the words, the exit code, and no password."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import psycopg
import pytest
import typer
from sqlalchemy import make_url

from seekpoint.cli import app as app_module
from seekpoint.cli import exit_codes, masking
from seekpoint.cli.error_messages import message_of
from seekpoint.cli.errors import explained
from seekpoint.cli.exit_codes import exit_code
from seekpoint.cli.main import main
from seekpoint.cli.masking import keep_secret, masked
from seekpoint.cli.options import database
from seekpoint.errors import ConfigError, KafkaUnavailable, SchemaMismatch
from seekpoint.kafka import config
from seekpoint.kafka.identity import CHECK_KAFKA


@pytest.fixture(autouse=True)
def _no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_secrets", set())


@pytest.mark.parametrize(
    "message",
    [
        "postgresql://me:hunter2@db:5432/shop",
        "postgresql+psycopg://me:hun@ter2@db/shop",
        "host=db password=hunter2 dbname=shop",
        "password='hunter2 with more'",
        "{'sasl.password': 'hunter2'}",
        "sasl.oauthbearer.assertion.private.key.passphrase=hunter2",
        "sasl.oauthbearer.client.secret: hunter2",
        'sasl.jaas.config="x required password=hunter2;"',
    ],
)
def test_passwords_are_masked_where_they_look_like_one(message: str) -> None:
    shown = masked(message)
    assert "***" in shown
    assert "hunter2" not in shown
    assert "ter2@" not in shown


def test_passwords_that_were_given_are_masked_anywhere() -> None:
    keep_secret(make_url("postgresql://me:p%40ss%3Aword@db/shop"))
    keep_secret(kafka={"sasl.password": "hunter2", "client.id": "billing"})
    assert masked("p@ss:word and hunter2 of billing") == "*** and *** of billing"


def test_a_password_that_is_a_name_does_not_mask_the_name() -> None:
    keep_secret(make_url("postgresql://postgres:postgres@db/postgres"))
    assert masked('database "postgres" does not exist') == 'database "postgres" does not exist'


def test_an_example_url_stays_readable() -> None:
    example = "write postgresql+psycopg://user:password@host/database"
    assert masked(example) == example


@pytest.mark.parametrize(
    "password", ["hunter@2secret", "2secret@hunter", "p@hunter2/secret", "hunter2@a:secret", "p@hunter2?secret"]
)
def test_a_password_that_would_be_taken_for_a_host_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(ConfigError, match="%40 for @, %2F for / and %3A for : in the password") as caught:
        database(f"postgresql://me:{password}@localhost:5432/shop")
    assert caught.value.__cause__ is None
    assert "hunter" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_password_may_hold_anything_that_is_encoded() -> None:
    assert database("postgresql://me:p%40ss%3Aw%2Frd@db/shop?application_name=a@b").password == "p@ss:w/rd"


def test_exit_codes() -> None:
    assert exit_code(ConfigError("x")) == 2
    assert exit_code(SchemaMismatch("x")) == 1
    assert exit_code(KafkaUnavailable("x")) == 3
    assert exit_code(ModuleNotFoundError("x", name="jgo.maven")) == 2
    assert exit_code(ZeroDivisionError()) == 1
    away = ConfigError("no broker answered")
    away.__cause__ = KafkaUnavailable("x")
    assert exit_code(away) == 3, "brokers may come back: that is no wrong usage"


def test_the_clients_same_log_line_passes_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(config, "monotonic", lambda: now)
    sparing = config.Sparing()

    def line(facility: str) -> logging.LogRecord:
        return logging.LogRecord("x", logging.ERROR, "x", 1, "%s [%s] %s", (facility, "me", "refused"), None)

    passed = [sparing.filter(line(facility)) for facility in ("FAIL", "FAIL", "FAIL", "ERROR")]
    assert passed == [True, False, False, True]
    now += 10.0
    later = line("FAIL")
    assert sparing.filter(later)
    assert later.getMessage() == "FAIL [me] refused (and 2 more of this kind before)"


@pytest.mark.parametrize(
    ("message", "args", "shown"),
    [("%(code)s at 100%%", ({"code": "FAIL"},), "FAIL at 100%"), ("FAIL at 100%", (), "FAIL at 100%")],
)
def test_a_log_line_of_any_arguments_shows_how_many_were_left_out(
    monkeypatch: pytest.MonkeyPatch, message: str, args: tuple[object, ...], shown: str
) -> None:
    times = iter([100.0, 105.0, 110.0])
    monkeypatch.setattr(config, "monotonic", lambda: next(times))
    sparing = config.Sparing()
    lines = [logging.LogRecord("x", logging.ERROR, "x", 1, message, args, None) for _ in range(3)]
    assert [sparing.filter(line) for line in lines] == [True, False, True]
    assert lines[-1].getMessage() == f"{shown} (and 1 more of this kind before)"


def test_notes_are_shown() -> None:
    error = SchemaMismatch("the schema is old")
    error.add_note("while upgrading")
    assert message_of(error) == "the schema is old [SP1003]\nwhile upgrading"


def test_brokers_that_do_not_answer_are_explained_once_whatever_the_broker_wrote() -> None:
    remedy = "check that the brokers run, and check bootstrap.servers and the security settings [SP1301]"
    quoted = "no answer about topic 't': broker failed; check its log"
    assert message_of(KafkaUnavailable(quoted)) == f"Kafka: {quoted}; {remedy}"
    assert message_of(KafkaUnavailable(quoted, CHECK_KAFKA)) == f"Kafka: {quoted}; {remedy}"


def test_what_an_error_quotes_does_not_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    """A handler's error may quote a record, and a server's a name that came from one."""
    with pytest.raises(typer.Exit), explained():
        raise ConfigError("table \x1b]0;owned\x07\nis missing")
    assert capsys.readouterr().err == "error: table \\x1b]0;owned\\x07 [SP1001]\nis missing\n"


def test_what_fails_while_ctrl_c_is_under_way_is_an_abort(capsys: pytest.CaptureFixture[str]) -> None:
    error = psycopg.ProgrammingError("can't change 'autocommit' now: connection in transaction status ACTIVE")
    error.__context__ = KeyboardInterrupt()
    error.add_note("the run is left open")
    with pytest.raises(typer.Exit) as exited, explained():
        raise error
    assert exited.value.exit_code == exit_codes.ABORTED
    assert capsys.readouterr().err == "aborted: the run is left open\n"


class Interrupted(ModuleType):
    """A module whose import Ctrl-C ends, and a function that it ends."""

    def __getattr__(self, _name: str) -> NoReturn:
        raise KeyboardInterrupt

    def __call__(self, _app: object) -> NoReturn:
        raise KeyboardInterrupt


@pytest.mark.parametrize("during", ["the import", "the building of commands", "the import of the command"])
def test_ctrl_c_at_the_start_is_an_abort(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], during: str
) -> None:
    interrupted = Interrupted("seekpoint.cli.app")
    if during == "the import":
        monkeypatch.setitem(sys.modules, "seekpoint.cli.app", interrupted)
    elif during == "the import of the command":
        monkeypatch.setattr(sys, "argv", ["seekpoint", "explain", "--help"])
        monkeypatch.setitem(sys.modules, "seekpoint.cli.explain", interrupted)
        app_module._command.cache_clear()
    else:
        monkeypatch.setattr("typer.main.get_command", interrupted)
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == exit_codes.ABORTED
    assert capsys.readouterr().err == "aborted\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_full_disk_is_named_with_the_remedy() -> None:
    full = open("/dev/full", "w", encoding="ascii", buffering=1)  # noqa: SIM115, PTH123 -- closing it fails, too
    with pytest.raises(OSError, match="No space left") as raised:
        full.write("x\n")
    with suppress(OSError):
        full.close()
    message = "No space left on device; free some space, or set TMPDIR to a folder that has it"
    assert message_of(raised.value) == message
