"""A reload of more than the log has: its beginning comes from an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from kafka.test_odd_records import produce_by_hand
from seekpoint import Text
from seekpoint.errors import ArchiveDamaged, ReloadRefused
from seekpoint.jobs.export import Archive, Export
from support.before_cutover import reloaded, started
from support.reload_orders import Shop, doubled, gone, of

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3), gone(7), of(7, 5)]
LATER = [of(n % 50, n, n) for n in range(200, 260)] + [gone(11)]


@pytest.fixture
def archive(shop: Shop, tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive", shop.engine, schema=shop.schema)


def export(shop: Shop, archive: Archive, **options: Any) -> None:
    Export(shop.engine, {"bootstrap.servers": shop.brokers}, archive, shop.group, **options).run()


def trim(shop: Shop, to: int) -> None:
    admin, at = AdminClient({"bootstrap.servers": shop.brokers, "log_level": 0}), TopicPartition(shop.topic, 0, to)
    admin.delete_records([at])[at].result(20)


def work(shop: Shop, records: list[Any], upto: int) -> None:
    shop.produce(shop.topic, records, partition=0)
    shop.work(upto)


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_what_retention_took_is_read_from_the_archive(shop: Shop, archive: Archive, strategy: str) -> None:
    """Apply, export, trim the log, apply more, reload with other code: as if computed from the first record on."""
    work(shop, FIRST, len(FIRST))
    export(shop, archive, range_records=50)
    trim(shop, 77)
    work(shop, LATER, len(FIRST) + len(LATER))
    reload, driver = started(shop.reload(archive=archive, range_records=40), strategy=strategy)
    assert driver.run.archive == archive.spec()
    reload.run(driver)
    assert shop.rows() == doubled(FIRST + LATER)


def test_retention_may_pass_in_mid_run(shop: Shop, archive: Archive) -> None:
    """Opened while the log had all of it; what is staged later, after a takeover, is read from the archive."""
    work(shop, FIRST, len(FIRST))
    export(shop, archive)
    run = shop.reload(archive=archive).open().run
    trim(shop, len(FIRST) - 2)
    other = shop.reload(range_records=30)
    other.run(other.take_over(run.id))
    assert shop.rows() == doubled(FIRST)


def test_without_an_archive_that_has_all_of_it_the_reload_is_refused(shop: Shop, archive: Archive) -> None:
    work(shop, FIRST, 60)
    shop.execute("UPDATE {schema}.partition_offset SET next_offset = 60 WHERE partition = 0")
    export(shop, archive)
    shop.execute("UPDATE {schema}.partition_offset SET next_offset = :to WHERE partition = 0", to=len(FIRST))
    trim(shop, 70)
    with pytest.raises(ReloadRefused, match="unless an export has it: name that"):
        shop.reload().open()
    with pytest.raises(ReloadRefused, match=r"began at offset 0.*begins at 70 now.*does not have \[60, 70\) of topic"):
        shop.reload(archive=archive).open()


def test_a_file_that_is_gone_does_not_end_the_run(shop: Shop, archive: Archive) -> None:
    """The run stays open, and can be resumed after the file is back."""
    work(shop, FIRST, len(FIRST))
    export(shop, archive, range_records=50)
    trim(shop, 110)
    second = Path(archive.files()[1])
    away = second.rename(second.with_suffix(".away"))
    reload, driver = started(shop.reload(archive=archive, range_records=50))
    with pytest.raises(ArchiveDamaged, match="it is not there: bring it back"):
        reload.run(driver)
    assert reload.runs.get(driver.run.id).is_open
    away.rename(second)
    reload.run(reload.take_over(driver.run.id))
    assert shop.rows() == doubled(FIRST)


def test_a_verify_reads_the_archive_as_well(shop: Shop, archive: Archive) -> None:
    work(shop, FIRST, len(FIRST))
    export(shop, archive)
    trim(shop, 50)
    shop.execute("UPDATE {schema}.orders SET amount = 4000 WHERE id = 20")
    report = shop.reload(version=1, archive=archive).verify()
    (table,) = report.tables
    assert table.different == 1


def test_a_group_that_retention_has_overtaken_is_reloaded_up_to_its_positions(shop: Shop, archive: Archive) -> None:
    """Its workers wait for a decision; what it has applied is in the archive."""
    work(shop, FIRST, len(FIRST))
    export(shop, archive)
    shop.produce(shop.topic, LATER, partition=0)
    trim(shop, len(FIRST) + 5)
    reloaded(shop.reload(archive=archive))
    assert shop.rows() == doubled(FIRST)


def test_a_failing_record_of_the_archive_is_dead_lettered_like_one_of_the_log(shop: Shop, archive: Archive) -> None:
    """Its headers, too: the file has none for a record whose headers no client can read."""
    options: dict[str, Any] = {"on_poison": "dead_letter", "kind": "append", "key": Text()}
    shop.produce(shop.topic, [of(1, 1)], partition=0)
    produce_by_hand(shop.brokers, shop.topic, b"bad", b"\xff\xfe", 1_785_587_400_123)
    shop.produce(shop.topic, [of(2, 1500), of(3, 3)], partition=0, headers=[("a", None), ("a", b"1")])
    shop.work(4, **options)
    shop.execute("UPDATE {schema}.dead_letter SET state = 'superseded'")
    export(shop, archive)
    trim(shop, 3)
    reloaded(shop.reload(pipeline=options, archive=archive))
    assert shop.rows("entries", "id, amount, topic_offset") == [(1, 2, 0), (3, 6, 3)]
    letters = shop.execute(
        "SELECT record_offset, error, header_names, header_values FROM {schema}.dead_letter "
        "WHERE state = 'dead_lettered' ORDER BY 1"
    )
    assert [(offset, names, values) for offset, _, names, values in letters] == [
        (1, [], []),
        (2, [b"a", b"a"], [None, b"1"]),
    ]
    assert "a name in them is not UTF-8" in letters[0][1]
