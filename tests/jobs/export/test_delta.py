"""Exports whose files are a Delta table for each topic, too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from seekpoint.errors import ArchiveDamaged, ConfigError
from seekpoint.jobs.export import Archive
from seekpoint.jobs.export.delta import DeltaLog
from seekpoint.jobs.export.manifest import Tx
from seekpoint.storage import Storage
from support.archive import ArchivedGroup
from support.export_process import Exporter
from support.log_changes import in_transactions


def settled(archived_group: ArchivedGroup, count: int = 60) -> str:
    name = archived_group.topic(2)
    for partition in (0, 1):
        archived_group.produce(
            name, [(f"k{n}", f"{n}") for n in range(count)], partition=partition, headers=[("a", b"1")]
        )
    archived_group.set_positions(name, {0: count, 1: count})
    return name


def table(archived_group: ArchivedGroup, name: str) -> list[tuple[int, int, bytes]]:
    """The rows that a reader of the table sees."""
    table = DeltaTable(f"{archived_group.archive.root}/{name}").to_pyarrow_table()
    assert isinstance(table, pa.Table)
    rows = table.select(["partition", "offset", "value", "headers", "timestamp"]).to_pylist()
    assert all(row["headers"] == [{"key": "a", "value": b"1"}] for row in rows)
    assert all(row["timestamp"] is not None for row in rows)
    return sorted((row["partition"], row["offset"], row["value"]) for row in rows)


def whole(count: int = 60) -> list[tuple[int, int, bytes]]:
    return [(partition, n, str(n).encode()) for partition in (0, 1) for n in range(count)]


def test_the_table_is_what_the_archive_has(archived_group: ArchivedGroup) -> None:
    name = settled(archived_group)
    archived_group.export(format="delta", range_records=25).run()
    assert table(archived_group, name) == whole()
    assert archived_group.archived(name, 0, 60, 1) == archived_group.logged(name, 0, 60, 1)
    archived_group.produce(name, [("k", "60")], partition=0, headers=[("a", b"1")])
    archived_group.set_positions(name, {0: 61})
    archived_group.export(format="delta").run()
    assert table(archived_group, name) == sorted([*whole(), (0, 60, b"60")])
    assert {entry.format for entry in archived_group.archive.entries()} == {"delta"}


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", ["a file", "table", "its row"])
def test_an_export_that_is_killed_writes_nothing_twice(archived_group: ArchivedGroup, step: str) -> None:
    """Also where the table knows of the file, and the manifest does not: it is taken over."""
    name = settled(archived_group)
    Exporter(archived_group, step, format="delta", range_records=25).kill_where_it_waits()
    assert archived_group.spans(name) == []
    in_table = 0 if step == "a file" else 25
    done = archived_group.export(format="delta", range_records=30).run()
    assert table(archived_group, name) == whole()
    assert archived_group.spans(name)[0] == (0, in_table or 30, in_table or 30)
    assert archived_group.archived(name, 0, 60) == archived_group.logged(name, 0, 60)
    assert done.records == 120 - in_table
    archived_group.archive.sweep(timedelta(0))
    assert archived_group.strays() == []
    assert table(archived_group, name) == whole()


def test_a_sweep_leaves_a_file_that_only_the_table_names(archived_group: ArchivedGroup) -> None:
    """Its export was killed after the table's commit: the next export takes it over."""
    name = settled(archived_group)
    Exporter(archived_group, "its row", format="delta", range_records=25).kill_where_it_waits()
    assert archived_group.archive.strays(timedelta(0)) == []
    assert archived_group.archive.sweep(timedelta(0)) == []
    archived_group.export(format="delta", range_records=25).run()
    assert table(archived_group, name) == whole()
    assert archived_group.archived(name, 0, 60) == archived_group.logged(name, 0, 60)


def test_a_file_that_the_table_names_since_the_strays_were_listed_is_not_removed(
    archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = settled(archived_group)
    Exporter(archived_group, "its row", format="delta", range_records=25).kill_where_it_waits()
    (file,) = (str(stray.relative_to(archived_group.archive.root)) for stray in archived_group.strays())
    monkeypatch.setattr(Archive, "strays", lambda *_: [file])
    assert archived_group.archive.sweep(timedelta(0)) == []
    assert len(table(archived_group, name)) == 25


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (Path.unlink, r"it is missing: restore it from a copy"),
        (lambda file: file.write_bytes(b"PAR1"), r"it has 4 bytes, and \d+ were written: restore it from a copy"),
    ],
)
def test_a_damaged_file_of_the_table_is_not_taken_over(
    archived_group: ArchivedGroup, damage: Callable[[Path], object], why: str
) -> None:
    name = settled(archived_group)
    Exporter(archived_group, "its row", format="delta", range_records=25).kill_where_it_waits()
    (file,) = archived_group.strays()
    damage(file)
    with pytest.raises(ArchiveDamaged, match=rf"{file.name}, the file of {name}/0 \[0, 25\): {why}"):
        archived_group.export(format="delta", range_records=25).run()
    assert archived_group.spans(name) == []


