"""Operators see the record that a partition is stopped at: key and value from the log, error and first own line."""

from __future__ import annotations

from html import unescape
from typing import Any

from seekpoint import Limits
from seekpoint.admin import Admin
from seekpoint.pipeline.policy import OnPoison
from seekpoint.web import create_app
from support.browser import LOCAL, Browser
from support.worker_group import WorkerGroup


def test_the_record_that_stopped_a_partition_is_shown_with_its_error(worker_group: WorkerGroup) -> None:
    """Not without payloads; and only where a record is at fault."""
    name, _ = worker_group.log(["0", "bad <b>", "2"])
    refusing = worker_group.record_table.refusing(lambda record: record.value == "bad <b>")
    pipeline = worker_group.pipeline(name, sinks=(), handle=refusing, on_poison=OnPoison.STOP)
    worker = worker_group.worker(pipeline, limits=Limits(idle_check=0.1))
    admin = Admin(worker_group.engine, {"bootstrap.servers": worker_group.broker}, schema=worker_group.schema)
    path = f"record?group={worker_group.group}&topic={name}&partition=0"
    options: dict[str, Any] = {"base_url": LOCAL, "client": ("127.0.0.1", 50_000)}
    with Browser(create_app(admin, payloads="full"), **options) as full, Browser(create_app(admin), **options) as none:
        worker_group.wait(lambda: [row.stop is not None for row in worker_group.ledger.read()] == [True])
        shown = full.get(f"/{path}")
        assert shown.status_code == 200, shown.text
        assert '<pre tabindex="0">bad &lt;b&gt;</pre>' in shown.text
        assert "the handler calls it poison: " in shown.text
        assert "(at recorded_rows.py:" in shown.text, "the first line of the user's own code"
        data = full.get(f"/api/{path}").json()["data"]
        assert (data["offset"], data["value"]["text"]) == (1, "bad <b>")
        for page in (
            f"group?group={worker_group.group}",
            f"partition?group={worker_group.group}&topic={name}&partition=0",
        ):
            assert path in unescape(full.get(f"/{page}").text)
            assert path not in unescape(none.get(f"/{page}").text)
        for of in ("", "api/"):
            hidden = none.get(f"/{of}{path}")
            assert (hidden.status_code, "bad" in hidden.text) == (403, False)
        worker.stop()
        worker_group.ledger.reset_offset(name, 0, 2, log=(0, 3), reason="skip it")
        nothing = full.get(f"/{path}")
        assert (nothing.status_code, "no record has stopped it" in nothing.text) == (422, True)
