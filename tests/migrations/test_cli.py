"""``seekpoint db``: what it prints, where it exits, and that no password comes out of it."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, make_url
from typer.testing import CliRunner, Result

from migrations.test_check import stamp
from migrations.test_install import execute
from seekpoint import schema
from seekpoint.cli.db import app
from support.databases import libpq

VARIABLE = "SEEKPOINT_DATABASE_URL"


def db(*arguments: str, url: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={VARIABLE: url, "COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exception is None or isinstance(result.exception, SystemExit), "no traceback for the user"
    return result


def test_upgrade_and_check(database_url: str) -> None:
    first = db("upgrade", url=database_url)
    assert (first.exit_code, first.output) == (0, "seekpoint: nothing → 0001\n")
    assert db("upgrade", url=database_url).output == "seekpoint: already at 0001\n"
    assert db("check", url=database_url).exit_code == 0


def test_a_database_of_the_release_before(engine: Engine, database_url: str, second_revision: str) -> None:
    """The refusal names both revisions and the command, and the command is all that it takes."""
    schema.upgrade(engine, to="0001")
    refused = db("check", url=database_url)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "at revision 0001, older than revision 0002, which this library needs: run `seekpoint db upgrade`" in (
        " ".join(refused.stderr.split())
    )
    assert db("upgrade", url=database_url).output == "seekpoint: 0001 → 0002\n"
    assert db("check", url=database_url).exit_code == 0
    script = db("sql", "--since", "0001").stdout
    assert "ADD COLUMN remarks" in script
    assert "CREATE TABLE seekpoint.consumer_group" not in script


def test_the_url_as_an_option_wins_over_the_environment(database_url: str) -> None:
    result = db("upgrade", "--database-url", database_url, url="postgresql://nobody@127.0.0.1:1/nowhere")
    assert result.exit_code == 0


@pytest.mark.repeats("scheme")
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"])
def test_any_postgres_url_is_understood(database_url: str, scheme: str) -> None:
    rest = database_url.split("://", 1)[1]
    assert db("upgrade", url=f"{scheme}://{rest}").exit_code == 0


def test_json(database_url: str) -> None:
    missing = db("check", "--json", "--schema", "other", url=database_url)
    assert missing.exit_code == 1
    report = json.loads(missing.stdout)
    assert "run `seekpoint db upgrade --schema other`" in report.pop("message")
    assert report == {"schema": "other", "library": "0001", "database": None, "ok": False, "code": "SP1003"}
    upgraded = db("upgrade", "--json", "--schema", "other", url=database_url)
    assert json.loads(upgraded.stdout) == {"schema": "other", "before": None, "after": "0001"}
    good = json.loads(db("check", "--json", "--schema", "other", url=database_url).stdout)
    assert good == {"schema": "other", "library": "0001", "database": "0001", "ok": True}


@pytest.mark.parametrize(
    ("revision", "problem"),
    [("0000", "which is not a revision of Seekpoint's (the newest is 0001)"), ("9999", "newer than revision 0001")],
)
def test_check_exits_with_1(engine: Engine, database_url: str, revision: str, problem: str) -> None:
    schema.upgrade(engine)
    stamp(engine, revision)
    result = db("check", url=database_url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"at revision {revision}, {problem}" in result.stderr
    refused = db("upgrade", url=database_url)
    assert f"at revision {revision}, {problem}" in refused.stderr
    assert "db upgrade" not in refused.stderr, "it would not help"
    assert json.loads(db("check", "--json", url=database_url).stdout)["database"] == revision


def test_sql_needs_no_database_and_makes_the_ledger(engine: Engine, database_url: str) -> None:
    result = db("sql", "--schema", "Odd name")
    assert result.exit_code == 0
    dsn = libpq(database_url)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(result.stdout.encode())
    assert db("check", "--schema", "Odd name", url=database_url).exit_code == 0
    nothing = db("sql", "--since", "0001").stdout
    assert "CREATE" not in nothing


@pytest.mark.parametrize(
    ("arguments", "url", "message"),
    [
        (["check"], None, "--database-url"),
        (["check", "--no-such-option"], None, "--no-such-option"),
        (["sql", "--schema", "public"], None, "needs a separate schema, not 'public'"),
        (["sql", "--since", "0815"], None, "no schema revision '0815'"),
        (["upgrade"], "mysql://root:hunter2@127.0.0.1/shop", "in Postgres, not in mysql"),
        (["upgrade"], "postgresql://me:hunter2@127.0.0.1:port/shop", "the database's URL cannot be read"),
        (["upgrade"], "hunter2", "the database's URL cannot be read"),
        (["revision", "--config", "nowhere.ini"], None, "nowhere.ini"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], url: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = db(*arguments, url=url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "hunter2" not in result.output


def test_a_wrong_password_is_named_but_not_shown(database_url: str) -> None:
    wrong = make_url(database_url).set(password="hunter2").render_as_string(hide_password=False)
    result = db("check", url=wrong)
    assert result.exit_code == 1
    assert "password authentication failed" in result.stderr
    assert "hunter2" not in result.output


def test_a_server_that_is_down_and_a_database_that_is_not_there(database_url: str) -> None:
    down = make_url(database_url).set(port=1).render_as_string(hide_password=False)
    gone = make_url(database_url).set(database="no_such_database").render_as_string(hide_password=False)
    for url, code, message in ((down, 3, "refused"), (gone, 1, 'database "no_such_database" does not exist')):
        result = db("check", url=url)
        assert result.exit_code == code
        assert message in result.stderr
        assert str(make_url(url).password) not in result.output
        assert "sqlalche.me" not in result.output


def test_a_missing_right_is_named(engine: Engine, database_url: str) -> None:
    role = f"reader_{make_url(database_url).database}"
    execute(engine, f"CREATE ROLE {role} LOGIN PASSWORD 'hunter2'")
    try:
        url = make_url(database_url).set(username=role, password="hunter2")
        result = db("upgrade", url=url.render_as_string(hide_password=False))
        assert result.exit_code == 1
        assert "permission denied for database" in result.stderr
        assert "hunter2" not in result.output
    finally:
        execute(engine, f"DROP ROLE {role}")