def test_a_file_of_the_table_that_was_changed_before_it_is_taken_over(archived_group: ArchivedGroup) -> None:
    """Its checksum is the one of its commit, and not of what is there now."""
    name = settled(archived_group)
    Exporter(archived_group, "its row", format="delta", range_records=25).kill_where_it_waits()
    (file,) = archived_group.strays()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    archived_group.export(format="delta", range_records=25).run()
    with pytest.raises(ArchiveDamaged, match="its SHA-256 is not that of the written file"):
        archived_group.archived(name, 0, 60)


def test_a_checksum_that_is_not_known_is_null(archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's log no longer has the commit: a checksum of what is there now would hide damage."""
    name = settled(archived_group)
    Exporter(archived_group, "its row", format="delta", range_records=25).kill_where_it_waits()
    monkeypatch.setattr(DeltaTable, "history", lambda *_: [{"operation": "WRITE"}])
    archived_group.export(format="delta", range_records=25).run()
    checksums = [entry.sha256 for entry in archived_group.archive.entries(name)]
    assert [checksum is None for checksum in checksums].count(True) == 1
    assert archived_group.archived(name, 0, 60) == archived_group.logged(name, 0, 60)


def test_a_manifest_that_was_lost_is_made_again_of_the_table(archived_group: ArchivedGroup) -> None:
    """Of an older backup of the database, say: the files are there, and not written again."""
    name = settled(archived_group)
    archived_group.export(format="delta", range_records=25).run()
    files = [(entry.file, entry.sha256) for entry in archived_group.archive.entries()]
    archived_group.execute("DELETE FROM {schema}.export_manifest WHERE from_offset >= 25")
    assert archived_group.export(format="delta").run().records == 0
    assert [(entry.file, entry.sha256) for entry in archived_group.archive.entries()] == files
    assert table(archived_group, name) == whole()


def test_a_file_before_the_others_is_added_once(archived_group: ArchivedGroup) -> None:
    """Another group began earlier."""
    name = archived_group.topic(2)
    archived_group.produce(name, [("k", f"{n}") for n in range(60)], partition=0, headers=[("a", b"1")])
    archived_group.set_positions(name, {0: 60}, first=30)
    archived_group.export(format="delta").run()
    archived_group.set_positions(name, {0: 60}, group="early")
    Exporter(archived_group, "table", format="delta", group="early").kill_where_it_waits()
    archived_group.export(format="delta", group="early").run()
    archived_group.export(format="delta", group="early").run()
    assert archived_group.spans(name) == [(0, 30, 30), (30, 60, 30)]
    assert table(archived_group, name) == whole()[:60]


def test_a_range_without_records_in_front_of_what_the_table_has(
    archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has a file that begins after aborted records; an export of smaller ranges repeats none of its rows."""
    name = archived_group.topic(1)
    in_transactions(archived_group.brokers, name, (9, False), (3, True))
    archived_group.set_positions(name, {0: 14})
    with monkeypatch.context() as killed:
        killed.setattr(Tx, "add", _killed)
        with pytest.raises(KeyboardInterrupt):
            archived_group.export(format="delta").run()
    assert archived_group.spans(name) == []
    archived_group.export(format="delta", range_records=5).run()
    assert archived_group.spans(name) == [(0, 14, 3)]
    assert archived_group.archived(name, 0, 14) == archived_group.logged(name, 0, 14)


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_rewritten_table_is_refused(archived_group: ArchivedGroup) -> None:
    name = settled(archived_group)
    archived_group.export(format="delta", range_records=25).run()
    DeltaTable(f"{archived_group.archive.root}/{name}").optimize.compact()
    assert archived_group.archived(name, 0, 60) == archived_group.logged(name, 0, 60), (
        "the files are there until a VACUUM"
    )
    archived_group.execute("DELETE FROM {schema}.export_manifest WHERE from_offset >= 25")
    with pytest.raises(ConfigError, match=r"was rewritten .* before the manifest listed its files"):
        archived_group.export(format="delta").run()


def test_a_process_that_commits_late_is_refused_by_the_table(archived_group: ArchivedGroup) -> None:
    """A process that lost its database and its lock in mid-commit: the transaction id is the guard."""
    name = settled(archived_group)
    archived_group.export(format="delta", range_records=25).run()
    late = DeltaLog(Storage(archived_group.archive.root), name)
    archived_group.produce(name, [("k", "60")], partition=0, headers=[("a", b"1")])
    archived_group.set_positions(name, {0: 61})
    archived_group.export(format="delta").run()
    entry = archived_group.archive.entries()[-1]
    again = archived_group.archive.entries()[3]
    assert (entry.partition.number, again.end) == (1, 61)
    from seekpoint.jobs.export import Written
    from seekpoint.kafka.ranges import Range

    written = Written(
        Range(again.partition, again.topic_id, again.start, again.end), again.file, 1, again.bytes, again.sha256
    )
    with pytest.raises(CommitFailedError):
        late.add(written)
    assert table(archived_group, name) == sorted([*whole(), (0, 60, b"60")])


def test_formats_are_not_mixed(archived_group: ArchivedGroup) -> None:
    settled(archived_group)
    archived_group.export().run()
    with pytest.raises(ConfigError, match="as parquet: continue with format='parquet', or export into another archive"):
        archived_group.export(format="delta").run()
