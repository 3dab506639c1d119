"""A worker of an earlier version runs under load while the ledger is migrated: nothing is lost or written twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from seekpoint import Ledger, Partition, schema
from support.events import Run
from support.kafka_postgres import QUICK
from support.recorded_rows import Book, Stream, ends
from support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
EARLIER, ITS_HEAD = "9fa531c", "0003"  # the last commit before the revisions that are tried here, and its own revision
LATER = sorted(path.name[:4] for path in (ROOT / "migrations" / "versions").glob("*.py") if path.name[:4] > ITS_HEAD)
ENDING = {"0005": r'column .*claim"? does not exist'}  # revisions that are not additive, and what the worker meets
PARTITIONS, GROUP = 2, "orders"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The package as it was then, from the repository's history."""
    archive = ["git", "archive", EARLIER, "src", "migrations"]
    archived = subprocess.run(archive, cwd=ROOT, capture_output=True, check=False)
    if archived.returncode != 0:
        pytest.skip(f"the history of this checkout does not reach back to {EARLIER}")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=archived.stdout, check=True)
    return tmp_path / "src"


@contextmanager
def worker_of(source: Path, **given: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the worker of this package until the block is left."""
    script = str(Path(__file__).with_name("earlier_worker.py"))
    process = subprocess.Popen(
        [sys.executable, script, json.dumps(given)],
        env={**os.environ, "PYTHONPATH": str(source)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.long
def test_a_worker_of_the_version_before_continues_until_a_revision_ends_it_and_loses_nothing(  # noqa: PLR0917 -- fixtures
    earlier: Path,
    engine: Engine,
    database_url: str,
    seekpoint_broker: str,
    topic: Callable[..., str],
    run_worker: Callable[..., Run],
) -> None:
    assert LATER, "no revision is later: name a later commit of the release before"
    schema.upgrade(engine, to=ITS_HEAD)
    book, name = Book(engine, "public").create(), topic(PARTITIONS)
    kafka = {"bootstrap.servers": seekpoint_broker, **QUICK}
    with (
        worker_of(earlier, group=GROUP, topic=name, dsn=database_url, kafka=kafka) as process,
        Stream(seekpoint_broker, name, PARTITIONS, rate=200) as stream,
    ):

        def applies_more(than: int) -> bool:
            assert process.poll() is None, "the worker has ended"
            return len(book.written(name)) > than + 100

        until(partial(applies_more, 0), "the worker applies the load")
        for revision in LATER:
            assert process.poll() is None, f"the worker ended before {revision}"
            schema.upgrade(engine, to=revision)
            if revision in ENDING:  # it was not stopped: its next statement fails
                _, errors = process.communicate(timeout=60)
                assert process.returncode not in {0, None}, errors
                assert re.search(ENDING[revision], errors), errors
                break
            before = len(book.written(name))
            until(partial(applies_more, before), f"it continues after {revision}")
        schema.upgrade(engine)
    heir = run_worker(book.pipeline(GROUP, name), engine=engine, schema="seekpoint", kafka=QUICK)
    stood = {Partition(name, number): end for number, end in ends(stream.stored).items()}
    ledger = Ledger(engine, GROUP)
    until(lambda: {row.partition: row.next_offset for row in ledger.read()} == stood, "the heir catches up")
    heir.stop()
    book.assert_holds(name, stream.stored)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM seekpoint.dead_letter")).scalar_one() == 0
