"""``seekpoint export``: what it writes, what it prints, and that it continues where the last one ended."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from os import utime
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from seekpoint.jobs.export import Archive
from support.before_cutover import settled
from support.cli_jobs import FIRST, Terminal
from support.reload_orders import OrdersGroup, doubled, of


def test_an_export_and_the_next_one(terminal: Terminal, orders_group: OrdersGroup) -> None:
    output = terminal.job("export", "--to", "archive", "--range-records", "50").stdout.splitlines()
    root = terminal.folder / "archive"
    assert output[0].startswith(f"{orders_group.group}: 121 records in 3 files, ")
    assert output[0].endswith(f"bytes, added to {root}")
    assert f"{orders_group.topic}/0 is archived up to offset 121" in output
    assert len(list(root.rglob("*.parquet"))) == 3
    settled(orders_group, [of(1, 5)])
    summary = json.loads(terminal.job("export", "--to", "archive", "--json").stdout)
    assert (summary["files"], summary["records"], summary["archive"], summary["swept"]) == (1, 1, str(root), [])
    assert summary["offsets"][f"{orders_group.topic}/0"] == 122
    nothing = terminal.job("export", "--to", "archive").stdout
    assert f"{orders_group.group}: 0 records in 0 files" in nothing


def test_a_group_is_named_where_no_pipeline_is(terminal: Terminal, orders_group: OrdersGroup) -> None:
    words = (
        "export",
        "--group",
        orders_group.group,
        "--topic",
        orders_group.topic,
        "--to",
        "archive",
        *orders_group.server_options,
    )
    assert "121 records in 1 file," in terminal.run(*words).stdout
    assert "121 records" not in terminal.run("export", f"{terminal.module}:worker", "--to", "archive").stdout
    both = terminal.job("export", "--group", "g", "--to", "archive", exits=2)
    assert "name either a pipeline, MODULE:NAME, or its group with --group" in both.stderr
    none = terminal.run("export", "--group", "g", "--to", "archive", *orders_group.server_options, exits=2)
    assert "has no offsets of group 'g'" in none.stderr
    topic = terminal.job("export", "--topic", "t", "--to", "archive", exits=2)
    assert "has no offsets of t; it reads" in topic.stderr


def test_what_killed_exports_left_is_swept(terminal: Terminal, orders_group: OrdersGroup) -> None:
    terminal.job("export", "--to", "archive")
    root = terminal.folder / "archive"
    (file,) = root.rglob("*.parquet")
    stray = stray_beside(file)
    summary = json.loads(terminal.job("export", "--to", "archive", "--sweep", "--json").stdout)
    assert len(summary["swept"]) == 1
    assert (file.exists(), stray.exists()) == (True, False)


def stray_beside(file: Path) -> Path:
    """A file as an export writes it, whose row was never committed; two days old."""
    stray = file.with_name(file.name.replace(file.stem[-6:], "000000"))
    stray.write_bytes(file.read_bytes())
    old = (datetime.now(UTC) - timedelta(days=2)).timestamp()
    utime(stray, (old, old))
    return stray


@pytest.mark.long
def test_a_reload_reads_what_retention_took_from_an_archive(terminal: Terminal, orders_group: OrdersGroup) -> None:
    terminal.job("export", "--to", "archive")
    admin, partition = (
        AdminClient({"bootstrap.servers": orders_group.brokers, "log_level": 0}),
        TopicPartition(orders_group.topic, 0, 100),
    )
    admin.delete_records([partition])[partition].result(20)
    refused = terminal.job("reload", "run", exits=1)
    assert "records that retention has removed cannot be applied again" in refused.stderr
    assert "different" in terminal.job("verify", "--archive", "archive", exits=1).stdout
    terminal.job("reload", "run", "--archive", "archive")
    assert orders_group.rows() == doubled(FIRST)


def test_an_archive_is_known_by_its_root(terminal: Terminal, orders_group: OrdersGroup) -> None:
    terminal.job("export", "--to", "archive")
    assert [
        e.records
        for e in Archive(terminal.folder / "archive", orders_group.engine, schema=orders_group.schema).entries()
    ] == [121]
