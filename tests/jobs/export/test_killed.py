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
from seekpoint.testing.servers.postgres import PostgresServer
from support.archive import Vault
from support.export_process import PLACES, Exporter
from support.postgres_proxy import PostgresProxy

NOW = timedelta(0)


def assert_whole(vault: Vault, name: str, count: int = 60) -> None:
    """No overlap, no gap, every record once."""
    spans = vault.spans(name)
    assert [start for start, _, _ in spans] == [0, *[end for _, end, _ in spans[:-1]]]
    assert spans[-1][1] == count
    assert vault.archived(name, 0, count) == vault.logged(name, 0, count)


@pytest.mark.repeats("at")
@pytest.mark.parametrize("at", PLACES)
def test_the_next_export_continues_after_the_last_manifest_row(vault: Vault, at: str) -> None:
    name = vault.filled(60)
    Exporter(vault, at, range_records=25).kill_where_it_waits()
    committed = 1 if at == "second file" else 0
    assert len(vault.spans(name)) == committed
    assert len(vault.strays()) == (at != "planned"), "what was written is no part of the archive"
    vault.export(range_records=25).run()
    assert vault.spans(name) == [(0, 25, 25), (25, 50, 25), (50, 60, 10)]
    assert_whole(vault, name)
    swept = vault.archive.sweep(NOW)
    assert len(swept) == (at != "planned")
    assert vault.strays() == []
    assert_whole(vault, name)


class Together(LocalWriter):
    """Begins to write when the others have planned, too."""

    def __init__(self, vault: Vault, barrier: threading.Barrier) -> None:
        super().__init__(vault.kafka)
        self._barrier: threading.Barrier | None = barrier

    def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
        if self._barrier is not None:
            self._barrier.wait(60)
            self._barrier = None
        return super().write(root, run, ranges)


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_exports_at_once_make_one_chain(vault: Vault, format_: str) -> None:
    """They plan ranges of different widths; an export that another one has overtaken plans again."""
    name = vault.filled(60)
    barrier = threading.Barrier(3)

    def run(width: int) -> None:
        vault.export(range_records=width, format=format_, writer=Together(vault, barrier)).run()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, (7, 11, 60)))
    assert_whole(vault, name)
    assert sum(records for _, _, records in vault.spans(name)) == 60
    assert vault.strays() == []


def test_files_that_come_in_another_order_are_committed_in_the_logs(vault: Vault) -> None:
    name = vault.filled(60)
    seen: list[list[tuple[int, int, int]]] = []

    class Backwards(LocalWriter):
        def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
            for written in super().write(root, run, ranges[::-1]):
                yield written
                seen.append(vault.spans(name))

    vault.export(range_records=20, writer=Backwards(vault.kafka)).run()
    assert [len(spans) for spans in seen] == [0, 0, 3]
    assert_whole(vault, name)


def test_a_sweep_leaves_what_may_still_be_committed_and_what_is_others(vault: Vault) -> None:
    name = vault.filled(60)
    Exporter(vault, "a file").kill_where_it_waits()
    (stray,) = vault.strays()
    (run,) = vault.runs()
    strange = [stray.with_name("notes.parquet"), stray.with_name(stray.name.replace(run.hex, uuid4().hex))]
    assert strange[1] != stray
    for file in strange:
        file.write_bytes(b"x")
    vault.export().run()
    assert vault.archive.sweep() == [], "it is younger than a day"
    assert vault.archive.strays(NOW) == [str(stray.relative_to(vault.archive.root))]
    assert vault.archive.sweep(NOW) == [str(stray.relative_to(vault.archive.root))]
    assert all(file.exists() for file in strange)
    assert not stray.exists()
    assert_whole(vault, name)
    assert Archive(vault.folder / "nowhere", vault.engine, schema=vault.schema).sweep(NOW) == []


