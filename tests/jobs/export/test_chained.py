"""A range of which the log has a part: the rest comes from the archive."""

from __future__ import annotations

import pytest

from seekpoint.errors import RangeLost, TopicRecreated
from seekpoint.jobs.export import ArchivedReader
from seekpoint.kafka.ranges import read_range
from support.archive import ArchivedGroup, records
from support.log_changes import LARGE


@pytest.fixture
def name(archived_group: ArchivedGroup) -> str:
    """100 records, of which 80 are in the archive."""
    name = archived_group.filled(100, 80)
    archived_group.export(range_records=30).run()
    return name


@pytest.mark.parametrize("cut", [0, 1, 29, 30, 79, 80])
def test_every_record_once_wherever_the_log_begins(archived_group: ArchivedGroup, name: str, cut: int) -> None:
    whole = archived_group.logged(name, 0, 100)
    archived_group.trim(name, cut)
    assert records(archived_group.chained.read(archived_group.range(name, 0, 100))) == whole
    assert records(archived_group.chained.read(archived_group.range(name, 10, 20))) == whole[10:20]
    assert records(archived_group.chained.read(archived_group.range(name, 75, 85))) == whole[75:85]


def test_what_neither_has_is_said(archived_group: ArchivedGroup, name: str) -> None:
    archived_group.trim(name, 90)
    with pytest.raises(RangeLost, match=r"at offset 80: the archive .* does not have \[80, 90\)"):
        records(archived_group.chained.read(archived_group.range(name, 0, 100)))
    assert len(records(archived_group.chained.read(archived_group.range(name, 90, 100)))) == 10
    with pytest.raises(RangeLost, match="retention has passed it"):
        records(ArchivedReader(archived_group.kafka).read(archived_group.range(name, 0, 100)))


@pytest.mark.long
def test_retention_passes_while_it_is_read(archived_group: ArchivedGroup) -> None:
    """What was not handed out yet comes from the archive, and nothing twice."""
    name = archived_group.filled([LARGE] * 200)
    archived_group.export().run()
    reader = archived_group.chained
    reader._kafka = {**archived_group.kafka, "queued.min.messages": 1, "fetch.message.max.bytes": 60_000}
    pieces = reader.read(archived_group.range(name, 0, 200))
    seen = [record.offset for record in next(pieces)]
    archived_group.trim(name, 180)
    seen += [record.offset for record in records(pieces)]
    assert seen == list(range(200))


def test_a_log_that_was_truncated_is_no_retention(archived_group: ArchivedGroup, name: str) -> None:
    with pytest.raises(RangeLost, match="past the end of the log"):
        records(archived_group.chained.read(archived_group.range(name, 200, 300)))


def test_another_topic_of_the_name_is_recognized_by_its_id(archived_group: ArchivedGroup, name: str) -> None:
    other = archived_group.topic()
    archived_group.produce(other, ["x"] * 100)
    theirs = archived_group.range(other, 0, 100)
    mixed = type(theirs)(theirs.partition, archived_group.id_of(name), 0, 100)
    with pytest.raises(TopicRecreated):
        records(archived_group.chained.read(mixed))


@pytest.mark.long
def test_an_open_iteration_can_be_dropped(archived_group: ArchivedGroup, name: str) -> None:
    archived_group.trim(name, 40)
    pieces = archived_group.chained.read(archived_group.range(name, 0, 100))
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert len(records(read_range(archived_group.kafka, archived_group.range(name, 40, 100)))) == 60
