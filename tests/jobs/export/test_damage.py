"""Files that are not what was written: said by name, before any of their records is handed out."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from seekpoint import Partition
from seekpoint.errors import ArchiveDamaged, RangeLost
from seekpoint.jobs.export.files import read, write
from seekpoint.jobs.export.manifest import Entry
from seekpoint.kafka.ranges import Piece, Range
from seekpoint.records import Record
from seekpoint.storage import Storage
from support.archive import ArchivedGroup


@pytest.fixture
def name(archived_group: ArchivedGroup) -> str:
    """A topic of 60 records, in three files."""
    name = archived_group.filled([f"{n}" * 100 for n in range(60)])
    archived_group.export(range_records=20).run()
    return name


def refused(archived_group: ArchivedGroup, name: str, why: str) -> None:
    """The second file is; others are read."""
    with pytest.raises(ArchiveDamaged, match=why) as raised:
        archived_group.archived(name, 0, 60)
    error = raised.value
    assert (error.partition, error.start, error.end) == (Partition(name, 0), 20, 40)
    assert str(error).startswith(f"{error.file}, the file of {name}/0 [20, 40): ")
    assert len(archived_group.archived(name, 0, 20) + archived_group.archived(name, 40, 60)) == 40


def recorded_as(archived_group: ArchivedGroup, name: str, file: Path) -> None:
    """The manifest takes this file for the second, as far as its size and its checksum say."""
    archived_group.execute(
        "UPDATE {schema}.export_manifest SET bytes = :size, sha256 = NULL WHERE from_offset = 20 AND topic = :topic",
        size=file.stat().st_size,
        topic=name,
    )


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2 - 200] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (Path.unlink, "it is missing: restore it from a copy"),
        (cut, r"it has \d+ bytes, and \d+ were written: it was cut or replaced"),
        (flip, "its SHA-256 is not that of the written file"),
    ],
)
def test_a_file_that_is_gone_or_changed(
    archived_group: ArchivedGroup, name: str, damage: Callable[[Path], None], why: str
) -> None:
    damage(Path(archived_group.archive.files()[1]))
    refused(archived_group, name, why)


def test_any_flipped_bit(tmp_path: Path) -> None:
    """Wherever it is: pages have checksums of their own, but their headers and the footer do not."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = Random(seed)
    storage, range_ = Storage(str(tmp_path)), Range(Partition("orders", 0), uuid4(), 20, 40)
    records = [Record("orders", 0, n, n, b"key", b"%d" % n * 9, (("name", b"value"),), 0) for n in range(20, 40)]
    written = write(storage, "orders.parquet", range_, [Piece(records, [])])
    details = written.file, written.sha256, "parquet", "a group", uuid4(), "a test", datetime.now(UTC)
    entry = Entry(range_.partition, range_.topic_id, 20, 40, written.records, written.bytes, *details)
    assert [record for piece in read(storage, entry, 20, 40) for record in piece] == records
    file = tmp_path / "orders.parquet"
    content = file.read_bytes()
    for index in range(len(content)):
        flipped = content[index] ^ 1 << draw.randrange(8)
        file.write_bytes(content[:index] + bytes([flipped]) + content[index + 1 :])
        with pytest.raises(ArchiveDamaged, match="SHA-256"):
            next(read(storage, entry, 20, 40))


def test_a_file_without_a_checksum(archived_group: ArchivedGroup, name: str) -> None:
    """It was exported before the manifest had them."""
    archived_group.execute("UPDATE {schema}.export_manifest SET sha256 = NULL")
    assert len(archived_group.archived(name, 0, 60)) == 60


def test_a_file_that_is_no_parquet(archived_group: ArchivedGroup, name: str) -> None:
    file = Path(archived_group.archive.files()[1])
    file.write_bytes(b"\0" * file.stat().st_size)
    recorded_as(archived_group, name, file)
    refused(archived_group, name, "it cannot be read .*restore it from a copy, or fix the storage")


def test_the_content_of_another_file(archived_group: ArchivedGroup, name: str) -> None:
    first, other = map(Path, archived_group.archive.files()[:2])
    shutil.copy(first, other)
    recorded_as(archived_group, name, first)
    refused(
        archived_group, name, r"it has another file's content \(from_offset 0, to_offset 20; topic id .* was written\)"
    )


def test_the_content_of_another_topic_id(archived_group: ArchivedGroup, name: str) -> None:
    other = archived_group.filled(["x"] * 40)
    archived_group.export(topics=other, range_records=20).run()
    file = Path(archived_group.archive.files(other)[1])
    shutil.copy(file, archived_group.archive.files(name)[1])
    recorded_as(archived_group, name, file)
    refused(archived_group, name, rf"another file's content \(topic {other}, topic_id {archived_group.id_of(other)}")


def test_a_wrong_count(archived_group: ArchivedGroup, name: str) -> None:
    archived_group.execute("UPDATE {schema}.export_manifest SET records = 19 WHERE from_offset = 20")
    refused(archived_group, name, "it has 20 records, and 19 were written")


def test_other_columns(archived_group: ArchivedGroup, name: str) -> None:
    file = Path(archived_group.archive.files()[1])
    table = pq.read_table(file)
    index = table.schema.get_field_index("timestamp_ms")
    other = table.set_column(index, "timestamp_ms", table["timestamp_ms"].cast("int32", safe=False))
    pq.write_table(other.replace_schema_metadata(table.schema.metadata), file)
    recorded_as(archived_group, name, file)
    refused(archived_group, name, "its columns are not those of an export")


def test_a_gap_in_the_manifest(archived_group: ArchivedGroup, name: str) -> None:
    archived_group.execute("DELETE FROM {schema}.export_manifest WHERE from_offset = 20")
    pieces = archived_group.archive.read_range(archived_group.range(name, 0, 60))
    with pytest.raises(RangeLost, match=r"cannot be read at offset 20: the archive .* does not have \[20, 40\)"):
        next(pieces)
    assert archived_group.archive.gaps(archived_group.range(name, 0, 70)) == [(20, 40), (60, 70)]