def test_a_sweep_leaves_the_files_of_another_database_of_that_name(vault: Vault, own_postgres: PostgresServer) -> None:
    """Two servers may call database and schema alike, and share a root: what either wrote is no stray of the other."""
    name = vault.filled(60)
    engine = create_engine(own_postgres.url)
    schema.upgrade(engine, schema=vault.schema)
    theirs = replace(vault, engine=engine)
    theirs.stand(name, {0: 60})
    Exporter(vault, "a file").kill_where_it_waits()
    (ours,) = vault.strays()
    Exporter(theirs, "a file").kill_where_it_waits()
    (stray,) = set(theirs.strays()) - {ours}
    theirs.export().run()
    assert theirs.archive.sweep(NOW) == [str(stray.relative_to(vault.archive.root))]
    vault.export().run()
    assert vault.archive.sweep(NOW) == [str(ours.relative_to(vault.archive.root))]
    assert theirs.archive.sweep(NOW) == []
    assert_whole(vault, name)
    assert_whole(theirs, name)
    engine.dispose()


def test_a_sweep_under_another_name_of_the_root_leaves_what_counts(vault: Vault) -> None:
    name = vault.filled(["a", "b", "c"], 3)
    vault.export().run()
    root, link = vault.folder / "archive", vault.folder / "link"
    link.symlink_to(root)
    for same in (link, root / ".." / "archive"):
        other = Archive(same, vault.engine, schema=vault.schema)
        assert other.strays(NOW) == []
        with transaction(vault.engine, vault.schema, other.root) as tx:
            assert tx.has(vault.archive.entries(name)[0].file)
    assert vault.archived(name, 0, 3) == vault.logged(name, 0, 3)


def test_a_file_that_was_removed_before_its_commit_is_not_in_the_manifest(vault: Vault) -> None:
    name = vault.filled(60)

    class Unlucky(LocalWriter):
        def write(self, root: str, run: UUID, ranges: Sequence[Range]) -> Iterator[Written]:
            for written in super().write(root, run, ranges):
                (Path(root) / written.file).unlink()
                yield written

    with pytest.raises(FileNotFoundError, match=r"is gone, or was cut.*run the export again"):
        vault.export(writer=Unlucky(vault.kafka)).run()
    assert vault.spans(name) == []
    vault.export().run()
    assert_whole(vault, name)


@pytest.mark.parametrize("when", ["before_commit", "after_commit"])
def test_a_commit_without_an_answer_is_found_out_by_the_next_run(vault: Vault, seekpoint_dsn: str, when: Any) -> None:
    name = vault.filled(60)
    with PostgresProxy.in_front_of(seekpoint_dsn) as proxy:
        engine = create_engine(proxy.dsn, pool_pre_ping=True)
        arm_behind_the_insert(engine, proxy, when)
        archive = Archive(vault.folder / "archive", engine, schema=vault.schema)
        with pytest.raises(OperationalError):
            Export(vault.engine, vault.kafka, archive, vault.group, range_records=25).run()
        assert proxy.fired.wait(60)
        engine.dispose()
    assert len(vault.spans(name)) == (when == "after_commit")
    vault.export(range_records=25).run()
    assert_whole(vault, name)
    assert len(vault.strays()) == (when == "before_commit")


def arm_behind_the_insert(engine: Engine, proxy: PostgresProxy, when: Any) -> None:
    @event.listens_for(engine, "after_cursor_execute")
    def arm(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT") and "export_manifest" in statement and not proxy.fired.is_set():
            proxy.arm(when)


def test_an_error_in_the_middle_leaves_no_file(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    name = vault.filled(["x" * 50_000] * 400)
    plan = Export._plan

    def and_cut(self: Export, stands: Any) -> list[Range]:
        ranges = plan(self, stands)
        vault.trim(name, 390)
        return ranges

    monkeypatch.setattr(Export, "_plan", and_cut)
    with pytest.raises(RangeLost):
        vault.export().run()
    assert (vault.spans(name), vault.strays()) == ([], [])
