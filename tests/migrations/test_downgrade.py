"""The SQL of a downgrade refuses to drop offsets, open dead letters, lost ranges and checksums, online and offline."""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from alembic import command
from sqlalchemy import Engine, text

from migrations.test_cli import db
from migrations.test_host import Host
from migrations.test_install import DEAD_LETTER, ODD_NAMES, ROWS, execute, revision, run_script
from seekpoint import schema
from seekpoint.errors import ConfigError
from support.waiting import until

GROUP = 'O\'Brien:100%, "x" $seekpoint$'  # nothing of it is a placeholder, an end of a literal or of a block
OFFSETS = (
    r"would drop the stored offsets of groups 'g' \(100\): at their next start every record would be applied again\. "
    r"Keep a copy .*, then name the groups .* -x seekpoint_drop=GROUP,"
)


def offsets(engine: Engine) -> object:
    return execute(engine, "SELECT count(*) FROM seekpoint.partition_offset")[0][0]


def rename(engine: Engine) -> None:
    with engine.begin() as connection:
        for table in ("partition_offset", "lost_range", "admin_action"):
            connection.execute(text(f"ALTER TABLE seekpoint.{table} DROP CONSTRAINT {table}_consumer_group_fkey"))
            connection.execute(text(f"UPDATE seekpoint.{table} SET consumer_group = :it"), {"it": GROUP})


@pytest.mark.repeats("name")
@pytest.mark.parametrize("name", ["seekpoint", *ODD_NAMES])
def test_offsets_are_not_dropped_without_permission(engine: Engine, name: str) -> None:
    schema.upgrade(engine, schema=name)
    execute(engine, ROWS, name)
    with pytest.raises(ConfigError, match=OFFSETS):
        schema.downgrade(engine, schema=name)
    assert revision(engine, name) == schema.HEAD
    with pytest.raises(ConfigError, match=r"groups 'g' \(100\)"):
        schema.downgrade(engine, schema=name, drop=["h", "G"])
    schema.downgrade(engine, schema=name, drop=["g"])
    assert revision(engine, name) is None


def test_offsets_that_a_claim_is_about_to_store_are_not_dropped_without_permission(engine: Engine) -> None:
    """The downgrade waits for its transaction, and counts after that."""
    schema.upgrade(engine)
    execute(engine, "INSERT INTO seekpoint.consumer_group (name) VALUES ('g')")
    with ThreadPoolExecutor(1) as pool, engine.connect() as claiming:
        claiming.execute(text(
            "INSERT INTO seekpoint.partition_offset (consumer_group, topic, partition, topic_id, first_offset,"
            " next_offset, token, epoch) VALUES ('g', 't', 0, gen_random_uuid(), 0, 0, gen_random_uuid(), 1)"
        ))  # fmt: skip
        downgraded = pool.submit(schema.downgrade, engine)
        waits = text(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE d.datname = current_database() "
            "AND NOT granted"
        )
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as looking:
            until(lambda: looking.scalar(waits), "the downgrade to wait")
        claiming.commit()
        with pytest.raises(ConfigError, match=r"would drop the stored offsets of groups 'g' \(1\)"):
            downgraded.result(30)
    assert offsets(engine) == 1


def test_open_dead_letters_and_lost_ranges_are_not_dropped_without_permission(engine: Engine) -> None:
    schema.upgrade(engine)
    execute(engine, ROWS)
    execute(engine, DEAD_LETTER)
    execute(engine, "DELETE FROM seekpoint.partition_offset")
    with pytest.raises(ConfigError, match=r"would drop open dead letters of groups 'g' \(1\): .*no worker reads them"):
        schema.downgrade(engine)
    execute(engine, "UPDATE seekpoint.dead_letter SET state = 'discarded'")
    with pytest.raises(ConfigError, match=r"would drop the lost ranges of groups 'g' \(1\)"):
        schema.downgrade(engine)
    assert revision(engine) == schema.HEAD
    execute(engine, "DELETE FROM seekpoint.lost_range")
    schema.downgrade(engine)
    assert revision(engine) is None


def test_checksums_of_exported_files_are_not_dropped_without_permission(engine: Engine) -> None:
    insert = (
        "INSERT INTO {s}.export_manifest (archive, topic, topic_id, partition, from_offset, to_offset, records, bytes,"
        " file, sha256, format, consumer_group, run, actor) VALUES ('/a', 't', gen_random_uuid(), 0, %s, 9, 1, 1,"
        " 'f', %s, 'parquet', 'g', gen_random_uuid(), 'a')"
    )
    schema.upgrade(engine)
    execute(engine, insert % (0, "NULL"))
    schema.downgrade(engine)
    schema.upgrade(engine)
    execute(engine, insert % (5, "'00'"))
    with pytest.raises(ConfigError, match=r"would drop the checksums of exported files of groups 'g' \(1\): a"):
        schema.downgrade(engine)
    assert revision(engine) == schema.HEAD
    schema.downgrade(engine, drop=["g"])
    assert revision(engine) is None


