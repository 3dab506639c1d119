"""Exports to Parquet, bounded by the ledger, on a real broker and a real Postgres."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka.test_odd_records import produce_by_hand
from seekpoint import Partition
from seekpoint.errors import ConfigError, RangeLost, RangeStuck, TopicRecreated
from seekpoint.jobs.export import Archive, Exported, files
from seekpoint.jobs.export import export as job
from seekpoint.ledger import GroupLedger
from support.archive import ArchivedGroup, records
from support.log_changes import delete, in_transactions


def test_what_the_group_has_applied_is_in_the_archive_and_no_more(archived_group: ArchivedGroup) -> None:
    name = archived_group.topic(2)
    archived_group.produce(name, map(str, range(120)), partition=0)
    archived_group.produce(name, map(str, range(40)), partition=1)
    archived_group.set_positions(name, {0: 100, 1: 40})
    done = archived_group.export(range_records=30).run()
    assert (done.files, done.records) == (6, 140)
    assert done.offsets == {Partition(name, 0): 100, Partition(name, 1): 40}
    assert archived_group.spans(name) == [(0, 30, 30), (30, 60, 30), (60, 90, 30), (90, 100, 10)]
    assert archived_group.spans(name, 1) == [(0, 30, 30), (30, 40, 10)]
    assert archived_group.archived(name, 0, 100) == archived_group.logged(name, 0, 100)
    assert archived_group.archived(name, 5, 65) == archived_group.logged(name, 5, 65)
    assert archived_group.archived(name, 0, 40, 1) == archived_group.logged(name, 0, 40, 1)
    assert done.bytes == sum(Path(file).stat().st_size for file in archived_group.archive.files())


def test_a_range_may_begin_with_the_last_record_of_a_row_group(
    archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROWS", 10)
    name = archived_group.filled(30)
    archived_group.export().run()
    assert pq.ParquetFile(archived_group.archive.files()[0]).num_row_groups == 3
    for start, end in ((9, 30), (9, 10), (19, 20), (10, 20), (0, 10)):
        assert archived_group.archived(name, start, end) == archived_group.logged(name, start, end)


def test_the_next_export_continues_where_the_manifest_ends(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(50, 20)
    archived_group.export().run()
    nothing = archived_group.export().run()
    assert (nothing.files, nothing.records, nothing.bytes) == (0, 0, 0)
    archived_group.set_positions(name, {0: 50})
    assert archived_group.export().run().records == 30
    assert archived_group.spans(name) == [(0, 20, 20), (20, 50, 30)]
    assert archived_group.archived(name, 0, 50) == archived_group.logged(name, 0, 50)


def test_two_spellings_are_one_archive(archived_group: ArchivedGroup, tmp_path: Path) -> None:
    """A link to the root, and a path with dots; the manifest has the name that it was first given."""
    name = archived_group.filled(50, 20)
    archived_group.export().run()
    link = tmp_path / "link"
    link.symlink_to(archived_group.archive.root)
    other = Archive(f"{tmp_path}/x/../link", archived_group.archive.engine, schema=archived_group.archive.schema)
    archived_group.set_positions(name, {0: 50})
    assert archived_group.export(archive=other).run().records == 30
    assert archived_group.spans(name) == [(0, 20, 20), (20, 50, 30)]
    assert archived_group.archived(name, 0, 50) == archived_group.logged(name, 0, 50)
    other.require_known()
    assert other.entries() == archived_group.archive.entries()


def test_records_come_back_as_a_worker_sees_them(archived_group: ArchivedGroup) -> None:
    """Null and empty, names twice, names that are no text, no time, and times beyond any calendar."""
    name = archived_group.topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    archived_group.produce(name, [("k", "v")], headers=[("a", b"1"), ("a", None), ("é", b"\xff"), ("", b"")])
    archived_group.produce(name, [(None, None), (b"\xff\x00", ""), ("", None)])
    produce_by_hand(archived_group.brokers, name, b"{}", b"\xff\xfe", 1_785_587_400_123)
    produce_by_hand(archived_group.brokers, name, b"{}", b"h", 2**62)
    produce_by_hand(archived_group.brokers, name, b"{}", b"h", -1)
    archived_group.set_positions(name, {0: 7})
    archived_group.export().run()
    archived = archived_group.archived(name, 0, 7)
    assert archived == archived_group.logged(name, 0, 7)
    assert archived[0].headers == (("a", b"1"), ("a", None), ("é", b"\xff"), ("", b""))
    assert [(r.key, r.value) for r in archived[1:4]] == [(None, None), (b"\xff\x00", b""), (b"", None)]
    assert [r.timestamp_ms for r in archived[4:]] == [1_785_587_400_123, 2**62, -1]
    (piece,) = archived_group.archive.read_range(archived_group.range(name, 0, 7))
    ((record, why),) = piece.unreadable
    assert (record.offset, str(why)) == (4, "its headers cannot be read: a name in them is not UTF-8")
    rows = pq.read_table(archived_group.archive.files()[0]).to_pylist()
    assert [row["headers"] for row in rows[3:6]] == [[], None, [{"key": "h", "value": b"1"}]]
    assert [row["timestamp"] is None for row in rows] == [False] * 5 + [True, True]


def test_holes_of_the_log_are_no_gaps_of_the_archive(archived_group: ArchivedGroup) -> None:
    """Aborted transactions and their markers: a whole range of them has a row, and no file."""
    name = archived_group.topic()
    in_transactions(archived_group.brokers, name, (5, True), (20, False), (5, True))
    archived_group.set_positions(name, {0: 33})
    archived_group.export(range_records=10).run()
    assert archived_group.spans(name) == [(0, 10, 5), (10, 20, 0), (20, 30, 3), (30, 33, 2)]
    assert [entry.file == "" for entry in archived_group.archive.entries()] == [False, True, False, False]
    archived = archived_group.archived(name, 0, 33)
    assert [r.offset for r in archived] == [*range(5), *range(27, 32)]
    assert archived == archived_group.logged(name, 0, 33)
    assert archived_group.archived(name, 10, 20) == []


def test_an_export_of_some_records_is_continued_by_the_next_one(archived_group: ArchivedGroup) -> None:
    name = archived_group.topic()
    archived_group.produce(name, map(str, range(25)))
    archived_group.set_positions(name, {0: 25})
    for count, end in [(10, 10), (10, 20), (5, 25), (0, 25)]:
        done = archived_group.export(range_records=4, max_records=10).run()
        assert (done.records, list(done.offsets.values())) == (count, [end])
    assert archived_group.archived(name, 0, 25) == archived_group.logged(name, 0, 25)
    with pytest.raises(ConfigError, match="max_records=0: must be a number of offsets, at least 1"):
        archived_group.export(max_records=0)


def test_nothing_after_the_start_of_an_open_transaction_is_exported(archived_group: ArchivedGroup) -> None:
    name = archived_group.topic()
    archived_group.produce(name, map(str, range(5)))
    end = in_transactions(archived_group.brokers, name, (5, None))
    archived_group.set_positions(name, {0: 10})
    with pytest.raises(RangeStuck, match="the log can be read only up to 5 now"):
        archived_group.export().run()
    end.abort_transaction(30)
    archived_group.set_positions(name, {0: 5})
    assert archived_group.export().run().records == 5


def test_large_values_make_small_row_groups(archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held in memory is a row group, whatever a file has."""
    name = archived_group.topic(config={"max.message.bytes": "20000000"})
    values = [bytes([n]) * 700_000 for n in range(60)]
    archived_group.produce(name, values)
    archived_group.set_positions(name, {0: 60})
    archived_group.export().run()
    (file,) = archived_group.archive.files()
    metadata = pq.ParquetFile(file).metadata
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [48, 12]
    assert [r.value for r in archived_group.archived(name, 0, 60)] == values
    assert [r.offset for r in archived_group.archived(name, 50, 53)] == [50, 51, 52]


