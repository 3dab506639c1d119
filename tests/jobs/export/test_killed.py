"""Exports that are killed, exports at the same time, and sweeps: the manifest has every record once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from seekpoint import schema
from seekpoint.errors import RangeLost
from seekpoint.jobs.export import Archive, Export, Written
from seekpoint.jobs.export.files import LocalWriter
from seekpoint.jobs.export.manifest import transaction
from seekpoint.kafka.ranges import Range
from seekpoint.storage import Storage
from seekpoint.testing.servers.postgres import PostgresServer
from support.archive import ArchivedGroup
from support.export_process import PLACES, Exporter
from support.postgres_proxy import PostgresProxy

NOW = timedelta(0)


def assert_whole(archived_group: ArchivedGroup, name: str, count: int = 60) -> None:
    """No overlap, no gap, every record once."""
    spans = archived_group.spans(name)
    assert [start for start, _, _ in spans] == [0, *[end for _, end, _ in spans[:-1]]]
    assert spans[-1][1] == count
    assert archived_group.archived(name, 0, count) == archived_group.logged(name, 0, count)


@pytest.mark.repeats("step")
@pytest.mark.parametrize("step", PLACES)
def test_the_next_export_continues_after_the_last_manifest_row(archived_group: ArchivedGroup, step: str) -> None:
    name = archived_group.filled(60)
    Exporter(archived_group, step, range_records=25).kill_where_it_waits()
    committed = 1 if step == "second file" else 0
    assert len(archived_group.spans(name)) == committed
    assert len(archived_group.strays()) == (step != "planned"), "what was written is no part of the archive"
    archived_group.export(range_records=25).run()
    assert archived_group.spans(name) == [(0, 25, 25), (25, 50, 25), (50, 60, 10)]
    assert_whole(archived_group, name)
    swept = archived_group.archive.sweep(NOW)
    assert len(swept) == (step != "planned")
    assert archived_group.strays() == []
    assert_whole(archived_group, name)


class WaitingWriter(LocalWriter):
    """Begins to write when the others have planned, too."""

    def __init__(self, archived_group: ArchivedGroup, barrier: threading.Barrier) -> None:
        super().__init__(archived_group.kafka)
        self._barrier: threading.Barrier | None = barrier

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
        if self._barrier is not None:
            self._barrier.wait(60)
            self._barrier = None
        return super().write(root, run, ranges)


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_exports_at_once_make_one_chain(archived_group: ArchivedGroup, format_: str) -> None:
    """They plan ranges of different widths; an export that another one has overtaken plans again."""
    name = archived_group.filled(60)
    barrier = threading.Barrier(3)

    def run(width: int) -> None:
        archived_group.export(range_records=width, format=format_, writer=WaitingWriter(archived_group, barrier)).run()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, (7, 11, 60)))
    assert_whole(archived_group, name)
    assert sum(records for _, _, records in archived_group.spans(name)) == 60
    assert archived_group.strays() == []


def test_files_that_come_in_another_order_are_committed_in_the_logs(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(60)
    seen: list[list[tuple[int, int, int]]] = []

    class BackwardsWriter(LocalWriter):
        def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
            for written in super().write(root, run, ranges[::-1]):
                yield written
                seen.append(archived_group.spans(name))

    archived_group.export(range_records=20, writer=BackwardsWriter(archived_group.kafka)).run()
    assert [len(spans) for spans in seen] == [0, 0, 3]
    assert_whole(archived_group, name)


def test_a_sweep_leaves_what_may_still_be_committed_and_what_is_others(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(60)
    Exporter(archived_group, "a file").kill_where_it_waits()
    (stray,) = archived_group.strays()
    (run,) = archived_group.runs()
    strange = [stray.with_name("notes.parquet"), stray.with_name(stray.name.replace(run.hex, uuid4().hex))]
    assert strange[1] != stray
    for file in strange:
        file.write_bytes(b"x")
    archived_group.export().run()
    assert archived_group.archive.sweep() == [], "it is younger than a day"
    assert archived_group.archive.strays(NOW) == [str(stray.relative_to(archived_group.archive.root))]
    assert archived_group.archive.sweep(NOW) == [str(stray.relative_to(archived_group.archive.root))]
    assert all(file.exists() for file in strange)
    assert not stray.exists()
    assert_whole(archived_group, name)
    assert (
        Archive(archived_group.folder / "nowhere", archived_group.engine, schema=archived_group.schema).sweep(NOW) == []
    )


def test_a_sweep_leaves_a_file_of_unknown_age(archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage may not know when a file was written: an export may be writing it now."""
    name = archived_group.filled(60)
    Exporter(archived_group, "a file").kill_where_it_waits()
    (stray,) = archived_group.strays()
    files = Storage.files
    monkeypatch.setattr(Storage, "files", lambda storage: ((file, None) for file, _ in files(storage)))
    assert archived_group.archive.sweep() == []
    assert archived_group.archive.sweep(NOW) == [str(stray.relative_to(archived_group.archive.root))]
    archived_group.export().run()
    assert_whole(archived_group, name)


