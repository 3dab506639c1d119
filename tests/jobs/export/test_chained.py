"""A range of which the log has a part: the rest comes from the archive."""

from __future__ import annotations

import pytest

from seekpoint.errors import RangeLost, TopicRecreated
from seekpoint.jobs.export import ArchivedReader
from seekpoint.kafka.ranges import read_range
from support.archive import Vault, records
from support.log_changes import LARGE


@pytest.fixture
def name(vault: Vault) -> str:
    """100 records, of which 80 are in the archive."""
    name = vault.filled(100, 80)
    vault.export(range_records=30).run()
    return name


@pytest.mark.parametrize("cut", [0, 1, 29, 30, 79, 80])
def test_every_record_once_wherever_the_log_begins(vault: Vault, name: str, cut: int) -> None:
    whole = vault.logged(name, 0, 100)
    vault.trim(name, cut)
    assert records(vault.chained.read(vault.range(name, 0, 100))) == whole
    assert records(vault.chained.read(vault.range(name, 10, 20))) == whole[10:20]
    assert records(vault.chained.read(vault.range(name, 75, 85))) == whole[75:85]


def test_what_neither_has_is_said(vault: Vault, name: str) -> None:
    vault.trim(name, 90)
    with pytest.raises(RangeLost, match=r"at offset 80: the archive .* does not have \[80, 90\)"):
        records(vault.chained.read(vault.range(name, 0, 100)))
    assert len(records(vault.chained.read(vault.range(name, 90, 100)))) == 10
    with pytest.raises(RangeLost, match="retention has passed it"):
        records(ArchivedReader(vault.kafka).read(vault.range(name, 0, 100)))


@pytest.mark.long
def test_retention_passes_while_it_is_read(vault: Vault) -> None:
    """What was not handed out yet comes from the archive, and nothing twice."""
    name = vault.filled([LARGE] * 200)
    vault.export().run()
    reader = vault.chained
    reader._kafka = {**vault.kafka, "queued.min.messages": 1, "fetch.message.max.bytes": 60_000}
    pieces = reader.read(vault.range(name, 0, 200))
    seen = [record.offset for record in next(pieces)]
    vault.trim(name, 180)
    seen += [record.offset for record in records(pieces)]
    assert seen == list(range(200))


def test_a_log_that_was_truncated_is_no_retention(vault: Vault, name: str) -> None:
    with pytest.raises(RangeLost, match="past the end of the log"):
        records(vault.chained.read(vault.range(name, 200, 300)))


def test_another_topic_of_the_name_is_recognized_by_its_id(vault: Vault, name: str) -> None:
    other = vault.topic()
    vault.produce(other, ["x"] * 100)
    theirs = vault.range(other, 0, 100)
    mixed = type(theirs)(theirs.partition, vault.id_of(name), 0, 100)
    with pytest.raises(TopicRecreated):
        records(vault.chained.read(mixed))


@pytest.mark.long
def test_an_open_iteration_can_be_dropped(vault: Vault, name: str) -> None:
    vault.trim(name, 40)
    pieces = vault.chained.read(vault.range(name, 0, 100))
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    assert len(records(read_range(vault.kafka, vault.range(name, 40, 100)))) == 60
