"""Operators see the record that a partition is stopped at: key and value from the log, error and first own line."""

from __future__ import annotations

from html import unescape
from typing import Any

from seekpoint import Limits
from seekpoint.admin import Admin
from seekpoint.pipeline.policy import OnPoison
from seekpoint.web import create_app
from support.browser import LOCAL, Browser
from support.kafka_postgres import Scene


def test_the_record_that_stopped_a_partition_is_shown_with_its_error(scene: Scene) -> None:
    """Not without payloads; and only where a record is at fault."""
    name, _ = scene.log(["0", "bad <b>", "2"])
    refusing = scene.book.refusing(lambda record: record.value == "bad <b>")
    pipeline = scene.pipeline(name, sinks=(), handle=refusing, on_poison=OnPoison.STOP)
    worker = scene.worker(pipeline, limits=Limits(idle_check=0.1))
    admin = Admin(scene.engine, {"bootstrap.servers": scene.broker}, schema=scene.schema)
    path = f"record?group={scene.group}&topic={name}&partition=0"
    options: dict[str, Any] = {"base_url": LOCAL, "client": ("127.0.0.1", 50_000)}
    with Browser(create_app(admin, payloads="full"), **options) as full, Browser(create_app(admin), **options) as none:
        scene.wait(lambda: [row.stop is not None for row in scene.ledger.read()] == [True])
        shown = full.get(f"/{path}")
        assert shown.status_code == 200, shown.text
        assert '<pre tabindex="0">bad &lt;b&gt;</pre>' in shown.text
        assert "the handler calls it poison: " in shown.text
        assert "(at recorded_rows.py:" in shown.text, "the first line of the user's own code"
        data = full.get(f"/api/{path}").json()["data"]
        assert (data["offset"], data["value"]["text"]) == (1, "bad <b>")
        for page in (f"group?group={scene.group}", f"partition?group={scene.group}&topic={name}&partition=0"):
            assert path in unescape(full.get(f"/{page}").text)
            assert path not in unescape(none.get(f"/{page}").text)
        for of in ("", "api/"):
            hidden = none.get(f"/{of}{path}")
            assert (hidden.status_code, "bad" in hidden.text) == (403, False)
        worker.stop()
        scene.ledger.reset_offset(name, 0, 2, log=(0, 3), reason="skip it")
        nothing = full.get(f"/{path}")
        assert (nothing.status_code, "no record stopped it" in nothing.text) == (422, True)