def test_positions_of_forgotten_groups_are_not_dropped_without_permission(engine: Engine) -> None:
    schema.upgrade(engine)
    execute(engine, """INSERT INTO {s}.consumer_group (name, forgotten) VALUES ('g', '{{"positions": []}}')""")
    with pytest.raises(ConfigError, match=r"positions of forgotten groups of groups 'g' \(1\): a worker"):
        schema.downgrade(engine)
    schema.downgrade(engine, drop=["g"])
    assert revision(engine) is None


def test_a_run_that_is_open_is_not_dropped(engine: Engine) -> None:
    """Its staging schema would stay, and nothing would name it."""
    schema.upgrade(engine)
    execute(
        engine,
        "INSERT INTO {s}.reload_run (id, groups, tables, strategy, pipelines, version_from, version_to, state, "
        "driver_epoch, driver, staging_schema, actor, reason) VALUES (gen_random_uuid(), '{{g}}', '{{t}}', "
        "'merge', '{{p}}', '{{1}}', '{{1}}', 'staged', 1, 'd', 's', 'a', 'look')",
    )
    with pytest.raises(ConfigError, match=r"while a run is open: .* Let it end, or abort it"):
        schema.downgrade(engine, drop=["g"])
    execute(engine, "UPDATE {s}.reload_run SET state = 'aborted'")
    schema.downgrade(engine)
    assert revision(engine) is None


def test_permission_by_the_environment_for_a_name_of_any_characters(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.upgrade(engine)
    execute(engine, ROWS)
    rename(engine)
    with pytest.raises(ConfigError, match=r"O''Brien:100%"):
        schema.downgrade(engine)
    monkeypatch.setenv("SEEKPOINT_DROP", f"another,{GROUP[:-3]}")
    with pytest.raises(ConfigError):
        schema.downgrade(engine)
    monkeypatch.setenv("SEEKPOINT_DROP", GROUP)
    schema.downgrade(engine)
    assert revision(engine) is None


def test_the_command(engine: Engine, database_url: str) -> None:
    schema.upgrade(engine)
    execute(engine, ROWS)
    refused = db("downgrade", "--to", "base", url=database_url)
    assert refused.exit_code == 2
    assert "would drop the stored offsets of groups 'g' (100)" in " ".join(refused.stderr.split())
    assert offsets(engine) == 100
    dropped = db("downgrade", "--to", "base", "--drop", "h", "--drop", "g", url=database_url)
    assert (dropped.exit_code, dropped.output) == (0, "seekpoint: 0001 → nothing\n")


class TestHost:
    """`alembic downgrade -1` of a host whose last revision built the ledger."""

    @pytest.fixture
    def filled_host(self, host: Host, engine: Engine) -> Host:
        host.write_ledger_revision()
        host.run(command.upgrade, "head")
        execute(engine, ROWS)
        return host

    @staticmethod
    def permitting(host: Host, *words: str) -> None:
        """As ``alembic -x … -x …`` would."""
        plain = host.config

        def config() -> Any:
            database = plain()
            database[0].cmd_opts = Namespace(x=list(words))
            return database

        host.config = config  # type: ignore[method-assign]

    def test_online(self, filled_host: Host, engine: Engine) -> None:
        with pytest.raises(ConfigError, match=OFFSETS):
            filled_host.run(command.downgrade, "-1")
        assert offsets(engine) == 100
        self.permitting(filled_host, "other=1", "seekpoint_drop=h", "seekpoint_drop=f,g")
        filled_host.run(command.downgrade, "-1")
        assert revision(engine) is None

    def test_offline(self, filled_host: Host, engine: Engine) -> None:
        script = filled_host.run(command.downgrade, "head:a1", sql=True)
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="would drop the stored offsets"):
            run_script(filled_host.url, script)
        assert offsets(engine) == 100
        self.permitting(filled_host, "seekpoint_drop=g")
        run_script(filled_host.url, filled_host.run(command.downgrade, "head:a1", sql=True))
        assert revision(engine) is None

    def test_an_empty_ledger_goes_up_down_and_up(self, host: Host, engine: Engine) -> None:
        """What a host's CI does, also where a group has claimed nothing yet."""
        host.write_ledger_revision()
        for _ in range(2):
            host.run(command.upgrade, "head")
            execute(engine, "INSERT INTO seekpoint.consumer_group (name) VALUES ('g')")
            host.run(command.downgrade, "-1")
        host.run(command.upgrade, "head")
        assert revision(engine) == schema.HEAD

    def test_a_version_location(self, host: Host, engine: Engine) -> None:
        host.add_version_location()
        host.run(command.upgrade, "heads")
        execute(engine, ROWS)
        with pytest.raises(ConfigError, match=OFFSETS):
            host.run(command.downgrade, "seekpoint@base")
        assert offsets(engine) == 100
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            run_script(host.url, host.run(command.downgrade, f"seekpoint@{schema.HEAD}:seekpoint@base", sql=True))
        self.permitting(host, "seekpoint_drop=g")
        host.run(command.downgrade, "seekpoint@base")
        assert revision(engine) is None
