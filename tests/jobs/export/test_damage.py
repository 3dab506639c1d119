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
from seekpoint.jobs.export.storage import Storage
from seekpoint.kafka.ranges import Piece, Range
from seekpoint.records import Record
from support.archive import Vault


@pytest.fixture
def name(vault: Vault) -> str:
    """A topic of 60 records, in three files."""
    name = vault.filled([f"{n}" * 100 for n in range(60)])
    vault.export(range_records=20).run()
    return name


def refused(vault: Vault, name: str, why: str) -> None:
    """The second file is; others are read."""
    with pytest.raises(ArchiveDamaged, match=why) as raised:
        vault.archived(name, 0, 60)
    error = raised.value
    assert (error.partition, error.start, error.end) == (Partition(name, 0), 20, 40)
    assert str(error).startswith(f"{error.file}, which has {name}/0 [20, 40): ")
    assert len(vault.archived(name, 0, 20) + vault.archived(name, 40, 60)) == 40


def recorded_as(vault: Vault, name: str, file: Path) -> None:
    """The manifest takes this file for the second, as far as its size and its checksum say."""
    vault.execute(
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
        (Path.unlink, "it is not there: bring it back from a copy"),
        (cut, r"it has \d+ bytes, and \d+ were written: it was cut, or replaced"),
        (flip, "its SHA-256 is not that of what was written"),
    ],
)
def test_a_file_that_is_gone_or_changed(vault: Vault, name: str, damage: Callable[[Path], None], why: str) -> None:
    damage(Path(vault.archive.files()[1]))
    refused(vault, name, why)


def test_any_flipped_bit(tmp_path: Path) -> None:
    """Wherever it is: pages have checksums of their own, but their headers and the footer do not."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = Random(seed)
    storage, range_ = Storage(str(tmp_path)), Range(Partition("orders", 0), uuid4(), 20, 40)
    records = [Record("orders", 0, n, n, b"key", b"%d" % n * 9, (("name", b"value"),), 0) for n in range(20, 40)]
    written = write(storage, "orders.parquet", range_, [Piece(records, [])])
    made = written.file, written.sha256, "parquet", "a group", uuid4(), "a test", datetime.now(UTC)
    entry = Entry(range_.partition, range_.topic_id, 20, 40, written.records, written.bytes, *made)
    assert [record for piece in read(storage, entry, 20, 40) for record in piece] == records
    file = tmp_path / "orders.parquet"
    content = file.read_bytes()
    for at in range(len(content)):
        flipped = content[at] ^ 1 << draw.randrange(8)
        file.write_bytes(content[:at] + bytes([flipped]) + content[at + 1 :])
        with pytest.raises(ArchiveDamaged, match="SHA-256"):
            next(read(storage, entry, 20, 40))


def test_a_file_without_a_checksum(vault: Vault, name: str) -> None:
    """It was exported before the manifest had them."""
    vault.execute("UPDATE {schema}.export_manifest SET sha256 = NULL")
    assert len(vault.archived(name, 0, 60)) == 60


def test_a_file_that_is_no_parquet(vault: Vault, name: str) -> None:
    file = Path(vault.archive.files()[1])
    file.write_bytes(b"\0" * file.stat().st_size)
    recorded_as(vault, name, file)
    refused(vault, name, "it cannot be read .*bring it back from a copy, or fix the storage")


def test_the_content_of_another_file(vault: Vault, name: str) -> None:
    one, other = map(Path, vault.archive.files()[:2])
    shutil.copy(one, other)
    recorded_as(vault, name, one)
    refused(vault, name, r"it is another file's content \(from_offset 0, to_offset 20; topic id .* was written\)")


def test_the_content_of_another_topic_id(vault: Vault, name: str) -> None:
    other = vault.filled(["x"] * 40)
    vault.export(topics=other, range_records=20).run()
    file = Path(vault.archive.files(other)[1])
    shutil.copy(file, vault.archive.files(name)[1])
    recorded_as(vault, name, file)
    refused(vault, name, rf"another file's content \(topic {other}, topic_id {vault.id_of(other)}")


def test_a_wrong_count(vault: Vault, name: str) -> None:
    vault.execute("UPDATE {schema}.export_manifest SET records = 19 WHERE from_offset = 20")
    refused(vault, name, "it has 20 records, and 19 were written")


def test_other_columns(vault: Vault, name: str) -> None:
    file = Path(vault.archive.files()[1])
    table = pq.read_table(file)
    at = table.schema.get_field_index("timestamp_ms")
    other = table.set_column(at, "timestamp_ms", table["timestamp_ms"].cast("int32", safe=False))
    pq.write_table(other.replace_schema_metadata(table.schema.metadata), file)
    recorded_as(vault, name, file)
    refused(vault, name, "its columns are not those of an export")


def test_a_gap_in_the_manifest(vault: Vault, name: str) -> None:
    vault.execute("DELETE FROM {schema}.export_manifest WHERE from_offset = 20")
    pieces = vault.archive.read_range(vault.range(name, 0, 60))
    with pytest.raises(RangeLost, match=r"cannot be read at offset 20: the archive .* does not have \[20, 40\)"):
        next(pieces)
    assert vault.archive.gaps(vault.range(name, 0, 70)) == [(20, 40), (60, 70)]
