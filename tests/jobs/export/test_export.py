"""Exports to Parquet, bounded by the ledger, on a real broker and a real Postgres."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kafka.test_odd_records import produce_by_hand
from seekpoint import Ledger, Partition
from seekpoint.errors import ConfigError, RangeLost, RangeStuck, TopicRecreated
from seekpoint.jobs.export import Archive, Exported, files
from seekpoint.jobs.export import export as job
from support.archive import Vault, records
from support.log_changes import delete, in_transactions


def test_what_the_group_has_applied_is_in_the_archive_and_no_more(vault: Vault) -> None:
    name = vault.topic(2)
    vault.produce(name, map(str, range(120)), partition=0)
    vault.produce(name, map(str, range(40)), partition=1)
    vault.stand(name, {0: 100, 1: 40})
    done = vault.export(range_records=30).run()
    assert (done.files, done.records) == (6, 140)
    assert done.offsets == {Partition(name, 0): 100, Partition(name, 1): 40}
    assert vault.spans(name) == [(0, 30, 30), (30, 60, 30), (60, 90, 30), (90, 100, 10)]
    assert vault.spans(name, 1) == [(0, 30, 30), (30, 40, 10)]
    assert vault.archived(name, 0, 100) == vault.logged(name, 0, 100)
    assert vault.archived(name, 5, 65) == vault.logged(name, 5, 65)
    assert vault.archived(name, 0, 40, 1) == vault.logged(name, 0, 40, 1)
    assert done.bytes == sum(Path(file).stat().st_size for file in vault.archive.files())


def test_a_range_may_begin_with_the_last_record_of_a_row_group(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROWS", 10)
    name = vault.filled(30)
    vault.export().run()
    assert pq.ParquetFile(vault.archive.files()[0]).num_row_groups == 3
    for start, end in ((9, 30), (9, 10), (19, 20), (10, 20), (0, 10)):
        assert vault.archived(name, start, end) == vault.logged(name, start, end)


def test_the_next_export_continues_where_the_manifest_ends(vault: Vault) -> None:
    name = vault.filled(50, 20)
    vault.export().run()
    nothing = vault.export().run()
    assert (nothing.files, nothing.records, nothing.bytes) == (0, 0, 0)
    vault.stand(name, {0: 50})
    assert vault.export().run().records == 30
    assert vault.spans(name) == [(0, 20, 20), (20, 50, 30)]
    assert vault.archived(name, 0, 50) == vault.logged(name, 0, 50)


def test_two_spellings_are_one_archive(vault: Vault, tmp_path: Path) -> None:
    """A link to the root, and a path with dots; the manifest has the name that it was first given."""
    name = vault.filled(50, 20)
    vault.export().run()
    link = tmp_path / "link"
    link.symlink_to(vault.archive.root)
    other = Archive(f"{tmp_path}/x/../link", vault.archive.engine, schema=vault.archive.schema)
    vault.stand(name, {0: 50})
    assert vault.export(archive=other).run().records == 30
    assert vault.spans(name) == [(0, 20, 20), (20, 50, 30)]
    assert vault.archived(name, 0, 50) == vault.logged(name, 0, 50)
    other.require_known()
    assert other.entries() == vault.archive.entries()


def test_records_come_back_as_a_worker_sees_them(vault: Vault) -> None:
    """Null and empty, names twice, names that are no text, no time, and times beyond any calendar."""
    name = vault.topic(config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    vault.produce(name, [("k", "v")], headers=[("a", b"1"), ("a", None), ("é", b"\xff"), ("", b"")])
    vault.produce(name, [(None, None), (b"\xff\x00", ""), ("", None)])
    produce_by_hand(vault.brokers, name, b"{}", b"\xff\xfe", 1_785_587_400_123)
    produce_by_hand(vault.brokers, name, b"{}", b"h", 2**62)
    produce_by_hand(vault.brokers, name, b"{}", b"h", -1)
    vault.stand(name, {0: 7})
    vault.export().run()
    found = vault.archived(name, 0, 7)
    assert found == vault.logged(name, 0, 7)
    assert found[0].headers == (("a", b"1"), ("a", None), ("é", b"\xff"), ("", b""))
    assert [(r.key, r.value) for r in found[1:4]] == [(None, None), (b"\xff\x00", b""), (b"", None)]
    assert [r.timestamp_ms for r in found[4:]] == [1_785_587_400_123, 2**62, -1]
    (piece,) = vault.archive.read_range(vault.range(name, 0, 7))
    ((record, why),) = piece.unreadable
    assert (record.offset, str(why)) == (4, "its headers cannot be read: a name in them is not UTF-8")
    rows = pq.read_table(vault.archive.files()[0]).to_pylist()
    assert [row["headers"] for row in rows[3:6]] == [[], None, [{"key": "h", "value": b"1"}]]
    assert [row["timestamp"] is None for row in rows] == [False] * 5 + [True, True]


def test_holes_of_the_log_are_no_gaps_of_the_archive(vault: Vault) -> None:
    """Aborted transactions and their markers: a whole range of them has a row, and no file."""
    name = vault.topic()
    in_transactions(vault.brokers, name, (5, True), (20, False), (5, True))
    vault.stand(name, {0: 33})
    vault.export(range_records=10).run()
    assert vault.spans(name) == [(0, 10, 5), (10, 20, 0), (20, 30, 3), (30, 33, 2)]
    assert [entry.file == "" for entry in vault.archive.entries()] == [False, True, False, False]
    found = vault.archived(name, 0, 33)
    assert [r.offset for r in found] == [*range(5), *range(27, 32)]
    assert found == vault.logged(name, 0, 33)
    assert vault.archived(name, 10, 20) == []


def test_an_export_of_some_records_is_continued_by_the_next_one(vault: Vault) -> None:
    name = vault.topic()
    vault.produce(name, map(str, range(25)))
    vault.stand(name, {0: 25})
    for count, end in [(10, 10), (10, 20), (5, 25), (0, 25)]:
        done = vault.export(range_records=4, max_records=10).run()
        assert (done.records, list(done.offsets.values())) == (count, [end])
    assert vault.archived(name, 0, 25) == vault.logged(name, 0, 25)
    with pytest.raises(ConfigError, match="max_records is a number of offsets, at least 1, and not 0"):
        vault.export(max_records=0)


def test_nothing_after_the_start_of_an_open_transaction_is_exported(vault: Vault) -> None:
    name = vault.topic()
    vault.produce(name, map(str, range(5)))
    end = in_transactions(vault.brokers, name, (5, None))
    vault.stand(name, {0: 10})
    with pytest.raises(RangeStuck, match="what can be read now ends at 5"):
        vault.export().run()
    end.abort_transaction(30)
    vault.stand(name, {0: 5})
    assert vault.export().run().records == 5


def test_large_values_make_small_row_groups(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is held in memory is a row group, whatever a file has."""
    name = vault.topic(config={"max.message.bytes": "20000000"})
    values = [bytes([n]) * 700_000 for n in range(60)]
    vault.produce(name, values)
    vault.stand(name, {0: 60})
    vault.export().run()
    (file,) = vault.archive.files()
    found = pq.ParquetFile(file).metadata
    assert [found.row_group(n).num_rows for n in range(found.num_row_groups)] == [48, 12]
    assert [r.value for r in vault.archived(name, 0, 60)] == values
    assert [r.offset for r in vault.archived(name, 50, 53)] == [50, 51, 52]