def test_a_rewound_group_takes_nothing_out_of_the_archive(archived_group: ArchivedGroup) -> None:
    """It holds the log's content, however often a group has applied it."""
    name = archived_group.filled(50, 40)
    archived_group.export().run()
    archived_group.set_positions(name, {0: 10})
    done = archived_group.export().run()
    assert (done.files, done.offsets) == (0, {Partition(name, 0): 40})
    archived_group.set_positions(name, {0: 50})
    archived_group.export().run()
    assert archived_group.spans(name) == [(0, 40, 40), (40, 50, 10)]


def test_two_groups_share_one_archive(archived_group: ArchivedGroup) -> None:
    """The second began later, the third earlier: what is missing between and before is added, nothing twice."""
    name = archived_group.topic()
    archived_group.produce(name, map(str, range(100)))
    archived_group.set_positions(name, {0: 40}, first=20)
    archived_group.export().run()
    archived_group.set_positions(name, {0: 80}, first=60, group=f"{archived_group.group}-2")
    archived_group.export(group=f"{archived_group.group}-2").run()
    assert archived_group.spans(name) == [(20, 40, 20), (40, 80, 40)]
    archived_group.set_positions(name, {0: 90}, group=f"{archived_group.group}-3")
    archived_group.export(group=f"{archived_group.group}-3").run()
    assert archived_group.spans(name) == [(0, 20, 20), (20, 40, 20), (40, 80, 40), (80, 90, 10)]
    assert archived_group.archived(name, 0, 90) == archived_group.logged(name, 0, 90)