def test_a_sweep_leaves_the_files_of_another_database_of_that_name(
    archived_group: ArchivedGroup, own_postgres: PostgresServer
) -> None:
    """Two servers may call database and schema alike, and share a root: what either wrote is no stray of the other."""
    name = archived_group.filled(60)
    engine = create_engine(own_postgres.url)
    schema.upgrade(engine, schema=archived_group.schema)
    theirs = replace(archived_group, engine=engine)
    theirs.set_positions(name, {0: 60})
    Exporter(archived_group, "a file").kill_where_it_waits()
    (ours,) = archived_group.strays()
    Exporter(theirs, "a file").kill_where_it_waits()
    (stray,) = set(theirs.strays()) - {ours}
    theirs.export().run()
    assert theirs.archive.sweep(NOW) == [str(stray.relative_to(archived_group.archive.root))]
    archived_group.export().run()
    assert archived_group.archive.sweep(NOW) == [str(ours.relative_to(archived_group.archive.root))]
    assert theirs.archive.sweep(NOW) == []
    assert_whole(archived_group, name)
    assert_whole(theirs, name)
    engine.dispose()


def test_a_sweep_under_another_name_of_the_root_leaves_what_counts(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(["a", "b", "c"], 3)
    archived_group.export().run()
    root, link = archived_group.folder / "archive", archived_group.folder / "link"
    link.symlink_to(root)
    for same in (link, root / ".." / "archive"):
        other = Archive(same, archived_group.engine, schema=archived_group.schema)
        assert other.strays(NOW) == []
        with transaction(archived_group.engine, archived_group.schema, other.root) as tx:
            assert tx.has(archived_group.archive.entries(name)[0].file)
    assert archived_group.archived(name, 0, 3) == archived_group.logged(name, 0, 3)


def test_a_file_that_was_removed_before_its_commit_is_not_in_the_manifest(archived_group: ArchivedGroup) -> None:
    name = archived_group.filled(60)

    class FailingWriter(LocalWriter):
        def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
            for written in super().write(root, run, ranges):
                (Path(root) / written.file).unlink()
                yield written

    with pytest.raises(FileNotFoundError, match=r"missing or shorter.*run the export again"):
        archived_group.export(writer=FailingWriter(archived_group.kafka)).run()
    assert archived_group.spans(name) == []
    archived_group.export().run()
    assert_whole(archived_group, name)


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_found_out_by_the_next_run(
    archived_group: ArchivedGroup, seekpoint_dsn: str, when: Any
) -> None:
    name = archived_group.filled(60)
    with PostgresProxy.in_front_of(seekpoint_dsn) as proxy:
        engine = create_engine(proxy.dsn, pool_pre_ping=True)
        arm_behind_the_insert(engine, proxy, when)
        archive = Archive(archived_group.folder / "archive", engine, schema=archived_group.schema)
        with pytest.raises(OperationalError):
            Export(archived_group.engine, archived_group.kafka, archive, archived_group.group, range_records=25).run()
        proxy.wait_until_fired(60)
        engine.dispose()
    assert len(archived_group.spans(name)) == (when == "after_commit")
    archived_group.export(range_records=25).run()
    assert_whole(archived_group, name)
    assert len(archived_group.strays()) == (when == "before_commit")


def arm_behind_the_insert(engine: Engine, proxy: PostgresProxy, when: Any) -> None:
    @event.listens_for(engine, "after_cursor_execute")
    def arm(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and "export_manifest" in statement and not proxy.fired.is_set():
            proxy.arm(when)


def test_a_commit_may_wait_longer_for_its_files_than_the_roles_transactions(archived_group: ArchivedGroup) -> None:
    """A bucket, or a Delta table's log, is asked while the topic is locked."""
    topic = archived_group.filled(60)
    options = "-c idle_in_transaction_session_timeout=5000 -c statement_timeout=5000"
    engine = create_engine(archived_group.engine.url, connect_args={"options": options})
    timeouts: list[Any] = []

    @event.listens_for(engine, "after_cursor_execute")
    def look(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and "export_manifest" in statement:
            for name in ("idle_in_transaction_session_timeout", "statement_timeout"):
                timeouts.extend(connection.connection.driver_connection.execute(f"SHOW {name}").fetchone())

    archive = Archive(archived_group.folder / "archive", engine, schema=archived_group.schema)
    archived_group.export(archive=archive).run()
    engine.dispose()
    assert timeouts == ["0", "0"]
    assert_whole(archived_group, topic)


def test_an_error_in_the_middle_leaves_no_file(archived_group: ArchivedGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    name = archived_group.filled(["x" * 50_000] * 400)
    plan = Export._plan

    def and_cut(self: Export, stands: Any) -> list[Range]:
        ranges = plan(self, stands)
        archived_group.trim(name, 390)
        return ranges

    monkeypatch.setattr(Export, "_plan", and_cut)
    with pytest.raises(RangeLost):
        archived_group.export().run()
    assert (archived_group.spans(name), archived_group.strays()) == ([], [])