def test_a_rewound_group_takes_nothing_out_of_the_archive(vault: Vault) -> None:
    """It holds the log's content, however often a group has applied it."""
    name = vault.filled(50, 40)
    vault.export().run()
    vault.stand(name, {0: 10})
    done = vault.export().run()
    assert (done.files, done.offsets) == (0, {Partition(name, 0): 40})
    vault.stand(name, {0: 50})
    vault.export().run()
    assert vault.spans(name) == [(0, 40, 40), (40, 50, 10)]


def test_two_groups_share_one_archive(vault: Vault) -> None:
    """The second began later, the third earlier: what is missing between and before is added, nothing twice."""
    name = vault.topic()
    vault.produce(name, map(str, range(100)))
    vault.stand(name, {0: 40}, first=20)
    vault.export().run()
    vault.stand(name, {0: 80}, first=60, group=f"{vault.group}-2")
    vault.export(group=f"{vault.group}-2").run()
    assert vault.spans(name) == [(20, 40, 20), (40, 80, 40)]
    vault.stand(name, {0: 90}, group=f"{vault.group}-3")
    vault.export(group=f"{vault.group}-3").run()
    assert vault.spans(name) == [(0, 20, 20), (20, 40, 20), (40, 80, 40), (80, 90, 10)]
    assert vault.archived(name, 0, 90) == vault.logged(name, 0, 90)


def test_a_recreated_topic_has_a_chain_of_its_own(vault: Vault) -> None:
    name = vault.filled(["old"] * 10)
    vault.export().run()
    was = vault.range(name, 0, 10)
    delete(vault.kafka, vault.admin, name)
    vault.topic(name=name)
    vault.produce(name, ["new"] * 4)
    vault.execute("UPDATE {schema}.partition_offset SET next_offset = 12")
    with pytest.raises(TopicRecreated):
        vault.export().run()
    vault.stand(name, {0: 0})
    vault.execute("UPDATE {schema}.partition_offset SET next_offset = 4")
    vault.export().run()
    assert [r.value for r in vault.archived(name, 0, 4)] == [b"new"] * 4
    assert [r.value for piece in vault.archive.read_range(was) for r in piece] == [b"old"] * 10
    assert len(vault.archive.files(name, was.topic_id)) == 1
    assert len(vault.archive.files(name)) == 2