def test_a_recreated_topic_has_a_chain_of_its_own(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(["old"] * 10)
    archived_group.export().run()
    was = archived_group.range(name, 0, 10)
    delete(archived_group.kafka, archived_group.admin, name)
    archived_group.topic(name=name)
    archived_group.produce(name, ["new"] * 4)
    archived_group.execute("UPDATE {schema}.partition_offset SET next_offset = 12")
    with pytest.raises(TopicRecreated):
        archived_group.export().run()
    archived_group.set_positions(name, {0: 0})
    archived_group.execute("UPDATE {schema}.partition_offset SET next_offset = 4")
    archived_group.export().run()
    assert [r.value for r in archived_group.archived(name, 0, 4)] == [b"new"] * 4
    assert [r.value for piece in archived_group.archive.read_range(was) for r in piece] == [b"old"] * 10
    assert len(archived_group.archive.files(name, was.topic_id)) == 1
    assert len(archived_group.archive.files(name)) == 2


def test_a_topic_that_is_gone_is_said_at_once(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(["old"] * 10)
    archived_group.export().run()
    was = archived_group.range(name, 0, 10)
    delete(archived_group.kafka, archived_group.admin, name)
    assert archived_group.export().run().files == 0, "nothing is asked where nothing is left"
    archived_group.execute("UPDATE {schema}.partition_offset SET next_offset = 12")
    with pytest.raises(RangeLost, match="does not exist any more"):
        archived_group.export().run()
    with pytest.raises(RangeLost, match="does not exist any more"):
        records(archived_group.chained.read(was))
    assert len(records(archived_group.archive.read_range(was))) == 10


def test_a_partition_that_is_added_begins_where_the_group_began(archived_group: ArchivedGroup) -> None:
    name = archived_group.topic(2)
    archived_group.produce(name, map(str, range(10)), partition=0)
    archived_group.produce(name, map(str, range(10)), partition=1)
    archived_group.set_positions(name, {0: 10})
    archived_group.export().run()
    archived_group.set_positions(name, {1: 8})
    archived_group.export().run()
    assert (archived_group.spans(name), archived_group.spans(name, 1)) == ([(0, 10, 10)], [(0, 8, 8)])


def test_what_retention_deleted_before_any_export_is_said(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(50, 20)
    archived_group.export().run()
    archived_group.set_positions(name, {0: 50})
    archived_group.trim(name, 30)
    with pytest.raises(RangeLost, match=r"cannot be read at offset 20: .*the log now begins at 30.*skip_lost=True"):
        archived_group.export().run()
    archived_group.export(skip_lost=True).run()
    assert archived_group.spans(name) == [(0, 20, 20), (30, 50, 20)]
    assert archived_group.archive.gaps(archived_group.range(name, 0, 50)) == [(20, 30)]
    with pytest.raises(RangeLost, match=r"does not have \[20, 30\)"):
        archived_group.archived(name, 0, 50)
    assert archived_group.export().run().files == 0, "it was decided once"


def test_a_loss_is_accepted_once_if_the_log_has_nothing_after_it(archived_group: ArchivedGroup) -> None:
    """The lost range has a row and stays a gap: reading it is refused."""
    name = archived_group.filled(50, 20)
    archived_group.export().run()
    archived_group.set_positions(name, {0: 40})
    archived_group.trim(name, 45)
    with pytest.raises(RangeLost, match=r"cannot be read at offset 20: .*the log now begins at 45"):
        archived_group.export().run()
    done = archived_group.export(skip_lost=True).run()
    assert (done.files, done.offsets) == (0, {Partition(name, 0): 40})
    assert archived_group.export().run().files == 0, "it was decided once"
    assert [(e.start, e.end, e.format) for e in archived_group.archive.entries()] == [
        (0, 20, "parquet"),
        (20, 40, "lost"),
    ]
    assert archived_group.archive.gaps(archived_group.range(name, 0, 40)) == [(20, 40)]
    with pytest.raises(RangeLost, match=r"does not have \[20, 40\)"):
        archived_group.archived(name, 0, 40)


def test_topics_can_be_named(archived_group: ArchivedGroup) -> None:
    topic, other = archived_group.topic(), archived_group.topic()
    for name in (topic, other):
        archived_group.produce(name, ["x"] * 5)
        archived_group.set_positions(name, {0: 5})
    archived_group.export(topics=topic).run()
    assert {entry.partition.topic for entry in archived_group.archive.entries()} == {topic}
    with pytest.raises(ConfigError, match="has no offsets of strange; it reads"):
        archived_group.export(topics=["strange"]).run()
    with pytest.raises(ConfigError, match="no offsets of group 'unknown'"):
        archived_group.export(group="unknown").run()
    with pytest.raises(ConfigError, match="format must be"):
        archived_group.export(format="csv")
    with pytest.raises(ConfigError, match="at least 1"):
        archived_group.export(range_records=0)


def test_progress_is_reported_in_records(archived_group: ArchivedGroup) -> None:
    archived_group.filled(25)
    progress: list[tuple[str, int, int]] = []
    archived_group.export(range_records=10, progress=lambda *args: progress.append(args)).run()
    assert progress == [("exporting", 10, 25), ("exporting", 20, 25), ("exporting", 25, 25)]


def test_an_archive_is_text_for_others(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(["x"] * 5)
    archived_group.export().run()
    spec = archived_group.archive.spec()
    other = Archive.of(spec, archived_group.engine.url)
    assert "password" not in spec.lower()
    assert [len(piece) for piece in other.read_range(archived_group.range(name, 0, 5))] == [5]
    other.engine.dispose()
    with pytest.raises(ConfigError, match="would be stored and shown in plans"):
        Archive("s3://key:secret@bucket/archive", archived_group.engine)
    assert Archive("s3://bucket/archive/", archived_group.engine).root == "s3://bucket/archive"
    assert Archive(f"file://{archived_group.folder}/archive", archived_group.engine).root == archived_group.archive.root


def test_positions_are_those_of_one_moment(archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers continue; the export ends at the positions that they had at its start."""
    name = archived_group.filled(40, 20)
    read = GroupLedger.read

    def and_on(self: GroupLedger) -> object:
        entries = read(self)
        if self.group == archived_group.group and entries[0].next_offset == 20:
            monkeypatch.setattr(GroupLedger, "read", read)
            archived_group.set_positions(name, {0: 40})
        return entries

    monkeypatch.setattr(GroupLedger, "read", and_on)
    done: Exported = archived_group.export().run()
    assert done.offsets == {Partition(name, 0): 20}
    assert job.RANGE > 20
