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
from support.reload_orders import OrdersGroup, doubled, gone, of

FIRST = [of(n % 40, n, n) for n in range(120)] + [gone(3), gone(7), of(7, 5)]
LATER = [of(n % 50, n, n) for n in range(200, 260)] + [gone(11)]


@pytest.fixture
def archive(orders_group: OrdersGroup, tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive", orders_group.engine, schema=orders_group.schema)


def export(orders_group: OrdersGroup, archive: Archive, **options: Any) -> None:
    Export(
        orders_group.engine, {"bootstrap.servers": orders_group.brokers}, archive, orders_group.group, **options
    ).run()


def trim(orders_group: OrdersGroup, to: int) -> None:
    admin, partition = (
        AdminClient({"bootstrap.servers": orders_group.brokers, "log_level": 0}),
        TopicPartition(orders_group.topic, 0, to),
    )
    admin.delete_records([partition])[partition].result(20)


def work(orders_group: OrdersGroup, records: list[Any], upto: int) -> None:
    orders_group.produce(orders_group.topic, records, partition=0)
    orders_group.work(upto)


@pytest.mark.parametrize("strategy", ["merge", "swap"])
def test_what_retention_deleted_is_read_from_the_archive(
    orders_group: OrdersGroup, archive: Archive, strategy: str
) -> None:
    """Apply, export, trim the log, apply more, reload with other code: as if computed from the first record on."""
    work(orders_group, FIRST, len(FIRST))
    export(orders_group, archive, range_records=50)
    trim(orders_group, 77)
    work(orders_group, LATER, len(FIRST) + len(LATER))
    reload, driver = started(orders_group.reload(archive=archive, range_records=40), strategy=strategy)
    assert driver.run.archive == archive.spec()
    reload.run(driver)
    assert orders_group.rows() == doubled(FIRST + LATER)


def test_retention_may_pass_in_mid_run(orders_group: OrdersGroup, archive: Archive) -> None:
    """Opened while the log had all of it; what is staged later, after a takeover, is read from the archive."""
    work(orders_group, FIRST, len(FIRST))
    export(orders_group, archive)
    run = orders_group.reload(archive=archive).open().run
    trim(orders_group, len(FIRST) - 2)
    other = orders_group.reload(range_records=30)
    other.run(other.take_over(run.id))
    assert orders_group.rows() == doubled(FIRST)


def test_without_an_archive_that_has_all_of_it_the_reload_is_refused(
    orders_group: OrdersGroup, archive: Archive
) -> None:
    work(orders_group, FIRST, 60)
    orders_group.execute("UPDATE {schema}.partition_offset SET next_offset = 60 WHERE partition = 0")
    export(orders_group, archive)
    orders_group.execute("UPDATE {schema}.partition_offset SET next_offset = :to WHERE partition = 0", to=len(FIRST))
    trim(orders_group, 70)
    with pytest.raises(ReloadRefused, match="unless an export has them: give --archive"):
        orders_group.reload().open()
    with pytest.raises(ReloadRefused, match=r"began at offset 0.*now begins at 70.*does not have \[60, 70\) of topic"):
        orders_group.reload(archive=archive).open()


def test_a_file_that_is_gone_does_not_end_the_run(orders_group: OrdersGroup, archive: Archive) -> None:
    """The run stays open, and can be resumed after the file is back."""
    work(orders_group, FIRST, len(FIRST))
    export(orders_group, archive, range_records=50)
    trim(orders_group, 110)
    second = Path(archive.files()[1])
    away = second.rename(second.with_suffix(".away"))
    reload, driver = started(orders_group.reload(archive=archive, range_records=50))
    with pytest.raises(ArchiveDamaged, match="it is missing: restore it"):
        reload.run(driver)
    assert reload.runs.get(driver.run.id).is_open
    away.rename(second)
    reload.run(reload.take_over(driver.run.id))
    assert orders_group.rows() == doubled(FIRST)


def test_a_verify_reads_the_archive_as_well(orders_group: OrdersGroup, archive: Archive) -> None:
    work(orders_group, FIRST, len(FIRST))
    export(orders_group, archive)
    trim(orders_group, 50)
    orders_group.execute("UPDATE {schema}.orders SET amount = 4000 WHERE id = 20")
    report = orders_group.reload(version=1, archive=archive).verify()
    (table,) = report.tables
    assert table.different == 1


def test_a_group_that_retention_has_overtaken_is_reloaded_up_to_its_positions(
    orders_group: OrdersGroup, archive: Archive
) -> None:
    """Its workers wait for a decision; what it has applied is in the archive."""
    work(orders_group, FIRST, len(FIRST))
    export(orders_group, archive)
    orders_group.produce(orders_group.topic, LATER, partition=0)
    trim(orders_group, len(FIRST) + 5)
    reloaded(orders_group.reload(archive=archive))
    assert orders_group.rows() == doubled(FIRST)


def test_a_failing_record_of_the_archive_is_dead_lettered_like_one_of_the_log(
    orders_group: OrdersGroup, archive: Archive
) -> None:
    """Its headers, too: the file has none for a record whose headers no client can read."""
    options: dict[str, Any] = {"on_poison": "dead_letter", "kind": "append", "key": Text()}
    orders_group.produce(orders_group.topic, [of(1, 1)], partition=0)
    produce_by_hand(orders_group.brokers, orders_group.topic, b"bad", b"\xff\xfe", 1_785_587_400_123)
    orders_group.produce(orders_group.topic, [of(2, 1500), of(3, 3)], partition=0, headers=[("a", None), ("a", b"1")])
    orders_group.work(4, **options)
    orders_group.execute("UPDATE {schema}.dead_letter SET state = 'superseded'")
    export(orders_group, archive)
    trim(orders_group, 3)
    reloaded(orders_group.reload(pipeline=options, archive=archive))
    assert orders_group.rows("entries", "id, amount, topic_offset") == [(1, 2, 0), (3, 6, 3)]
    dead_letters = orders_group.execute(
        "SELECT record_offset, error, header_names, header_values FROM {schema}.dead_letter "
        "WHERE state = 'dead_lettered' ORDER BY 1"
    )
    assert [(offset, names, values) for offset, _, names, values in dead_letters] == [
        (1, [], []),
        (2, [b"a", b"a"], [None, b"1"]),
    ]
    assert "a name in them is not UTF-8" in dead_letters[0][1]