def test_a_topic_that_is_gone_is_said_at_once(vault: Vault) -> None:
    name = vault.filled(["old"] * 10)
    vault.export().run()
    was = vault.range(name, 0, 10)
    delete(vault.kafka, vault.admin, name)
    assert vault.export().run().files == 0, "nothing is asked where nothing is left"
    vault.execute("UPDATE {schema}.partition_offset SET next_offset = 12")
    with pytest.raises(RangeLost, match="does not exist any more"):
        vault.export().run()
    with pytest.raises(RangeLost, match="does not exist any more"):
        records(vault.chained.read(was))
    assert len(records(vault.archive.read_range(was))) == 10


def test_a_partition_that_is_added_begins_where_the_group_began(vault: Vault) -> None:
    name = vault.topic(2)
    vault.produce(name, map(str, range(10)), partition=0)
    vault.produce(name, map(str, range(10)), partition=1)
    vault.stand(name, {0: 10})
    vault.export().run()
    vault.stand(name, {1: 8})
    vault.export().run()
    assert (vault.spans(name), vault.spans(name, 1)) == ([(0, 10, 10)], [(0, 8, 8)])


def test_what_retention_took_before_any_export_is_said(vault: Vault) -> None:
    name = vault.filled(50, 20)
    vault.export().run()
    vault.stand(name, {0: 50})
    vault.trim(name, 30)
    with pytest.raises(RangeLost, match=r"cannot be read at offset 20: .*the log begins at 30 now.*skip_lost=True"):
        vault.export().run()
    vault.export(skip_lost=True).run()
    assert vault.spans(name) == [(0, 20, 20), (30, 50, 20)]
    assert vault.archive.gaps(vault.range(name, 0, 50)) == [(20, 30)]
    with pytest.raises(RangeLost, match=r"does not have \[20, 30\)"):
        vault.archived(name, 0, 50)
    assert vault.export().run().files == 0, "it was decided once"


def test_topics_can_be_named(vault: Vault) -> None:
    one, other = vault.topic(), vault.topic()
    for name in (one, other):
        vault.produce(name, ["x"] * 5)
        vault.stand(name, {0: 5})
    vault.export(topics=one).run()
    assert {entry.partition.topic for entry in vault.archive.entries()} == {one}
    with pytest.raises(ConfigError, match="has no offsets of strange; it reads"):
        vault.export(topics=["strange"]).run()
    with pytest.raises(ConfigError, match="no offsets of group 'nobody'"):
        vault.export(group="nobody").run()
    with pytest.raises(ConfigError, match="format must be"):
        vault.export(format="csv")
    with pytest.raises(ConfigError, match="at least 1"):
        vault.export(range_records=0)


def test_progress_is_reported_in_records(vault: Vault) -> None:
    vault.filled(25)
    told: list[tuple[str, int, int]] = []
    vault.export(range_records=10, progress=lambda *said: told.append(said)).run()
    assert told == [("exporting", 10, 25), ("exporting", 20, 25), ("exporting", 25, 25)]


def test_an_archive_is_text_for_others(vault: Vault) -> None:
    name = vault.filled(["x"] * 5)
    vault.export().run()
    spec = vault.archive.spec()
    other = Archive.of(spec, vault.engine.url)
    assert "password" not in spec.lower()
    assert [len(piece) for piece in other.read_range(vault.range(name, 0, 5))] == [5]
    other.engine.dispose()
    with pytest.raises(ConfigError, match="would be in the manifest"):
        Archive("s3://key:secret@bucket/archive", vault.engine)
    assert Archive("s3://bucket/archive/", vault.engine).root == "s3://bucket/archive"
    assert Archive(f"file://{vault.folder}/archive", vault.engine).root == vault.archive.root


def test_positions_are_those_of_one_moment(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers continue; the export ends at the positions that they had at its start."""
    name = vault.filled(40, 20)
    read = Ledger.read

    def and_on(self: Ledger) -> object:
        found = read(self)
        if self.group == vault.group and found[0].next_offset == 20:
            monkeypatch.setattr(Ledger, "read", read)
            vault.stand(name, {0: 40})
        return found

    monkeypatch.setattr(Ledger, "read", and_on)
    done: Exported = vault.export().run()
    assert done.offsets == {Partition(name, 0): 20}
    assert job.RANGE > 20
